"""The 40 combinations of generality.py: an algorithm, its network, its minibatches and its spaces."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space

VECTOR, CHOICES = Box(-1, 1, (8,)), Discrete(4)
BODY, JOINTS = Box(-np.inf, np.inf, (17,)), Box(-1, 1, (6,))  # HalfCheetah's
SCREEN = Box(0, 255, (84, 84, 4), np.uint8)
PARTS = Dict({"body": VECTOR, "door": Discrete(5), "lamps": MultiBinary(4)})


class Case(NamedTuple):
    """Case that is measured. steps, envs: of a rollout; rows of a replay buffer are 64 times as many.

    agents: columns that an environment has, one for each of its agents, all with one policy.
    """

    name: str
    algorithm: str
    settings: dict[str, Any]
    observation: Space = VECTOR
    action: Space = CHOICES
    steps: int = 64
    envs: int = 32
    agents: int = 1


def _ppo(name: str, observation: Space = VECTOR, action: Space = CHOICES, **settings: Any) -> Case:
    shape = {part: settings.pop(part) for part in ("steps", "envs", "agents") if part in settings}
    return Case(f"ppo {name}", "ppo", {"epochs": 2, **settings}, observation, action, **shape)


def _off(algorithm: str, name: str, observation: Space = BODY, action: Space = JOINTS, **settings: Any) -> Case:
    return Case(f"{algorithm} {name}", algorithm, settings, observation, action, 4, 16)


CASES = (
    _ppo("64, 64 tanh"),
    _ppo("32, 32 tanh", hidden=(32, 32)),
    _ppo("33, 17 relu", hidden=(33, 17), activation="relu"),
    _ppo("128, 128, 128, 128 tanh", hidden=(128,) * 4),
    _ppo("256, 256 tanh", hidden=(256, 256)),
    _ppo("400, 300 relu", hidden=(400, 300), activation="relu"),
    _ppo("512, 512 tanh", hidden=(512, 512)),
    _ppo("512, 256, 128 elu", BODY, JOINTS, hidden=(512, 256, 128), activation="elu", minibatch_size=1024),
    _ppo("64, 64 elu", activation="elu"),
    _ppo("64, 64 gelu", activation="gelu"),
    _ppo("128, 128 silu, layer norm", hidden=(128, 128), activation="silu", layer_norm=True),
    _ppo("shared 128, 128 relu", hidden=(128, 128), activation="relu", shared=True),
    _ppo("64, 64, Box actions", BODY, JOINTS, minibatch_size=64),
    _ppo("64, 64, squashed actions", BODY, JOINTS, distribution="squashed"),
    _ppo("64, 64, MultiDiscrete actions", action=MultiDiscrete([3, 4, 2])),
    _ppo("64, 64, MultiBinary actions", action=MultiBinary(5)),
    _ppo("64, 64, minibatches of 37", minibatch_size=37),
    _ppo("64, 64, minibatches of 2048", minibatch_size=2048),
    _ppo("64, 64, MultiBinary observations", MultiBinary(12)),
    _ppo("64, 64, Discrete observations", Discrete(16)),
    _ppo("64, 64, Dict observations", PARTS),
    _ppo("64, 64, 5 agents", agents=5, envs=8),
    _ppo("GRU 64", recurrent="gru", hidden=(64,), sequence_length=16),
    _ppo("LSTM 128, whole rollouts", recurrent="lstm", rnn_size=128, hidden=(64,), minibatch_size=512),
    _ppo("images, Nature's network", SCREEN, images="nature", hidden=(), shared=True, steps=16, envs=8, epochs=1),
    Case("a2c 64, 64 tanh", "a2c", {}, steps=8),
    Case("a2c shared 256, 256 relu", "a2c", {"hidden": (256, 256), "activation": "relu", "shared": True}, steps=8),
    Case("a2c GRU 64", "a2c", {"recurrent": "gru", "hidden": (64,)}, steps=8),
    Case("reinforce 64, 64 tanh", "reinforce", {}),
    Case("pqn 128, 128 relu, layer norm", "pqn", {}),
    Case("pqn 64, 64 tanh", "pqn", {"hidden": (64, 64), "activation": "tanh", "layer_norm": False}),
    Case("trpo 64, 64 tanh", "trpo", {}),
    _off("dqn", "128, 128 relu", VECTOR, CHOICES),
    _off("dqn", "dueling 128, 128 relu", VECTOR, CHOICES, dueling=True),
    _off("dqn", "prioritized 64, 64 gelu", VECTOR, CHOICES, prioritized=True, hidden=(64, 64), activation="gelu"),
    _off("dqn", "layer norm 256, 256 relu", VECTOR, CHOICES, layer_norm=True, hidden=(256, 256)),
    _off("sac", "256, 256 relu"),
    _off("sac", "64, 64 elu, batches of 100", hidden=(64, 64), activation="elu", batch_size=100),
    _off("td3", "400, 300 relu, batches of 100", hidden=(400, 300), batch_size=100),
    _off("ddpg", "100, 100 tanh", hidden=(100, 100), activation="tanh"),
)
RAW = {"normalize_observation": False, "normalize_return": False}  # which the hand-written loop has not either
