"""Rows that truth values choose, as masks over tensors of all rows."""

from __future__ import annotations

from typing import Any

from headrace.kernels.rows.lowering.pointwise import apply, cast, number
from headrace.kernels.rows.lowering.rules import Lowering, Unsupported
from headrace.kernels.rows.lowering.tensors import ROWS, Mismatch, Tensor, rebuilt
from headrace.kernels.rows.row_program import BOOL


def chosen(lowering: Lowering, node: Any) -> Tensor | None:
    """Mask of the chosen numbers of a node's result, in its dimensions. None where all are there."""
    mask, dim = lowering.traced.selections.of(node), lowering.traced.selections.dimension(node)
    if dim is None:
        return None
    if mask is None:
        raise Unsupported("joins rows that different truth values choose")
    x = lowering.tensor(node, node)
    whole = cast(lowering, lowering.tensor(mask, mask), BOOL)
    axes = [n for own in whole.dims for n in own]
    steps = [step for own in whole.strides() for step in own]
    at, own = axes.index(ROWS), x.dims[dim]
    first = own.index(ROWS) - at
    if first < 0 or list(own[first : first + len(axes)]) != axes:
        raise Mismatch("numbers that truth values choose, in another order")
    inner = len([n for n in own[:first] if n != ROWS]), len(own) - first - len(axes)
    strides = [[0] * len([n for n in dims if n != ROWS]) for dims in x.dims]
    strides[dim] = [*[0] * inner[0], *steps, *[0] * inner[1]]
    return rebuilt(Tensor(whole.view, whole.dims), x.dims, strides)


def masked(lowering: Lowering, node: Any, neutral: float = 0.0) -> Tensor:
    """Result of a node in which each number that was not chosen is replaced by another number."""
    x = lowering.tensor(node, node)
    mask = chosen(lowering, node)
    return x if mask is None else apply(lowering, "where", mask, x, number(lowering, neutral, x.dtype))
