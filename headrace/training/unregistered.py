"""Settings for environments that nobody has registered any for, and that are stepped one by one in Python.

The defaults of algorithms are for compiled environments, of which 64 cost little more than one. In Python a step costs
the same whatever the number, so more environments only make rollouts larger, and updates fewer: PPO's defaults took 24
updates in 200,000 steps. Here a rollout has the 2,048 steps of the PPO paper, but less where few steps are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from typing import Any

from headrace import envs
from headrace.core.cores import cores
from headrace.core.types import Settings
from headrace.envs.sources import is_kernel
from headrace.training.config import TrainConfig

NUM_ENVS = 8  # one process steps them as fast as one, and a rollout is of several episodes
MOST_ROWS, LEAST_ROWS = 2048, 512  # of a rollout: the first of Schulman et al. 2017, table 3
UPDATES = 100  # that a training has at least, where rollouts are not shorter than LEAST_ROWS
# Schulman et al. 2017 (arXiv:1707.06347), table 3; PPO's own defaults are for larger rollouts
LEARNING: Mapping[str, Settings] = {"ppo": {"epochs": 10, "minibatch_size": 64}, "trpo": {}}
ONE_BY_ONE = ("auto", "inline", "workers")


def settings_for(source: envs.Source, algorithm: str, given: Settings) -> Settings:
    """Settings to train with on an environment: those that are registered, or those of this module.

    algorithm: its name. given: settings given by the user, of which some follow from others.
    """
    registered = envs.spec(source).defaults.get(algorithm)
    if registered is not None or not _one_by_one(source, given.get("backend", "auto")):
        return registered or {}
    return unregistered(algorithm, given)


def unregistered(algorithm: str, given: Settings) -> Settings:
    """Settings for an environment in Python, on which an algorithm trains for the first time."""
    processes = max(_number(given.get(name)) for name in ("workers", "actors", "learners"))
    num_envs = ceil(NUM_ENVS / processes) * processes  # so that each has as many
    if algorithm not in LEARNING:
        return {"num_envs": num_envs}
    total = given.get("total_steps", TrainConfig.total_steps)
    rows = MOST_ROWS if total is None else 2 ** int(log2(max(total / UPDATES, LEAST_ROWS)))
    return {"num_envs": num_envs, "num_steps": max(1, min(rows, MOST_ROWS) // num_envs), **LEARNING[algorithm]}


def _one_by_one(source: envs.Source, backend: str) -> bool:
    """Whether environments are neither compiled nor a vector."""
    if backend not in ONE_BY_ONE:
        return False
    compiled = is_kernel(envs.entry_of(source)) and backend == "auto"
    return not compiled and not envs.comes_as_vector(source)


def _number(processes: Any) -> int:
    """How many they are at most; wrong ones are refused elsewhere."""
    return cores() if processes == "auto" else processes if isinstance(processes, int) and processes > 0 else 1
