"""Reductions over the entities of an environment, by name, in plain Python; each target has code of its own for them.

A sum of floats depends on its order, so the order is fixed. There are PARTS partial results; number k takes the
entities k, k + PARTS, k + 2 * PARTS ... one after the other. Then both halves of the results are combined, until one
result is left. So a result has the same bits whatever the number of SIMD lanes or threads that compute it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

PARTS = 16


def sum_over(values: np.ndarray) -> Any:
    """The sum of a field over all entities: float32 of an f32 field, int32 of others (a boolean counts as 0 or 1)."""
    wide = _wide(values)
    return _combined(wide, wide.dtype.type(0), np.add)


def min_over(values: np.ndarray) -> Any:
    """The smallest value of a field over all entities, float32 or int32. NaN is left out."""
    wide = _wide(values)
    return _combined(wide, _limits(wide)[1], lambda a, b: np.where(b < a, b, a))


def max_over(values: np.ndarray) -> Any:
    """The largest value of a field over all entities, float32 or int32. NaN is left out."""
    wide = _wide(values)
    return _combined(wide, _limits(wide)[0], lambda a, b: np.where(b > a, b, a))


def argmin_over(values: np.ndarray) -> np.int32:
    """The first entity with the smallest value of a field; 0 where all are NaN."""
    return np.int32(np.argmax(_wide(values) == min_over(values)))


def argmax_over(values: np.ndarray) -> np.int32:
    """The first entity with the largest value of a field; 0 where all are NaN."""
    return np.int32(np.argmax(_wide(values) == max_over(values)))


def any_over(values: np.ndarray) -> np.bool_:
    """Tell whether a field is not 0 for some entity."""
    return np.bool_(np.any(np.asarray(values) != 0))


def within(*coordinates: np.ndarray | np.generic | float) -> list[np.int32]:
    """within(s.x, s.y, i, radius): the entities other than i that are nearer to it than radius, in no promised order.

    Coordinates are one to three f32 fields with an entry for each entity; there are no edges, and no torus.
    """
    *fields, i, radius = coordinates
    squares = np.zeros(len(fields[0]), np.float32)  # type: ignore[arg-type]
    for field in fields:
        way = np.asarray(field) - np.asarray(field)[int(i)]
        squares = squares + way * way
    near = squares < np.float32(radius) * np.float32(radius)
    near[int(i)] = False
    return [np.int32(j) for j in np.flatnonzero(near)]


OVER = (sum_over, min_over, max_over, argmin_over, argmax_over, any_over)


def _wide(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    return values if values.dtype == np.float32 else values.astype(np.int32)


def _limits(values: np.ndarray) -> tuple[np.generic, np.generic]:
    """Below and above all values, of their dtype."""
    if values.dtype == np.float32:
        return np.float32(-np.inf), np.float32(np.inf)
    return np.int32(-(2**31)), np.int32(2**31 - 1)


def _combined(values: np.ndarray, start: np.generic, combine: Callable[..., Any]) -> Any:
    parts = np.full(PARTS, start)
    with np.errstate(over="ignore"):
        for first in range(0, len(values), PARTS):
            some = values[first : first + PARTS]
            parts[: len(some)] = combine(parts[: len(some)], some)
        while len(parts) > 1:
            half = len(parts) // 2
            parts = combine(parts[:half], parts[half:])
    return parts[0]
