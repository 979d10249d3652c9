"""The worlds that show only part of what is, and settings with which to train memory on them."""

from __future__ import annotations

from headrace.envs.registry import register

register(
    "CartPoleHidden",
    "headrace.envs.builtin.hidden_velocity:CartPoleHidden",
    {
        "ppo": {
            "total_steps": 400_000,
            "num_envs": 32,
            "num_steps": 32,
            "recurrent": "gru",
            "rnn_size": 32,
            "sequence_length": 16,
            "epochs": 4,
            "minibatch_size": 256,
            "learning_rate": 3e-3,
            "schedule": "linear",
            "gamma": 0.98,
            "entropy_coef": 0.005,
            "hidden": (32,),
            "normalize_return": False,
        },
        "dqn": {
            "total_steps": 150_000,
            "num_envs": 8,
            "num_steps": 8,
            "recurrent": "gru",
            "rnn_size": 32,
            "sequence_length": 16,
            "burn_in": 8,
            "utd_ratio": 0.0625,
            "batch_size": 512,
            "learning_rate": 2e-3,
            "n_steps": 3,
            "target_interval": 100,
            "exploration_final": 0.04,
            "hidden": (64,),
            "normalize_observation": False,
        },
    },
)
register(
    "PendulumHidden",
    "headrace.envs.builtin.hidden_velocity:PendulumHidden",
    {
        "sac": {
            "total_steps": 20_000,
            "num_envs": 8,
            "num_steps": 2,
            "recurrent": "gru",
            "rnn_size": 32,
            "sequence_length": 16,
            "burn_in": 8,
            "utd_ratio": 0.25,
            "batch_size": 256,
            "learning_rate": 2e-3,
            "gamma": 0.95,
            "tau": 0.02,
            "hidden": (64, 64),
            "normalize_observation": False,
        },
    },
)
