"""In what a value does not belong to a space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple


def misfit(space: Space, value: Any, path: str) -> str:
    """What is wrong with a value, and where in it; empty where it belongs to the space. path: what it is called."""
    if isinstance(space, Dict):
        if not isinstance(value, Mapping):
            return f"{path} is a {type(value).__name__}, not a dict of {', '.join(map(str, space))}"
        if set(value) != set(space.keys()):
            return f"{path} has {', '.join(map(str, value))}; the space has {', '.join(map(str, space))}"
        return next((found for key in space if (found := misfit(space[key], value[key], f"{path}[{key!r}]"))), "")
    if isinstance(space, Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            return f"{path} is {_short(value)}, not a tuple of {len(space.spaces)}"
        pairs = enumerate(zip(space.spaces, value, strict=True))
        return next((found for i, (part, x) in pairs if (found := misfit(part, x, f"{path}[{i}]"))), "")
    if isinstance(space, Box):
        return _outside(space, value, path)
    if isinstance(space, Discrete) and not isinstance(value, int | np.integer | np.ndarray):
        return f"{path} is {_short(value)}, a {type(value).__name__}, not an integer"
    return "" if space.contains(value) else f"{path} is {_short(value)}, which is not in {space}"


def _outside(space: Box, value: Any, path: str) -> str:
    low: Any = space.low
    high: Any = space.high
    if not isinstance(value, np.ndarray | np.generic):
        return f"{path} is a {type(value).__name__}, not an array of {space.dtype}"
    value = np.asarray(value)
    if value.shape != space.shape:
        return f"{path} has the shape {value.shape}, the space {space.shape}"
    if not np.issubdtype(value.dtype, np.number):
        return f"{path} is an array of {value.dtype}, the space of {space.dtype}"
    for wrong, words in ((~np.isfinite(value), ""), (value < low, "below"), (value > high, "above")):
        if np.any(wrong):
            place = tuple(int(index) for index in np.argwhere(np.atleast_1d(wrong))[0]) if value.ndim else ()
            bound = low if words == "below" else high
            beyond = f", {words} the bound {bound[place]:.7g}" if words else ""
            return f"{path}{''.join(f'[{index}]' for index in place)} is {value[place]:.7g}{beyond}"
    if value.dtype != space.dtype:
        return f"{path} is an array of {value.dtype}, the space of {space.dtype}"
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
