"""A wrapper that lets rewards and flags through which are numbers."""

from __future__ import annotations

from typing import Any

import gymnasium

from headrace.envs.gym.columns import as_number


class StepNumbers(gymnasium.Wrapper):
    """Gives rewards as floats and flags as bools. Raises TypeError for what is no number: arrays take text for the
    number that it spells, "False" for true, and None for NaN or false."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step of the environment."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        flags = as_number(terminated, "terminated") != 0, as_number(truncated, "truncated") != 0
        return observation, as_number(reward, "reward"), *flags, info
