"""The rows of feature_returns.py: what users ask for, and the task that shows it."""

from __future__ import annotations

from typing import Any, NamedTuple

Settings = dict[str, Any]
LIBRARIES = ("headrace", "sb3")


class Asked(NamedTuple):
    """A row: a training by Headrace, with a peer also by Stable-Baselines3 or its contrib.

    given: Headrace's settings, with a peer the arguments of the other library's constructor, as in an entry of
    rl_zoo3. peer: the class there, "" for none.
    """

    part: str  # of the table
    what: str
    algorithm: str
    env: str
    steps: int
    given: Settings
    peer: str = ""
    resumed: bool = False  # with twice the environments, after half of the steps
    masked: bool = False  # actions


class Measured(NamedTuple):
    """A row that was measured before, by another program or for another page. returns: of seeds 0 to 4."""

    part: str
    what: str
    command: str
    task: str
    steps: int
    returns: tuple[float, ...]
    seconds: float  # of the CPU, the median of a training
    date: str
    page: str  # of docs/ that has the row, too, "" for from_sb3.md
    peer: str = ""  # with the returns and seconds of its trainings
    of_peer: tuple[float, ...] = ()
    seconds_of_peer: float = 0.0


OF_8_ENVS: Settings = {"n_envs": 8, "n_steps": 64, "batch_size": 128, "learning_rate": 1e-3, "gamma": 0.9}
FALLING: Settings = {"learning_rate": "lin_1e-3", "clip_range": "lin_0.2"}
GSDE: Settings = {"use_sde": True, "sde_sample_freq": 4}
APART: Settings = {"net_arch": {"pi": [64, 64], "vf": [128, 64]}, "ortho_init": False, "log_std_init": -0.5}
OF_PENDULUM: Settings = {"learning_rate": 1e-3, "policy_kwargs": {"net_arch": [64, 64]}}
OF_SAC: Settings = {"learning_rate": 1e-3, "policy_kwargs": {"net_arch": [64, 64], "log_std_init": -2}}
RECURRENT: Settings = {"policy": "MlpLstmPolicy", "n_envs": 16, "n_steps": 64, "batch_size": 256, "n_epochs": 10}
RECURRENT |= {"learning_rate": 1e-3, "policy_kwargs": {"lstm_hidden_size": 64}}
QRDQN: Settings = {  # of rl_zoo3's QR-DQN on CartPole-v1
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 10},
}
HER: Settings = {"replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": {"n_sampled_goal": 4}}
HER |= {"policy": "MultiInputPolicy", "learning_rate": 1e-3, "learning_starts": 500, "gamma": 0.95, "batch_size": 128}
HER |= {"exploration_fraction": 0.5, "target_update_interval": 250, "policy_kwargs": {"net_arch": [128]}}
HYBRID: Settings = {"num_envs": 4, "hidden": (64, 64), "num_steps": 16, "train_freq": 1}
WARMUP: Settings = {"num_envs": 8, "schedule": "warmup:0.1+cosine:1e-5", "schedules": {"clip": "linear:0.2:0.05"}}

