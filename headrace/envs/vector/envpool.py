"""EnvPool's tasks as a Source of headrace.envs.vector.adapter. Weng et al. 2022, arXiv:2206.10558."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core.rng import env_seed
from headrace.core.text import did_you_mean
from headrace.data.spaces import Sample
from headrace.envs.gym.columns import action_caster
from headrace.envs.sources import ENVPOOL
from headrace.envs.vector.adapter import SEEDS, Autoreset, Outcome, threads


class EnvPoolSource:
    """A task of EnvPool. Its environments are made at reset(), because EnvPool takes the seed when it makes them.

    batch_size: the number of environments that are returned at a time in asynchronous mode, see
    headrace.envs.vector.envpool_async; here all of them step together. options: of envpool.make.
    Raises ImportError where EnvPool is not installed, ValueError for a task it does not have, or a batch_size that is
    not between 1 and num_envs.
    """

    device = torch.device("cpu")
    autoreset = Autoreset.NEXT_STEP
    resets_some = True

    def __init__(self, task: str, num_envs: int, batch_size: int | None = None, **options: Any) -> None:
        envpool = _envpool()
        if task not in envpool.list_all_envs():
            hint = did_you_mean(task, envpool.list_all_envs()) or "; envpool.list_all_envs() lists those it has"
            raise ValueError(f"EnvPool has no task {task!r}{hint}")
        if batch_size is not None and not 1 <= batch_size <= num_envs:
            raise ValueError(f"batch_size must be between 1 and num_envs = {num_envs}, got {batch_size}")
        self.name, self.num_envs, self.task, self.batch_size = ENVPOOL + task, num_envs, task, batch_size
        self.options = {"num_threads": threads(num_envs), **options}
        spec = envpool.make_spec(task, num_envs=num_envs, **self.options)
        self.observation_space = spec.gymnasium_observation_space
        self.action_space = spec.gymnasium_action_space
        self.max_steps: int | None = spec.config.max_episode_steps
        self.pool: Any = None
        self._actions = action_caster(self.action_space)
        self._make: Callable[..., Any] = envpool.make_gymnasium
        self._all = np.arange(num_envs, dtype=np.int32)

    def make(self, seed: int, spares: int = 0, batch_size: int | None = None, first: int = 0) -> None:
        """Make the pool again, with `spares` more environments than num_envs. batch_size: number of ready environments
        that recv() returns; None for all, in their order. first: see Source.reset()."""
        self.close()
        number = self.num_envs + spares
        made = {"num_envs": number, "batch_size": batch_size or number, "seed": env_seed(seed, 0) % SEEDS + first}
        self.pool = self._make(self.task, **made, **self.options)

    def reset(self, seed: int | None, first: int = 0) -> Sample:
        if seed is not None or self.pool is None:
            self.make(seed or 0, first=first)
        self.pool.async_reset()
        return self.pool.recv(reset=True)[0]

    def reset_some(self, mask: Tensor) -> Sample:
        (envs,) = np.nonzero(mask.numpy())
        some, info = self.pool.reset(envs.astype(np.int32))
        return _scattered(some, info["env_id"], self.num_envs)

    def step(self, action: Tensor) -> Outcome:
        self.pool.send(self.actions(action), self._all)
        observation, reward, terminated, truncated, infos = self.pool.recv()
        return Outcome(observation, reward, terminated, truncated, infos=infos)

    def actions(self, action: Tensor) -> np.ndarray:
        """Actions of some environments, [k, ...], in the dtype of the action space."""
        return np.ascontiguousarray(self._actions(action.numpy()))

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool = None


def _scattered(some: Sample, envs: np.ndarray, num_envs: int) -> Sample:
    """Observations of some environments at their places among all, member by member for a Dict."""
    if isinstance(some, dict):
        return {key: _scattered(member, envs, num_envs) for key, member in some.items()}
    every = np.zeros((num_envs, *some.shape[1:]), some.dtype)
    every[envs] = some
    return every


def _envpool() -> ModuleType:
    try:
        import envpool
    except ImportError as error:
        raise ImportError('EnvPool is not installed: pip install "headrace[envpool]"') from error
    return envpool
