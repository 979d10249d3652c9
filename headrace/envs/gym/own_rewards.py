"""An environment's own rewards, before wrappers change them, for reported returns.

A wrapper that normalises, clips or shapes rewards changes the learning signal. A return counted outside of it is not
comparable: Gymnasium's NormalizeReward turns Pendulum's -1,235 into -12.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from headrace.core.packages import of_headrace
from headrace.envs.gym.columns import as_number

KEEP_REWARDS = "gymnasium.wrappers.common"  # module whose wrappers leave rewards as they are


class OwnRewards(gymnasium.Wrapper):
    """A wrapper inside the user's wrappers that adds up the environment's rewards."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._sum, self._steps = 0.0, 0

    def step(self, action: Any) -> Any:
        """A step of the environment."""
        outcome = self.env.step(action)
        try:
            self._sum += as_number(outcome[1], "reward")
            self._steps += 1
        except (TypeError, IndexError):  # a vector of rewards, which a wrapper makes a number of
            self._steps = 0
        return outcome

    def take(self, reward: float) -> float:
        """The sum of rewards since the last call. Without a step since, `reward`, that of the outermost wrapper."""
        total = self._sum if self._steps else reward
        self._sum, self._steps = 0.0, 0
        return total


def watched(env: gymnasium.Env) -> OwnRewards | None:
    """Put OwnRewards inside the wrappers of an environment; None if no wrapper changes rewards."""
    layer, changes = env, False
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, OwnRewards):
            return layer
        changes = changes or _may_change_rewards(layer)
        inside = layer.env
        if not isinstance(inside, gymnasium.Wrapper):
            if not changes or not isinstance(inside, gymnasium.Env):
                return None
            layer.env = OwnRewards(inside)
            return layer.env
        layer = inside
    return None


def _may_change_rewards(layer: gymnasium.Wrapper) -> bool:
    kind = type(layer)
    if of_headrace(kind) or kind.__module__ == KEEP_REWARDS or issubclass(kind, gymnasium.ObservationWrapper):
        return False
    return kind.step is not gymnasium.Wrapper.step
