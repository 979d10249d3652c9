"""What callbacks and logs read of environments that are stepped in Python: the infos of their steps, and successes."""

from __future__ import annotations

from typing import Any

import gymnasium

from headrace.core.types import Json
from headrace.envs.base import Env
from headrace.envs.gym.attributes import set_attribute
from headrace.envs.gym.columns import as_number, copied, outcome_of


class Watched(gymnasium.Wrapper):
    """Keeps the info of the last step, and info["is_success"] of each episode's last step since these were taken.

    closes: whether closing it closes the environment, which is not so for one that others hold.
    """

    headrace_logs = ("is_success",)  # infos that are read

    def __init__(self, env: gymnasium.Env, closes: bool = True) -> None:
        super().__init__(env)
        self._closes = closes
        self.headrace_info: Json = {}
        self.headrace_successes: list[float] = []

    def reset(self, **how: Any) -> tuple[Any, Json]:
        """Begin an episode, with the arguments that are given alone: some environments know no options."""
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
        """Set an attribute of the environment: this wrapper has none."""
        if force:
            set_attribute(self.env, name, value)
        return force or self.env.set_wrapper_attr(name, value, force=False)

    def close(self) -> None:
        """Close the environment, where it is not the user's."""
        if self._closes:
            self.env.close()


def success_of(info: Json) -> list[float]:
    """info["is_success"], where there is one."""
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
    """The infos of the last step of a training's environments; empty ones of those that are compiled."""
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
    """The env_argument.OtherVecEnv that a training steps; None where it steps other environments."""
    vector = getattr(getattr(env, "source", None), "env", None)
    return vector if hasattr(vector, "successes") else None
