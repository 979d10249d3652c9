"""Rules of operations along a row's own features: sorting, diagonals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headrace.kernels.rows.lowering.pointwise import apply, number
from headrace.kernels.rows.lowering.rules import Lowered, Lowering, Unsupported, rule
from headrace.kernels.rows.lowering.sums import reduced, squeezed
from headrace.kernels.rows.lowering.tensors import ROWS, Size, Tensor, of_value, permuted, reshaped
from headrace.kernels.rows.lowering.views import cut, merged
from headrace.kernels.rows.row_program import BOOL, F32, I32, View
from headrace.kernels.rows.tracing.nodes import given, operation_name

if TYPE_CHECKING:
    from torch.fx import Node


def last(x: Tensor, dim: int) -> Tensor:
    """A dimension moved to the end."""
    return permuted(x, [*(d for d in range(len(x.dims)) if d != dim), dim])


def back(x: Tensor, dim: int) -> Tensor:
    """The last dimension moved to where it was."""
    order = list(range(len(x.dims) - 1))
    order.insert(dim, len(x.dims) - 1)
    return permuted(x, order)


def with_axis(x: Tensor) -> View:
    """The view, whose last dimension is an axis even where its size is 1."""
    view = x.view
    return view if x.dims[-1] else View(view.value, (*view.shape, 1), (*view.strides, 0), view.offset)


@rule("sort", "argsort", "topk", chosen=True)
def sort(lowering: Lowering, node: Node) -> Lowered:
    """Values and places, along a dimension."""
    name, x = operation_name(node), lowering.tensor(node, given(node, "self"))
    dim = given(node, "dim", -1) % max(len(x.dims), 1)
    falling = bool(given(node, "largest", True)) if name == "topk" else bool(given(node, "descending", False))
    if ROWS in x.dims[dim]:
        raise Unsupported("sorts the rows")
    results = in_order(lowering, x, dim, falling)
    if name == "topk":
        results = [cut(lowering, r, dim, Size(0), Size(given(node, "k"))) for r in results]
    return results[1] if name == "argsort" else list(results)


def in_order(lowering: Lowering, x: Tensor, dim: int, falling: bool) -> list[Tensor]:
    """The numbers along a dimension in order, and their places."""
    if x.dtype != F32:
        raise Unsupported("sorts integers")
    x = last(merged(lowering, x, dim), dim)
    if not x.dims[-1]:
        return [back(x, dim), back(Tensor(lowering.build.number(0.0, x.view.shape, I32), x.dims), dim)]
    source = lowering.build.map("neg", x.view) if falling else x.view
    values = lowering.build.sort(source)
    if falling:
        values = lowering.build.map("neg", values)
    places = lowering.build.sort(source, places=True)
    return [back(Tensor(own, x.dims), dim) for own in (values, places)]


@rule("kthvalue", "median", chosen=True)
def at_place(lowering: Lowering, node: Node) -> Lowered:
    """The number at one place of those in order, and where it was."""
    x = lowering.tensor(node, given(node, "self"))
    if given(node, "dim") is None:
        raise Unsupported("takes the median of all numbers")
    dim = given(node, "dim") % len(x.dims)
    if ROWS in x.dims[dim]:
        raise Unsupported("sorts the rows")
    place = given(node, "k") - 1 if operation_name(node) == "kthvalue" else (x.sizes[dim].inner - 1) // 2
    pair = [cut(lowering, result, dim, Size(place), Size(1)) for result in in_order(lowering, x, dim, False)]
    if operation_name(node) == "median":  # NaN where one is
        nan = reduced(lowering, "any", apply(lowering, "isnan", x), [dim], True)
        pair[0] = apply(lowering, "where", nan, number(lowering, math.nan), pair[0])
    keep = bool(given(node, "keepdim", False))
    return [squeezed(result, [dim], keep) for result in pair]


@rule("diagonal_scatter")
def diagonal_scatter(lowering: Lowering, node: Node) -> Lowered:
    """A tensor with other numbers at equal places along two dimensions."""
    x, new = lowering.tensor(node, given(node, "self")), lowering.tensor(node, given(node, "src"))
    count = len(x.dims)
    pair = [given(node, name, default) % count for name, default in (("dim1", 0), ("dim2", 1))]
    if any(ROWS in x.dims[d] for d in pair) or given(node, "offset", 0):
        raise Unsupported("writes to a diagonal over the rows, or beside the middle")
    order = [*(d for d in range(count) if d not in pair), *pair]
    turned = permuted(x, order)
    n, m = (turned.sizes[d].inner for d in (-2, -1))
    same = lowering.build.constant([float(i == j) for i in range(n) for j in range(m)], (n, m), BOOL)
    here = of_value(same, [(n,), (m,)])
    new = reshaped(new, (*new.sizes, Size(1))) if n >= m else reshaped(new, (*new.sizes[:-1], Size(1), new.sizes[-1]))
    found = apply(lowering, "where", here, new, turned)
    return permuted(found, [order.index(d) for d in range(count)])
