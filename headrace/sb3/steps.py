"""What callbacks that look at each step are given, under the names of Stable-Baselines3's loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from torch import Tensor

from headrace.core.stopping import Stopped
from headrace.core.types import Json
from headrace.data.flat_dict import FlatDict
from headrace.data.rollout import Rollout
from headrace.envs.base import Env, EnvWrapper
from headrace.sb3.watched import infos


class SteppedEnv(EnvWrapper):
    """An Env that calls a function after each step: after(rollout, t)."""

    def __init__(self, env: Env, after: Callable[[Rollout, int], bool]) -> None:
        super().__init__(env)
        self.after = after

    def step(self, rollout: Rollout, t: int) -> None:
        """Raises Stopped where the function returns False."""
        self.env.step(rollout, t)
        if not self.after(rollout, t):
            raise Stopped


class Steps:
    """The locals of each step, with the infos of the environments and the statistics of episodes.

    env: of the training. begins: whether all environments begin an episode; others have had steps that were not seen,
    and the statistics of their first episodes come with the step that resets them.
    """

    def __init__(self, env: Env, begins: bool) -> None:
        self.env = env
        self._returns, self._lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, int)
        self._known = np.full(env.num_envs, begins)

    def locals_of(self, rollout: Rollout, t: int) -> dict[str, Any]:
        """What a callback finds after step t. Environments that the step resets have no info, and the reward 0."""
        valid, reward, terminated, truncated = (
            _array(column)
            for column in (rollout.valid[t], rollout.reward[t], rollout.terminated[t], rollout.truncated[t])
        )
        self._returns += reward
        self._lengths += valid
        done, seen = terminated | truncated, observations(self.env.observation_space, rollout.observation[t + 1])
        each = [info if stepped else {} for info, stepped in zip(infos(self.env), valid, strict=True)]
        for index, info in enumerate(each):
            info["TimeLimit.truncated"] = bool(truncated[index] and not terminated[index])
            if done[index]:
                info["terminal_observation"] = _one(seen, index)
                if self._known[index]:
                    info.setdefault("episode", self._episode(self._returns[index], self._lengths[index]))
            elif not valid[index]:
                self._begin(index, info, rollout.episode_return[t, index].item(), int(rollout.episode_length[t, index]))
        action, space = _array(rollout.action[t]), self.env.action_space
        found = {"rewards": reward, "dones": done, "infos": each, "actions": action, "new_obs": seen, "n_steps": t}
        found["clipped_actions"] = np.clip(action, space.low, space.high) if isinstance(space, Box) else action
        for name, column in (("values", "value"), ("log_probs", "log_prob")):
            if column in rollout.columns:
                found[name] = getattr(rollout, column)[t].clone()
        return found

    def _begin(self, index: int, info: Json, total: float, length: int) -> None:
        """An episode begins. total, length: of the one before, 0 where there was none."""
        if length and not self._known[index]:
            info["episode"] = self._episode(total, length)
        self._known[index], self._returns[index], self._lengths[index] = True, 0.0, 0

    def _episode(self, total: float, length: int) -> Json:
        return {"r": float(total), "l": int(length)}


def observations(space: Space, column: Any) -> Any:
    """A row of observations as arrays [N, ...] in the space's dtype, by name for a Dict."""
    if isinstance(space, FlatDict):
        return {name: observations(space.members[name], part) for name, part in space.split(column).items()}
    if isinstance(space, Dict):
        return {name: observations(member, getattr(column, name)) for name, member in space.spaces.items()}
    values = _array(column)
    return values.reshape(len(values), *(space.shape or ())).astype(space.dtype)


def _array(column: Tensor) -> np.ndarray:
    return column.numpy(force=True).copy()


def _one(seen: Any, index: int) -> Any:
    """The observation of one environment."""
    return {name: part[index] for name, part in seen.items()} if isinstance(seen, dict) else seen[index]
