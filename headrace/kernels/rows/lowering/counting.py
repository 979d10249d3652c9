"""Rules of operations that count: arange, linspace. Along the rows, they give multiples of the rows' positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headrace.kernels.rows.lowering.pointwise import apply, cast, number
from headrace.kernels.rows.lowering.rules import Lowered, Lowering, Unsupported, rule
from headrace.kernels.rows.lowering.tensors import axes_of, inner_axes, of_value
from headrace.kernels.rows.row_program import F32, I32, Count

if TYPE_CHECKING:
    from torch.fx import Node


@rule("arange", "iota", "prims_iota", chosen=True)
def arange(lowering: Lowering, node: Node) -> Lowered:
    """Numbers start + step * i along one dimension. Along the rows, i is a row's position."""
    start, step = lowering.number(node, "start", 0.0), lowering.number(node, "step", 1.0)
    (size,), dtype = lowering.sizes(node), lowering.dtype(node)
    if isinstance(start, Count) or isinstance(step, Count):
        raise Unsupported("counts by a number that depends on the rows (arange)")
    if not size.rows:
        numbers, dims = [start + step * i for i in range(size.inner)], (axes_of(size),)
        return of_value(lowering.build.constant(numbers, inner_axes(dims), dtype), dims)
    if size.inner != 1 or start != 0 or step != int(step):
        raise Unsupported("computes with the positions of rows (arange over them)")
    found, lowering.counted = lowering.positions, node
    if step != 1:
        found = apply(lowering, "mul", found, number(lowering, step, I32))
    return found if dtype == I32 else cast(lowering, found, dtype)


@rule("linspace")
def linspace(lowering: Lowering, node: Node) -> Lowered:
    """Numbers at equal distances. Along the rows, they are a factor times the rows' positions."""
    start, end = (lowering.number(node, name) for name in ("start", "end"))
    (size,) = lowering.sizes(node)
    if not size.rows and isinstance(start, float) and isinstance(end, float):
        numbers = torch.linspace(start, end, size.inner).tolist()
        value = lowering.build.constant(numbers, () if size.one else (size.inner,), F32)
        return of_value(value, [axes_of(size)])
    if start != 0 or not isinstance(end, Count) or (end.power, end.less, end.plus) != (1, 1.0, 0.0) or size.inner != 1:
        raise Unsupported("computes with the positions of rows (linspace over them)")
    factor, lowering.counted = number(lowering, end.factor, I32), node
    return cast(lowering, apply(lowering, "mul", lowering.positions, factor), F32)
