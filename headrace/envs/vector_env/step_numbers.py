"""A wrapper that lets rewards and flags through which are numbers."""

from __future__ import annotations

from typing import Any

import gymnasium

from headrace.envs.gym.columns import outcome_of


class StepNumbers(gymnasium.Wrapper):
    """Gives rewards as floats and flags as bools. Raises TypeError for anything else: arrays would take text for
    the number that it spells, "False" for true, and None for NaN or false."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step of the environment."""
        return outcome_of(self.env.step(action))