ACTIONS, RESUMING, SCHEDULES, NETWORKS = "Actions", "Resuming", "Schedules", "Exploration and networks"
MODELS, DISCRETE, DATA = "Models", "Discrete actions", "Recorded data"
CURVES = "Curves of both"
PARTS = (ACTIONS, RESUMING, SCHEDULES, NETWORKS, MODELS, DISCRETE, DATA, CURVES)
PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
ROWS = (
    Asked(ACTIONS, "Discrete and Box, SAC", "hybrid_sac", "Mover-v0", 10_000, HYBRID),
    Asked(ACTIONS, "Discrete and Box, PPO", "ppo", "Mover-v0", 200_000, {"num_envs": 8}),
    Asked(ACTIONS, "a Box of 2 x 3", "ppo", "Matrix-v0", 50_000, OF_8_ENVS, "PPO"),
    Asked(ACTIONS, "an action mask", "ppo", "Doors-v0", 50_000, OF_8_ENVS, "MaskablePPO", masked=True),
    Asked(RESUMING, "8 environments, then 16", "ppo", CARTPOLE, 100_000, {"num_envs": 8}, resumed=True),
    Asked(RESUMING, "2 environments, then 4", "sac", PENDULUM, 8_000, {"num_envs": 2}, resumed=True),
    Asked(SCHEDULES, "linear, of two settings", "ppo", "Matrix-v0", 50_000, OF_8_ENVS | FALLING, "PPO"),
    Asked(SCHEDULES, "warm-up and cosine", "ppo", CARTPOLE, 100_000, WARMUP),
    Asked(
        SCHEDULES,
        "by the KL divergence",
        "ppo",
        CARTPOLE,
        100_000,
        {"num_envs": 8, "schedule": "adaptive", "target_kl": 0.0},
    ),
    Asked(NETWORKS, "SAC with gSDE", "sac", PENDULUM, 5_000, OF_SAC | GSDE, "SAC"),
    Asked(NETWORKS, "networks apart", "ppo", "Matrix-v0", 50_000, OF_8_ENVS | {"policy_kwargs": APART}, "PPO"),
    Asked(MODELS, "QR-DQN", "qrdqn", CARTPOLE, 50_000, QRDQN, "QRDQN"),
    Asked(MODELS, "RecurrentPPO", "recurrent_ppo", "CartPoleWithoutVelocities-v0", 25_000, RECURRENT, "RecurrentPPO"),
    Asked(MODELS, "TRPO", "trpo", CARTPOLE, 50_000, {"n_envs": 4, "n_steps": 256}, "TRPO"),
    Asked(MODELS, "DDPG", "ddpg", PENDULUM, 5_000, OF_PENDULUM | {"noise_type": "normal", "noise_std": 0.1}, "DDPG"),
    Asked(MODELS, "HerReplayBuffer", "dqn", "Bits-v0", 20_000, HER, "DQN"),
    Asked(CURVES, "compare sb3", "a2c", CARTPOLE, 50_000, {"n_envs": 8, "n_steps": 16, "learning_rate": 2e-3}, "A2C"),
)
OFFLINE, DQN, HERE = "offline.md", "dqn.md", ""
ON_CARTPOLE = "--replay runs/dqn/CartPole-v1_1 --learning-rate 1e-3"
ON_PENDULUM = "--replay runs/sac/Pendulum-v1_1 --learning-rate 1e-3"
MEASURED = (
    Measured(
        DISCRETE,
        "discrete SAC",
        "train discrete_sac CartPole-v1",
        CARTPOLE,
        100_000,
        (478, 484, 472, 489, 483),
        24,
        "2026-11-28",
        DQN,
    ),
    Measured(
        DISCRETE, "C51", "train c51 CartPole-v1", CARTPOLE, 100_000, (500, 500, 500, 500, 500), 24, "2026-11-28", DQN
    ),
    Measured(
        DISCRETE,
        "Rainbow",
        "train c51 CartPole-v1 --noisy 0.5 --n-steps 3 --double --dueling --prioritized",
        CARTPOLE,
        100_000,
        (500, 500, 468, 475, 500),
        94,
        "2026-11-28",
        DQN,
    ),
    Measured(
        DISCRETE,
        "double, prioritised, n-step DQN",
        "train dqn CartPole-v1",
        CARTPOLE,
        100_000,
        (500, 500, 500, 500, 497),
        14,
        "2026-11-28",
        DQN,
    ),
    Measured(
        DISCRETE,
        "noisy DQN",
        "train dqn CartPole-v1 --noisy 0.5",
        CARTPOLE,
        100_000,
        (464, 493, 475, 476, 180),
        51,
        "2026-11-28",
        DQN,
    ),
    Measured(
        MODELS,
        "TQC",
        "compare sb3 tqc Pendulum-v1",
        PENDULUM,
        5_000,
        (-518, -160, -553, -282, -150),
        15,
        "2026-11-29",
        HERE,
        "TQC",
        (-136, -324, -158, -145, -155),
        78,
    ),
    Measured(
        MODELS,
        "CrossQ",
        "compare sb3 crossq Pendulum-v1",
        PENDULUM,
        5_000,
        (-160, -149, -175, -145, -149),
        20,
        "2026-11-29",
        HERE,
        "CrossQ",
        (-137, -143, -160, -144, -143),
        54,
    ),
    Measured(
        DATA,
        "behaviour cloning, discrete",
        f"train bc CartPole-v1 {ON_CARTPOLE}",
        CARTPOLE,
        5_000,
        (159, 165, 159, 164, 161),
        3,
        "2026-11-29",
        OFFLINE,
    ),
    Measured(
        DATA,
        "CQL, discrete",
        f"train discrete_cql CartPole-v1 {ON_CARTPOLE}",
        CARTPOLE,
        5_000,
        (165, 161, 166, 161, 150),
        5,
        "2026-11-29",
        OFFLINE,
    ),
    Measured(
        DATA,
        "IQL, discrete",
        f"train iql CartPole-v1 {ON_CARTPOLE}",
        CARTPOLE,
        5_000,
        (157, 161, 156, 162, 157),
        19,
        "2026-11-29",
        OFFLINE,
    ),
    Measured(
        DATA,
        "TD3+BC",
        f"train td3_bc Pendulum-v1 {ON_PENDULUM} --alpha 20",
        PENDULUM,
        10_000,
        (-194, -200, -194, -200, -194),
        30,
        "2026-11-28",
        OFFLINE,
    ),
    Measured(
        DATA,
        "CQL",
        f"train cql Pendulum-v1 {ON_PENDULUM}",
        PENDULUM,
        10_000,
        (-178, -182, -174, -182, -173),
        0,
        "2026-11-29",
        OFFLINE,
    ),
    Measured(
        DATA,
        "IQL",
        f"train iql Pendulum-v1 {ON_PENDULUM}",
        PENDULUM,
        10_000,
        (-208, -206, -198, -209, -209),
        39,
        "2026-11-28",
        OFFLINE,
    ),
    Measured(
        DATA,
        "a replay buffer that begins with data",
        "train sac Pendulum-v1 --replay RUN --learning-starts 0",
        PENDULUM,
        2_000,
        (-175, -174, -173, -145, -164),
        0,
        "2026-11-28",
        "data.md",
    ),
)
