"""Values of environments in Python for callbacks and logs: infos, successes, and the locals of each step under the
names of Stable-Baselines3's loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space
from torch import Tensor

from headrace.core.stopping import Stopped
from headrace.core.types import Json
from headrace.data.flat_dict import FlatDict
from headrace.data.rollout import Rollout
from headrace.envs.base import Env, EnvWrapper
from headrace.envs.gym.attributes import set_attribute
from headrace.envs.gym.columns import as_number, copied, outcome_of


class SteppedEnv(EnvWrapper):
    """An Env that calls a function after each step: after(rollout, t)."""

    def __init__(self, env: Env, after: Callable[[Rollout, int], bool]) -> None:
        super().__init__(env)
        self.after = after

    def step(self, rollout: Rollout, t: int) -> None:
        """Take a step. Raises Stopped if the function returns False."""
        self.env.step(rollout, t)
        if not self.after(rollout, t):
            raise Stopped


class Steps:
    """The locals of each step, with the infos of the environments and the statistics of episodes.

    env: the training's. begins: whether all environments begin an episode. Otherwise earlier steps are unknown, and the
    statistics of first episodes come with the step that resets them.
    """

    def __init__(self, env: Env, begins: bool) -> None:
        self.env = env
        self._returns, self._lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, int)
        self._known = np.full(env.num_envs, begins)

    def locals_of(self, rollout: Rollout, t: int) -> dict[str, Any]:
        """The locals for callbacks after step t. Environments that the step resets have no info, and the reward 0."""
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
        """Begin an episode. total, length: return and length of the previous one, 0 without one."""
        if length and not self._known[index]:
            info["episode"] = self._episode(total, length)
        self._known[index], self._returns[index], self._lengths[index] = True, 0.0, 0

    def _episode(self, total: float, length: int) -> Json:
        return {"r": float(total), "l": int(length)}


def observations(space: Space, column: Any) -> Any:
    """Convert a row of observations to arrays [N, ...] in the space's dtype, by name for a Dict."""
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


class Watched(gymnasium.Wrapper):
    """Keeps the info of the last step, and info["is_success"] of each episode's last step since they were last read.

    closes: whether closing it closes the environment; False for an environment that the user owns.
    """

    headrace_logs = ("is_success",)  # names of infos that are read

    def __init__(self, env: gymnasium.Env, closes: bool = True) -> None:
        super().__init__(env)
        self._closes = closes
        self.headrace_info: Json = {}
        self.headrace_successes: list[float] = []

    def reset(self, **how: Any) -> tuple[Any, Json]:
        """Begin an episode, passing on only the given arguments, since some environments do not take options."""
        self.headrace_info = {}
        return self.env.reset(**how)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Json]:
        """A step."""
        observation, reward, terminated, truncated, info = outcome_of(self.env.step(action))
        self.headrace_info = info
        if terminated or truncated:
            self.headrace_successes += success_of(info)
        return observation, reward, terminated, truncated, info

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the environment, since this wrapper has none."""
        if force:
            set_attribute(self.env, name, value)
        return force or self.env.set_wrapper_attr(name, value, force=False)

    def close(self) -> None:
        """Close the environment, unless it is the user's."""
        if self._closes:
            self.env.close()


def success_of(info: Json) -> list[float]:
    """info["is_success"] as a list, empty without one."""
    return [as_number(found, "info['is_success']")] if (found := info.get("is_success")) is not None else []


def info_of(env: gymnasium.Env) -> Json:
    """The info of a Watched environment's last step."""
    return dict(copied(env.get_wrapper_attr("headrace_info")))  # environments may write into the same arrays again


def _take_successes(env: gymnasium.Env) -> list[float]:
    watched: list[float] = env.get_wrapper_attr("headrace_successes")
    taken = [*watched]
    watched.clear()
    return taken


def infos(env: Env) -> list[Json]:
    """Infos of the last step of a training's environments; empty for compiled ones."""
    if env.backend in ("inline", "workers"):
        return env.apply(info_of)
    vector = vector_of(env)
    return [{} for _ in range(env.num_envs)] if vector is None else [dict(copied(info)) for info in vector.infos]


def successes(env: Env) -> list[float]:
    """info["is_success"] of the episodes that ended since the last call."""
    if env.backend in ("inline", "workers"):
        return [value for found in env.apply(_take_successes) for value in found]
    vector = vector_of(env)
    if vector is None:
        return []
    taken, vector.successes = vector.successes, []
    return taken  # type: ignore[no-any-return]


def vector_of(env: Env) -> Any:
    """The env_argument.OtherVecEnv that a training steps; None for other environments."""
    vector = getattr(getattr(env, "source", None), "env", None)
    return vector if hasattr(vector, "successes") else None
