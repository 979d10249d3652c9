"""Action masks of Gymnasium environments: from `info` into the observation, and the check that they allow something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, MultiBinary, Space

from headrace.core.text import shown
from headrace.data.flat_action import component_sizes, flat_action
from headrace.data.flat_dict import ACHIEVED_GOAL, ACTION_MASK, DESIRED_GOAL, OBSERVATION, FlatDict, joinable


class InfoMask(gymnasium.Wrapper):
    """Observations with info["action_mask"] as a member: a Dict of "observation" and "action_mask".

    The mask has an entry for each choice of a Discrete action, or for each choice of all components of a MultiDiscrete
    one. For actions of several kinds it has the entries of all parts with choices, in order.
    Raises TypeError for other actions, and KeyError for an info without a mask.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space = env.action_space
        self.size = sum(component_sizes(flat_action(space)))
        if not self.size:
            raise TypeError(
                f"{env} has actions of {space}: info_mask is for Discrete and MultiDiscrete ones, leave it out"
            )
        seen = env.observation_space
        members = dict(seen.spaces) if isinstance(seen, Dict) else {OBSERVATION: seen}
        self.observation_space = Dict({**members, ACTION_MASK: MultiBinary(self.size)})

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        if ACTION_MASK not in info:
            raise KeyError(f"{self.env} gave info {shown(info)}, which has no {ACTION_MASK!r}: leave out info_mask")
        mask = info[ACTION_MASK]
        mask = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple | list) else np.asarray(mask)
        if mask.shape != (self.size,):
            raise ValueError(
                f"info[{ACTION_MASK!r}] has shape {mask.shape}, and {self.action_space} {self.size} choices"
            )
        members = observation if isinstance(self.env.observation_space, Dict) else {OBSERVATION: observation}
        return {**members, ACTION_MASK: (mask != 0).astype(np.int8)}


def flat_space(space: Space) -> Space:
    """Convert a Dict of vectors with an action mask or goals to one vector, which kernels read. Any other space is
    returned as it is."""
    named = isinstance(space, Dict) and (ACTION_MASK in space.spaces or {ACHIEVED_GOAL, DESIRED_GOAL} <= {*space})
    return FlatDict(space.spaces) if named and joinable(space) else space  # type: ignore[attr-defined]


def check_mask(mask: Any, sizes: Sequence[int]) -> None:
    """Raise ValueError if a flat mask allows no choice of a component. sizes: number of choices of each component."""
    ends = np.cumsum(sizes)
    parts = np.split(np.asarray(mask).ravel(), ends[:-1])
    if not all(part.any() for part in parts):
        raise ValueError(
            f"the action mask {shown(mask)} allows no action in a state that is not final: allow one, or end the "
            "episode there"
        )
