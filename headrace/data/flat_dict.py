"""A Dict of vectors as one vector: observations with action masks or goals, as kernels read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, Space

OBSERVATION, ACTION_MASK = "observation", "action_mask"
CENTRAL = "central_state"  # the state of all agents, which is for critics: see envs.wrappers.central
ACHIEVED_GOAL, DESIRED_GOAL = "achieved_goal", "desired_goal"
# order of members: all others come after the observation. The mask is last because no network takes it as an input
ORDER = {OBSERVATION: 0, ACHIEVED_GOAL: 2, DESIRED_GOAL: 3, ACTION_MASK: 4}


class FlatDict(Box):
    """Vectors with names as one float32 vector: the entries of the first member, those of the second ...

    members: name -> a Box or MultiBinary. Their order is: observation, others in the order given (Gymnasium's Dict
    sorts by name), achieved_goal, desired_goal, action_mask.
    slices: name -> its entries. features: how many entries there are without the action mask.
    Raises TypeError for a member of another kind.
    """

    def __init__(self, members: Mapping[str, Space]) -> None:
        names = sorted(members, key=lambda name: ORDER.get(name, 1))
        self.members = {name: members[name] for name in names}
        bounds = [_bounds(name, member) for name, member in self.members.items()]
        ends = np.cumsum([len(low) for low, _ in bounds]).tolist()
        self.slices = dict(zip(names, map(slice, [0, *ends[:-1]], ends), strict=True))
        self.features = self.slices[ACTION_MASK].start if ACTION_MASK in names else ends[-1]
        low, high = (np.concatenate(side) for side in zip(*bounds, strict=True))
        super().__init__(low, high, dtype=np.float32)

    def join(self, parts: Mapping[str, Any]) -> np.ndarray:
        """One vector float32 [F], or a batch [N, F], of arrays by name. Raises ValueError for one of another shape."""
        arrays = []
        for name, member in self.members.items():
            if name not in parts:
                raise ValueError(f"the observation lacks {name}: it needs {', '.join(self.members)}")
            array, shape = np.asarray(parts[name], np.float32), member.shape or ()
            if array.shape[array.ndim - len(shape) :] != shape:
                raise ValueError(f"{name} has shape {array.shape}, and its space {shape}")
            arrays.append(array.reshape(*array.shape[: array.ndim - len(shape)], -1))
        return np.concatenate(arrays, -1)

    def order(self) -> str:
        """Names and numbers of entries, in words."""
        return ", ".join(f"{name} ({part.stop - part.start})" for name, part in self.slices.items())

    def split(self, vector: Any) -> dict[str, Any]:
        """The members of vectors [..., F], by name: flat views."""
        return {name: vector[..., part] for name, part in self.slices.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatDict) and self.members == other.members

    def __repr__(self) -> str:
        return f"FlatDict({', '.join(f'{name}: {member}' for name, member in self.members.items())})"


def joinable(space: Space) -> bool:
    """Tell whether observations of a Dict can be one vector: all of its members are vectors of numbers."""
    return isinstance(space, Dict) and all(
        isinstance(member, Box | MultiBinary) and len(member.shape or ()) == 1 for member in space.values()
    )


def _bounds(name: str, space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest value of each entry, flat."""
    if isinstance(space, MultiBinary):
        size = math.prod(space.shape)
        return np.zeros(size, np.float32), np.ones(size, np.float32)
    if isinstance(space, Box):
        with np.errstate(over="ignore"):  # a bound beyond float32's range becomes infinite, that is, no bound
            return space.low.ravel().astype(np.float32), space.high.ravel().astype(np.float32)
    raise TypeError(f"{name} is {space}: a vector is made of Box and MultiBinary")
