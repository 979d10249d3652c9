"""A wrapper between one environment and a vector of them."""

from __future__ import annotations

from typing import Any

import gymnasium

from headrace.core.types import Json
from headrace.envs.gym.attributes import set_attribute
from headrace.envs.gym.columns import copied, outcome_of


class StepNumbers(gymnasium.Wrapper):
    """Gives rewards as floats, flags as bools, and copies of observations and of the infos of final steps: a vector
    keeps them while other environments are stepped, or the same one is reset, which may write into the same arrays.

    Raises TypeError for rewards and flags that are anything else: arrays would take text for the number that it spells,
    "False" for true, and None for NaN or false."""

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[Any, Json]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return copied(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Json]:
        """A step of the environment."""
        observation, reward, terminated, truncated, info = outcome_of(self.env.step(action))
        return copied(observation), reward, terminated, truncated, copied(info) if terminated or truncated else info

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the environment: this wrapper has none."""
        if force:
            set_attribute(self.env, name, value)
        return force or self.env.set_wrapper_attr(name, value, force=False)
