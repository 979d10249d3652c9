"""EnvPool's tasks as headrace.envs.vector.VectorAdapter asks for them. Weng et al. 2022, arXiv:2206.10558."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.envs.inline import action_caster, env_seed
from headrace.envs.registry import nearest
from headrace.envs.sources import ENVPOOL
from headrace.envs.vector import SEEDS, Autoreset, Outcome, threads


class EnvPoolSource:
    """A task of EnvPool, whose worlds are made at reset(), because they take their seed then alone.

    options: as envpool.make takes them. With a batch_size its threads hand over so many worlds as soon as they are
    ready, while others still run; a step ends when all are there. Raises ImportError where it is not installed,
    ValueError for a task it does not have, or a batch_size that does not divide num_envs.
    """

    device = torch.device("cpu")
    autoreset = Autoreset.NEXT_STEP

    def __init__(self, task: str, num_envs: int, **options: Any) -> None:
        envpool = _envpool()
        if task not in envpool.list_all_envs():
            hint = nearest(task, envpool.list_all_envs()) or ": envpool.list_all_envs() lists those it has"
            raise ValueError(f"EnvPool has no task {task!r}{hint}")
        self.name, self.num_envs, self.task = ENVPOOL + task, num_envs, task
        self.options = {"num_threads": threads(num_envs), "batch_size": num_envs, **options}
        self.batch_size = self.options["batch_size"] or num_envs
        if num_envs % self.batch_size:
            raise ValueError(f"batch_size is {self.batch_size}: let it divide num_envs, {num_envs}")
        spec = envpool.make_spec(task, num_envs=num_envs, **self.options)
        self.observation_space = spec.gymnasium_observation_space
        self.action_space = spec.gymnasium_action_space
        self.max_steps: int | None = spec.config.max_episode_steps
        self.resets_some = self.batch_size == num_envs
        self._actions = action_caster(self.action_space)
        self._make: Callable[..., Any] = envpool.make_gymnasium
        self._pool: Any = None
        self._worlds = np.arange(num_envs, dtype=np.int32)

    def reset(self, seed: int | None) -> Any:
        if seed is not None or self._pool is None:
            self.close()
            seed = env_seed(seed or 0, 0) % SEEDS
            self._pool = self._make(self.task, num_envs=self.num_envs, seed=seed, **self.options)
        self._pool.async_reset()
        return self._received(reset=True)[0]

    def reset_some(self, mask: Tensor) -> Any:
        (worlds,) = np.nonzero(mask.numpy())
        some, info = self._pool.reset(worlds.astype(np.int32))
        return _scattered(some, info["env_id"], self.num_envs)

    def step(self, action: Tensor) -> Outcome:
        self._pool.send(np.ascontiguousarray(self._actions(action.numpy())), self._worlds)
        return Outcome(*self._received(reset=False)[:4])

    def _received(self, reset: bool) -> list[Any]:
        """What recv() gives, of all worlds in their order."""
        parts = [self._pool.recv(reset=reset) for _ in range(self.num_envs // self.batch_size)]
        worlds = np.concatenate([part[-1]["env_id"] for part in parts])
        if len(parts) == 1 and np.array_equal(worlds, self._worlds):
            return list(parts[0])
        return [_ordered(column, np.argsort(worlds)) for column in zip(*(part[:-1] for part in parts), strict=True)]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _scattered(some: Any, worlds: np.ndarray, num_envs: int) -> Any:
    """Observations of some worlds at their places among all, member by member for a Dict."""
    if isinstance(some, dict):
        return {key: _scattered(member, worlds, num_envs) for key, member in some.items()}
    every = np.zeros((num_envs, *some.shape[1:]), some.dtype)
    every[worlds] = some
    return every


def _ordered(parts: tuple[Any, ...], order: np.ndarray) -> Any:
    """Batches one after another, then in an order, member by member for a Dict."""
    if isinstance(parts[0], dict):
        return {key: _ordered(tuple(part[key] for part in parts), order) for key in parts[0]}
    return np.concatenate(parts)[order]


def _envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise ImportError('EnvPool is not installed: pip install "headrace[envpool]"') from error
    return envpool
