"""A wrapper between one environment and a vector of them."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import gymnasium

from headrace.core.stopping import close
from headrace.core.types import Json
from headrace.envs.gym.attributes import set_attribute
from headrace.envs.gym.columns import copied, outcome_of
from headrace.envs.gym.own_rewards import watched


class StepNumbers(gymnasium.Wrapper):
    """Gives rewards as floats, flags as bools, and copies of observations and of the infos of final steps: a vector
    keeps them while other environments are stepped, or the same one is reset, which may write into the same arrays.

    statistics: whether the info of an episode's last step has `episode`, as Gymnasium's RecordEpisodeStatistics gives
    it, with the return of the environment's own rewards; one that is there already stays.
    Raises TypeError for rewards and flags that are anything else: arrays would take text for the number that it spells,
    "False" for true, and None for NaN or false."""

    def __init__(self, env: gymnasium.Env, statistics: bool = False) -> None:
        super().__init__(env)
        self._statistics = statistics
        self._own_rewards = watched(env) if statistics else None
        self._return, self._length, self._began = 0.0, 0, 0.0

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[Any, Json]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        if self._own_rewards is not None:
            self._own_rewards.take(0.0)  # those of steps that wrappers take before an episode
        self._return, self._length, self._began = 0.0, 0, perf_counter()
        return copied(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Json]:
        """A step of the environment."""
        observation, reward, terminated, truncated, info = outcome_of(self.env.step(action))
        if self._statistics:
            self._return += reward if self._own_rewards is None else self._own_rewards.take(reward)
            self._length += 1
            if (terminated or truncated) and "episode" not in info:
                seconds = round(perf_counter() - self._began, 6)
                info = {**info, "episode": {"r": self._return, "l": self._length, "t": seconds}}
        return copied(observation), reward, terminated, truncated, copied(info) if terminated or truncated else info

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the environment: this wrapper has none."""
        if force:
            set_attribute(self.env, name, value)
        return force or self.env.set_wrapper_attr(name, value, force=False)

    def close(self) -> None:
        """Close the environment. What that raises is a warning: a vector closes one after the other."""
        close(self.env, f"an environment {self.env}")
