"""Trainings of mujoco_returns.py: tasks, numbers of steps, and the settings of Stable-Baselines3's zoo."""

from __future__ import annotations

from typing import Any, NamedTuple

MUJOCO = tuple(f"{name}-v5" for name in ("Hopper", "HalfCheetah", "Walker2d", "Ant", "Swimmer", "Humanoid"))
BOX2D = ("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3")
EPISODES = 20  # deterministic ones, of an evaluation


class Plan(NamedTuple):
    """Comparison of an algorithm. marks: steps after which policies are evaluated, the last of them the end."""

    tasks: tuple[str, ...]
    marks: tuple[int, ...]
    seeds: int
    sb3_tasks: tuple[str, ...]
    sb3_steps: int
    sb3_seeds: int


OFF_POLICY = ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5")
PLANS = {
    "ppo": Plan(
        (*MUJOCO, *BOX2D),
        (100_000, 200_000, 300_000, 500_000, 1_000_000),
        3,
        ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "LunarLander-v3"),
        300_000,
        3,
    ),
    "sac": Plan(OFF_POLICY, (25_000, 50_000, 100_000), 3, ("Hopper-v5", "HalfCheetah-v5"), 100_000, 2),
    "td3": Plan(OFF_POLICY, (25_000, 50_000, 100_000), 3, ("Hopper-v5", "HalfCheetah-v5"), 100_000, 2),
}

# github.com/DLR-RM/rl-baselines3-zoo: hyperparams/ppo.yml and sac.yml at commit 00128b5, td3.yml at d29756c; those of
# MuJoCo's v3 and v4, and of LunarLander-v2, for today's versions. Names are those of Stable-Baselines3's constructors;
# normalize: VecNormalize around the environments.
_LANDER = {
    **{"num_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4},
    "ent_coef": 0.01,
}
_RELU_256 = {"log_std_init": -2, "ortho_init": False, "activation_fn": "relu", "net_arch": [256, 256]}
_TD3 = {
    **{"learning_starts": 10_000, "noise_std": 0.1, "learning_rate": 1e-3, "batch_size": 256},
    "policy_kwargs": {"net_arch": [400, 300]},
}
ZOO: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "Hopper-v5": {
            **{"normalize": True, "n_steps": 512, "batch_size": 32, "gamma": 0.999, "learning_rate": 9.80828e-05},
            **{"ent_coef": 0.00229519, "clip_range": 0.2, "n_epochs": 5, "gae_lambda": 0.99, "max_grad_norm": 0.7},
            **{"vf_coef": 0.835671, "policy_kwargs": _RELU_256},
        },
        "HalfCheetah-v5": {
            **{"normalize": True, "n_steps": 512, "batch_size": 64, "gamma": 0.98, "learning_rate": 2.0633e-05},
            **{"ent_coef": 0.000401762, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92, "max_grad_norm": 0.8},
            **{"vf_coef": 0.58096, "policy_kwargs": _RELU_256},
        },
        "Walker2d-v5": {
            **{"normalize": True, "n_steps": 512, "batch_size": 32, "gamma": 0.99, "learning_rate": 5.05041e-05},
            **{"ent_coef": 0.000585045, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.95, "max_grad_norm": 1.0},
            "vf_coef": 0.871923,
        },
        "Ant-v5": {"normalize": True},
        "Swimmer-v5": {"normalize": True, "gamma": 0.9999},
        "Humanoid-v5": {
            **{"normalize": True, "n_steps": 512, "batch_size": 256, "gamma": 0.95, "learning_rate": 3.56987e-05},
            **{"ent_coef": 0.00238306, "clip_range": 0.3, "n_epochs": 5, "gae_lambda": 0.9, "max_grad_norm": 2.0},
            **{"vf_coef": 0.431892, "policy_kwargs": _RELU_256},
        },
        "LunarLander-v3": _LANDER,
        "LunarLanderContinuous-v3": _LANDER,
        "BipedalWalker-v3": {
            **{"normalize": True, "num_envs": 32, "n_steps": 2048, "batch_size": 64, "gamma": 0.999},
            **{"gae_lambda": 0.95, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 3e-4, "clip_range": 0.18},
        },
    },
    "sac": {env: {"learning_starts": 10_000} for env in OFF_POLICY},
    "td3": {env: _TD3 for env in OFF_POLICY},
}
