"""Explain why a value does not belong to a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsFloat, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple

from headrace.core.text import shown

# what an environment may return as an observation or a reward, right or wrong
Sample: TypeAlias = "np.ndarray | np.generic | SupportsFloat | str | Sequence[Sample] | Mapping[str, Sample] | None"


def mismatch(space: Space, value: Sample, path: str) -> str:
    """The first mismatch and its position; empty if the value belongs to the space. path: a name for the value."""
    if isinstance(space, Dict):
        if not isinstance(value, Mapping):
            return f"{path} is a {type(value).__name__}, not a dict of {', '.join(map(str, space))}"
        if set(value) != set(space.keys()):
            return f"{path} has {', '.join(map(str, value))}; the space has {', '.join(map(str, space))}"
        return next((found for key in space if (found := mismatch(space[key], value[key], f"{path}[{key!r}]"))), "")
    if isinstance(space, Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            return f"{path} is {shown(value, 60)}, not a tuple of {len(space.spaces)}"
        pairs = enumerate(zip(space.spaces, value, strict=True))
        return next((found for i, (part, x) in pairs if (found := mismatch(part, x, f"{path}[{i}]"))), "")
    if isinstance(space, Box):
        return _outside(space, value, path)
    if isinstance(space, Discrete) and not isinstance(value, int | np.integer | np.ndarray):
        return f"{path} is {shown(value, 60)}, a {type(value).__name__}, not an integer"
    return "" if space.contains(value) else f"{path} is {shown(value, 60)}, which is not in {shown(space)}"


def _outside(space: Box, value: Sample, path: str) -> str:
    if not isinstance(value, np.ndarray | np.generic):
        return f"{path} is a {type(value).__name__}, not an array of {space.dtype}"
    value = np.asarray(value)
    if value.shape != space.shape:
        return f"{path} has the shape {value.shape}, the space {space.shape}"
    wrong_dtype = f"{path} is an array of {value.dtype}, the space of {space.dtype}"
    if not np.issubdtype(value.dtype, np.number):
        return wrong_dtype
    low, high = np.asarray(space.low), np.asarray(space.high)
    for wrong, side, bound in (
        (~np.isfinite(value), "", low),
        (value < low, "below", low),
        (value > high, "above", high),
    ):
        if np.any(wrong):
            place = tuple(np.argwhere(wrong)[0].tolist())
            digits = 7 if f"{value[place]:.7g}" != f"{bound[place]:.7g}" else 17
            beyond = f", {side} the bound {bound[place]:.{digits}g}" if side else ""
            return f"{path}{''.join(f'[{index}]' for index in place)} is {value[place]:.{digits}g}{beyond}"
    return "" if value.dtype == space.dtype else wrong_dtype
