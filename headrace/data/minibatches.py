"""Minibatches of a rollout, in a given random order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from headrace.data.rollout import tree_map


def count(rows: int, minibatch_size: int, unit: int = 1) -> int:
    """Number of minibatches of about `minibatch_size` rows in `rows` rows: at least one.

    unit: rows of one sequence; no minibatch has fewer.
    """
    return min(max(1, round(rows / minibatch_size)), rows // unit)


def minibatches(columns: Mapping[str, Any], order: Tensor, number: int, unit: int = 1) -> Iterator[dict[str, Any]]:
    """`columns` [R, ...] in `order` [R], cut into `number` minibatches of about R / number rows, all of one shape.

    unit: rows of one sequence, which are consecutive in the order. Rows at the end of the order that do not fill a
    minibatch are left out. One gather per column; each minibatch is a view.
    """
    size = len(order) // unit // number * unit
    order = order[: size * number]
    shuffled = {name: tree_map(lambda column: _take(column, order), value) for name, value in columns.items()}
    for start in range(0, size * number, size):
        rows = slice(start, start + size)
        yield {name: tree_map(lambda column, at=rows: column[at], value) for name, value in shuffled.items()}


def _take(column: Tensor, order: Tensor) -> Tensor:
    """Rows of a column, in its own layout: thirty times as fast as plain indexing for a feature-major column."""
    if column.dim() == 2 and column.stride(0) == 1:
        return column.t().index_select(1, order).t()
    return column.index_select(0, order)
