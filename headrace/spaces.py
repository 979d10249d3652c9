"""What the house asks of a Gymnasium space: the column that holds it, and a form that JSON can hold.

The spaces themselves are Gymnasium's, because they are what users know.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space

from headrace.rollout import Column, Columns

__all__ = [
    "Box",
    "Dict",
    "Discrete",
    "MultiDiscrete",
    "Space",
    "action_column",
    "env_columns",
    "from_json",
    "is_image",
    "to_json",
]


def env_columns(observation_space: Space) -> dict[str, Column | Columns]:
    """The columns that every environment writes, for one of this observation space."""
    return {
        "observation": observation_column(observation_space),
        "valid": Column(dtype=torch.bool, edge=True),
        "reward": Column(),
        "terminated": Column(dtype=torch.bool),
        "truncated": Column(dtype=torch.bool),
        "episode_return": Column(),
        "episode_length": Column(dtype=torch.int32),
    }


def observation_column(space: Space) -> Column | Columns:
    """Column of an observation, with edge. Vectors are float32 and feature-major; images keep uint8 and their layout;
    Discrete is int32; a Dict is a group.

    Raises TypeError for a space that is not supported.
    """
    if isinstance(space, Dict):
        return {name: observation_column(member) for name, member in space.items()}
    if isinstance(space, Box):
        dtype = torch.uint8 if is_image(space) else torch.float32
        return Column(space.shape, dtype, edge=True, feature_major=len(space.shape) == 1)
    if isinstance(space, Discrete):
        return Column((), torch.int32, edge=True)
    if isinstance(space, MultiDiscrete):
        return Column(space.shape, torch.int32, edge=True, feature_major=True)
    raise TypeError(f"observations of {space} are not supported: use Box, Discrete, MultiDiscrete or a Dict of these")


def is_image(space: Space) -> TypeGuard[Box]:
    """Whether observations are images: a Box of uint8 with two dimensions or more."""
    return isinstance(space, Box) and len(space.shape) >= 2 and space.dtype == np.uint8


def action_column(space: Space) -> Column:
    """Column of an action: int32 for Discrete () and MultiDiscrete (K,), float32 for a Box (K,), feature-major.

    Raises TypeError for a space that is not supported.
    """
    if isinstance(space, Discrete):
        return Column((), torch.int32)
    if isinstance(space, MultiDiscrete) and len(space.shape) == 1:
        return Column(space.shape, torch.int32, feature_major=True)
    if isinstance(space, Box) and len(space.shape) == 1:
        return Column(space.shape, torch.float32, feature_major=True)
    raise TypeError(f"actions of {space} are not supported: use Discrete, MultiDiscrete or a Box of one dimension")


def to_json(space: Space) -> dict[str, Any]:
    """A JSON object from which `from_json` makes an equal space."""
    if isinstance(space, Dict):
        return {"type": "Dict", "spaces": {name: to_json(member) for name, member in space.items()}}
    if isinstance(space, Box):
        # repr keeps infinities, which JSON has no number for
        bounds = {side: [repr(float(x)) for x in getattr(space, side).ravel()] for side in ("low", "high")}
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    raise TypeError(f"{space} cannot be written as JSON")


def from_json(data: dict[str, Any]) -> Space:
    """The space that `to_json` wrote."""
    match data["type"]:
        case "Dict":
            return Dict({name: from_json(member) for name, member in data["spaces"].items()})
        case "Box":
            low, high = (
                np.array([float(x) for x in data[side]]).reshape(data["shape"]).astype(data["dtype"])
                for side in ("low", "high")
            )
            return Box(low, high, dtype=np.dtype(data["dtype"]).type)
        case "Discrete":
            return Discrete(data["n"], start=data["start"])
        case "MultiDiscrete":
            return MultiDiscrete(data["nvec"], start=data["start"])
    raise ValueError(f"unknown space type {data['type']!r}")
