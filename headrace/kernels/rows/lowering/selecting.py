"""Rows that truth values choose: masks over tensors of all rows, and rules of how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.kernels.rows.lowering.pointwise import apply, cast, number
from headrace.kernels.rows.lowering.rules import Lowered, Lowering, Unsupported, rule
from headrace.kernels.rows.lowering.tensors import ROWS, Mismatch, Tensor, rebuilt
from headrace.kernels.rows.row_program import BOOL, F32
from headrace.kernels.rows.tracing.nodes import operation_name

if TYPE_CHECKING:
    from torch.fx import Node


def chosen(lowering: Lowering, node: Any) -> Tensor | None:
    """Which numbers of a node's result were chosen, in its dimensions; None where all are there."""
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
    """A node's result, with a number in place of each that was not chosen."""
    x = lowering.tensor(node, node)
    mask = chosen(lowering, node)
    return x if mask is None else apply(lowering, "where", mask, x, number(lowering, neutral, x.dtype))


_ARITHMETIC = {"sym_truediv": "div", "sym_mul": "mul", "sym_add": "add", "sym_sub": "sub", "sym_float": ""}


@rule(*_ARITHMETIC, chosen=True)
def arithmetic(lowering: Lowering, node: Node) -> Lowered:
    """Python's arithmetic with how many numbers were chosen."""
    values = [cast(lowering, lowering.tensor(node, argument), F32) for argument in node.args]
    function = _ARITHMETIC[operation_name(node)]
    return apply(lowering, function, *values) if function else values[0]
