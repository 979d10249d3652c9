"""Rewards of a Gymnasium vector before wrappers change them: what returns are reported in. See envs.gym.own_rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorObservationWrapper, VectorWrapper

from headrace.core.packages import of_headrace
from headrace.envs.gym.own_rewards import watched

# modules whose wrappers leave rewards as they are
KEEP_REWARDS = tuple(
    f"gymnasium.wrappers.vector.{name}"
    for name in ("array_conversion", "common", "dict_info", "jax_to", "numpy_to", "rendering", "vectorize_action")
)


class OwnVectorRewards(VectorWrapper):
    """Adds up the rewards of the vector that it is put around, inside the user's wrappers."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._sums: np.ndarray | float = 0.0
        self._steps = 0

    def step(self, actions: Any) -> Any:
        """A step of all environments."""
        outcome = self.env.step(actions)
        self._sums = self._sums + np.array(outcome[1], np.float64)
        self._steps += 1
        return outcome

    def take(self, rewards: np.ndarray) -> np.ndarray:
        """The sums of rewards since the last call; `rewards`, of the outermost wrapper, where there was no step."""
        sums = np.asarray(self._sums) if self._steps else rewards
        self._sums, self._steps = 0.0, 0
        return sums


def watched_vector(env: VectorEnv) -> Callable[[np.ndarray], np.ndarray] | None:
    """Watch the rewards inside the wrappers of a vector, and inside those of each environment of a SyncVectorEnv.

    Returns a function of the rewards of a step that gives the environments' own; None where no wrapper changes them.
    """
    around = _around(env)
    inside = env.unwrapped
    each = [watched(one) for one in inside.envs] if isinstance(inside, SyncVectorEnv) else []
    if around is None and not any(each):
        return None

    def own(rewards: np.ndarray) -> np.ndarray:
        rewards = np.array(rewards if around is None else around.take(rewards), np.float64)
        for place, one in enumerate(each):
            if one is not None:
                rewards[place] = one.take(rewards[place])
        return rewards

    return own


def _around(env: VectorEnv) -> OwnVectorRewards | None:
    """OwnVectorRewards inside the wrappers of a vector; None where no wrapper changes rewards."""
    layer, changes = env, False
    while isinstance(layer, VectorWrapper):
        if isinstance(layer, OwnVectorRewards):
            return layer
        changes = changes or _may_change_rewards(type(layer))
        if not isinstance(layer.env, VectorWrapper):
            if not changes:
                return None
            layer.env = OwnVectorRewards(layer.env)
        layer = layer.env
    return None


def _may_change_rewards(kind: type[VectorWrapper]) -> bool:
    if of_headrace(kind) or kind.__module__.startswith(KEEP_REWARDS) or issubclass(kind, VectorObservationWrapper):
        return False
    return kind.step is not VectorWrapper.step
