"""The worlds that come with Headrace, and the settings with which to train on each.

Settings were found by random search for the shortest training until three checks in a row reach the target, on seeds
from 1000; benchmarks/solve.py reports seeds 0 to 9. total_steps is what the linear schedule falls over.
"""

from __future__ import annotations

from headrace.envs.registry import register

register(
    "CartPole-v1",
    "headrace.envs.cartpole:CartPole",
    {
        "ppo": {
            "total_steps": 500_000,
            "target_return": 475.0,
            "num_envs": 128,
            "num_steps": 16,
            "epochs": 20,
            "minibatch_size": 128,
            "learning_rate": 3e-3,
            "gamma": 0.98,
            "entropy_coef": 0.001,
            "clip": 0.3,
            "max_grad_norm": 5.0,
            "hidden": (128,),
            "normalize_observation": False,
            "normalize_return": False,
        },
        "a2c": {"total_steps": 500_000, "target_return": 475.0, "num_envs": 32},
        "reinforce": {"total_steps": 500_000, "target_return": 475.0, "num_envs": 32},
        "trpo": {"total_steps": 500_000, "target_return": 475.0, "num_envs": 32},
    },
)
register(
    "Acrobot-v1",
    "headrace.envs.acrobot:Acrobot",
    {
        "ppo": {
            "total_steps": 600_000,
            "target_return": -100.0,
            "num_envs": 64,
            "num_steps": 16,
            "epochs": 4,
            "minibatch_size": 128,
            "learning_rate": 1e-3,
            "schedule": "linear",
            "gae_lambda": 0.98,
            "clip": 0.1,
            "max_grad_norm": 5.0,
            "normalize_observation": False,
        },
        "a2c": {"total_steps": 800_000, "target_return": -100.0, "num_envs": 64, "normalize_advantage": True},
        "trpo": {"total_steps": 600_000, "target_return": -100.0, "num_envs": 32},
    },
)
register(
    "Pendulum-v1",
    "headrace.envs.pendulum:Pendulum",
    {
        "ppo": {
            "total_steps": 600_000,
            "target_return": -200.0,
            "num_envs": 64,
            "num_steps": 100,
            "epochs": 4,
            "minibatch_size": 128,
            "learning_rate": 3e-3,
            "schedule": "linear",
            "gamma": 0.9,
            "entropy_coef": 0.001,
            "activation": "relu",
            "normalize_observation": False,
        },
        "sac": {
            "total_steps": 10_000,
            "num_envs": 8,
            "update_ratio": 0.5,
            "batch_size": 128,
            "learning_starts": 500,
            "learning_rate": 3e-3,
            "gamma": 0.95,
            "tau": 0.02,
            "hidden": (64, 64),
        },
        "td3": {
            "total_steps": 15_000,
            "num_envs": 8,
            "update_ratio": 0.5,
            "batch_size": 128,
            "learning_starts": 500,
            "learning_rate": 3e-3,
            "gamma": 0.95,
            "tau": 0.02,
            "exploration": 0.2,
            "hidden": (64, 64),
        },
        "ddpg": {
            "total_steps": 20_000,
            "num_envs": 8,
            "update_ratio": 0.5,
            "batch_size": 128,
            "learning_starts": 500,
            "gamma": 0.95,
            "tau": 0.01,
            "exploration": 0.2,
            "hidden": (64, 64),
        },
        "trpo": {"total_steps": 1_000_000, "target_return": -200.0, "num_envs": 32, "gamma": 0.9},
    },
)
register(
    "MountainCar-v0",
    "headrace.envs.mountain_car:MountainCar",
    {
        "ppo": {
            "total_steps": 3_000_000,
            "target_return": -120.0,
            "num_envs": 64,
            "num_steps": 256,
            "epochs": 10,
            "minibatch_size": 256,
            "learning_rate": 3e-3,
            "gae_lambda": 1.0,
            "hidden": (32, 32),
            "activation": "relu",
            "normalize_return": False,
        }
    },
)
register(
    "MountainCarContinuous-v0",
    "headrace.envs.mountain_car_continuous:MountainCarContinuous",
    {
        "ppo": {
            "total_steps": 1_500_000,
            "target_return": 85.0,
            "num_envs": 128,
            "num_steps": 256,
            "epochs": 10,
            "minibatch_size": 512,
            "learning_rate": 3e-3,
            "schedule": "linear",
            "gamma": 0.9999,
            "gae_lambda": 1.0,
            "entropy_coef": 0.05,
            "clip": 0.3,
            "max_grad_norm": 5.0,
            "hidden": (32, 32),
            "activation": "relu",
        }
    },
)
register(
    "Catch",
    "headrace.envs.catch:Catch",
    {
        "ppo": {
            "total_steps": 300_000,
            "target_return": 0.95,
            "num_envs": 256,
            "num_steps": 32,
            "epochs": 4,
            "minibatch_size": 256,
            "learning_rate": 2e-3,
            "schedule": "linear",
            "gamma": 0.98,
            "entropy_coef": 0.01,
            "hidden": (64,),
            "activation": "relu",
            "normalize_observation": False,
            "normalize_return": False,
        }
    },
)
register(
    "GridWorld",
    "headrace.envs.grid_world:GridWorld",
    {
        "ppo": {
            "total_steps": 3_000_000,
            "num_envs": 128,
            "num_steps": 64,
            "epochs": 4,
            "minibatch_size": 2048,
            "learning_rate": 1e-3,
            "schedule": "linear",
            "gamma": 0.95,
            "entropy_coef": 0.003,
            "hidden": (128, 64),
            "activation": "relu",
            "normalize_observation": False,
        }
    },
)
