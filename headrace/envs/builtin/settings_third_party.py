"""Settings with which to train on environments that other packages bring, whichever way they are run.

LunarLander's and HalfCheetah's started from those that rl-baselines3-zoo tuned for PPO, and were chosen anew, on seeds
from 1000, for the shortest training: rollouts are shorter and learned from more often. Atari's are the zoo's, which are
nearly those of the PPO paper (Schulman et al. 2017, arXiv:1707.06347, table 5). HalfCheetah's for SAC and TD3 are the
papers' but for the learning rate, four environments, and a gradient step for every second step instead of each: tried,
not tuned.
"""

from __future__ import annotations

from typing import Any

from headrace.envs.registry import register

LUNAR_LANDER: dict[str, Any] = {
    "total_steps": 400_000,
    "target_return": 230.0,
    "num_envs": 16,
    "num_steps": 256,
    "epochs": 8,
    "minibatch_size": 128,
    "learning_rate": 5e-4,
    "schedule": "linear",
    "entropy_coef": 0.003,
    "hidden": (128, 128),
    "activation": "relu",
}
HALF_CHEETAH: dict[str, Any] = {
    "total_steps": 400_000,
    "num_envs": 8,
    "num_steps": 128,
    "epochs": 10,
    "minibatch_size": 64,
    "learning_rate": 5e-4,
    "schedule": "linear",
    "gamma": 0.98,
    "gae_lambda": 0.92,
    "hidden": (128, 128),
    "activation": "relu",
    "initial_std": 0.37,
}
HALF_CHEETAH_OFF_POLICY: dict[str, Any] = {
    "total_steps": 100_000,
    "num_envs": 4,
    "learning_starts": 10_000,
    "utd_ratio": 0.5,
    "learning_rate": 1e-3,
    "threads": None,  # wide layers are worth sharing
}
ATARI: dict[str, Any] = {
    "total_steps": 10_000_000,
    "num_envs": 8,
    "num_steps": 128,
    "epochs": 4,
    "minibatch_size": 256,
    "learning_rate": 2.5e-4,
    "schedule": "linear",
    "clip": 0.1,
    "entropy_coef": 0.01,
    "hidden": (),
    "shared": True,
    "normalize_return": False,
    "threads": None,  # convolutions are worth sharing
    "precision": "auto",
}

# PettingZoo's simple_spread: tried, not tuned. Episodes are of 25 steps.
SIMPLE_SPREAD = {
    "total_steps": 500_000,
    "num_envs": 16,
    "num_steps": 50,
    "epochs": 8,
    "learning_rate": 1e-3,
    "gamma": 0.9,
}

HALF_CHEETAH_ALL = {
    "ppo": HALF_CHEETAH,
    "sac": HALF_CHEETAH_OFF_POLICY,
    "td3": HALF_CHEETAH_OFF_POLICY | {"total_steps": 200_000},
}

for name, settings in (
    ("LunarLander-v3", {"ppo": LUNAR_LANDER}),
    ("HalfCheetah-v5", HALF_CHEETAH_ALL),
    ("ALE/Pong-v5", {"ppo": ATARI}),
    ("envpool/LunarLander-v3", {"ppo": LUNAR_LANDER}),
    ("envpool/HalfCheetah-v5", HALF_CHEETAH_ALL),
    ("envpool/Pong-v5", {"ppo": ATARI}),
):
    register(name, name, settings, listed=False)
register("simple_spread_v3", "mpe2.simple_spread_v3:parallel_env", {"ppo": SIMPLE_SPREAD}, listed=False)
