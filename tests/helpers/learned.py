"""Algorithms that have learned once, and what they learn next."""

import dataclasses

import torch

from headrace.algorithms.base import algorithm_classes, is_offline
from headrace.data.flat_action import FlatAction, flat_action
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, Tuple, action_column, env_columns

VECTOR, FORCES, ENVS = Box(-3, 3, (5,)), Box(-1, 1, (2,)), 4
REPLAY = {"buffer_size": 500, "learning_starts": 8, "batch_size": 16, "utd_ratio": 0.25}


def made(name, seed=0, **own):
    """An algorithm that has learned once, and a rollout of random numbers, which are its data where it learns from
    recorded data alone."""
    kind, config = algorithm_classes(name)
    own = {"gradient_steps": 4, **own} if is_offline(kind) else own
    known = {field.name for field in dataclasses.fields(config)}
    settings = {"num_steps": 8, "hidden": (16, 16), "critic_hidden": (16,), **REPLAY}
    settings |= {"minibatch_size": 16, "normalize_observation": False, **own}
    config = config(**{key: value for key, value in settings.items() if key in known})
    spaces = {(Box,): FORCES, (FlatAction,): flat_action(Tuple((Discrete(2), FORCES)))}
    action_space = spaces.get(kind.actions, Discrete(3))
    algorithm = kind.build(config, VECTOR, action_space, seed, "cpu")
    columns = env_columns(VECTOR) | {"action": action_column(action_space)} | algorithm.columns()
    steps, envs = (32, 1) if is_offline(kind) else (config.num_steps, ENVS)
    rollout, generator = Rollout(steps, envs, columns), torch.Generator().manual_seed(seed)
    for column in ("observation", "reward", "value", "log_prob"):
        if column in rollout.columns:
            values = getattr(rollout, column)
            values.copy_(torch.randn(values.shape, generator=generator))
    rollout.valid.fill_(True)
    rollout.action.copy_(torch.randint(0, 2, rollout.action.shape, generator=generator))
    algorithm.prepare(rollout)
    if is_offline(kind):
        algorithm.hold(rollout, steps)
        algorithm.replay.append(rollout)
    algorithm.update(rollout, 0.0)
    return algorithm, rollout


def weights(algorithm):
    return [p.detach().clone() for p in algorithm.policy.parameters()]


def updated(algorithm, rollout, times=2):
    for _ in range(times):
        algorithm.update(rollout, 0.0)
    return weights(algorithm)
