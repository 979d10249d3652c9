"""Rules of operations along a row's own features: picking, sorting, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.kernels.rows.lowering.pointwise import apply, cast
from headrace.kernels.rows.lowering.rules import Lowered, Lowering, Unsupported, rule
from headrace.kernels.rows.lowering.sums import reduced
from headrace.kernels.rows.lowering.tensors import ROWS, Size, Tensor, expanded, permuted, reshaped, together
from headrace.kernels.rows.lowering.views import cut, merged
from headrace.kernels.rows.nodes import given, operation_name
from headrace.kernels.rows.row_program import F32, I32, View

if TYPE_CHECKING:
    from torch.fx import Node

TABLE = 1024  # entries of an embedding that is learned: its gradient takes as many products for each row


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


@rule("gather")
def gather(lowering: Lowering, node: Node) -> Lowered:
    """value[..., j] = x[..., index[..., j]]."""
    x, index = lowering.tensor(node, given(node, "self")), lowering.tensor(node, given(node, "index"))
    dim = given(node, "dim") % len(x.dims)
    if ROWS in x.dims[dim]:
        raise Unsupported("gathers from other rows")
    x, index = last(merged(lowering, x, dim), dim), last(cast(lowering, index, I32), dim)
    for d in range(len(x.dims) - 1):
        if x.sizes[d] != index.sizes[d]:
            if x.sizes[d].rows or index.sizes[d].rows:
                raise Unsupported("gathers from fewer rows than there are")
            x = cut(lowering, x, d, Size(0), index.sizes[d])
    return back(_beside(lowering, x, index), dim)


def _beside(lowering: Lowering, x: Tensor, index: Tensor) -> Tensor:
    """x[..., index[..., j]] for each j."""
    front = reshaped(x, (*x.sizes[:-1], Size(1), x.sizes[-1]))
    return _picked(lowering, expanded(front, (*index.sizes, x.sizes[-1])), index)


def _picked(lowering: Lowering, x: Tensor, index: Tensor) -> Tensor:
    """x[..., index[...]], along the last dimension of x."""
    pair, dims = together([x, reshaped(index, (*index.sizes, Size(1)))])
    source, own = merged(lowering, pair[0], len(dims) - 1), pair[1].view
    end = len(own.shape) - len([n for n in pair[1].dims[-1] if n != ROWS])
    places = View(own.value, own.shape[:end], own.strides[:end], own.offset)
    return Tensor(lowering.build.pick(with_axis(source), places), dims[:-1])


@rule("scatter_add", "scatter")
def scatter(lowering: Lowering, node: Node) -> Lowered:
    """base, plus (or replaced by) each source's number at the index that goes with it."""
    name = operation_name(node)
    base, index = lowering.tensor(node, given(node, "self")), lowering.tensor(node, given(node, "index"))
    source = given(node, "src")
    if source is None:
        source = given(node, "value")
    dim = given(node, "dim") % len(base.dims)
    if ROWS in base.dims[dim]:
        raise Unsupported("scatters to other rows")
    dtype = base.dtype
    numbers = expanded(cast(lowering, lowering.tensor(node, source), dtype), index.sizes)
    count, several = base.sizes[dim].inner, index.sizes[dim].inner
    if name == "scatter" and several != 1:
        raise Unsupported("scatters several numbers of one row, of which the last counts")
    if [size for d, size in enumerate(base.sizes) if d != dim] != [n for d, n in enumerate(index.sizes) if d != dim]:
        raise Unsupported("scatters fewer numbers than there are places")
    moved = [last(x, dim) for x in (cast(lowering, index, I32), numbers)]
    moved = [reshaped(x, (*x.sizes[:-1], Size(1), x.sizes[-1])) for x in moved]
    steps = _steps(lowering, count)
    here = apply(lowering, "eq", moved[0], reshaped(steps, (*steps.sizes, Size(1))))
    zero = Tensor(lowering.build.number(0.0, (), dtype), ())
    if name == "scatter":
        found = apply(lowering, "where", here, moved[1], reshaped(last(base, dim), (*last(base, dim).sizes, Size(1))))
        return back(reshaped(found, found.sizes[:-1]), dim)
    spread = reduced(lowering, "sum", apply(lowering, "where", here, moved[1], zero), [len(base.dims)], False)
    return apply(lowering, "add", base, back(spread, dim))


def _steps(lowering: Lowering, count: int) -> Tensor:
    """0, 1, 2 ... along one dimension."""
    steps = lowering.build.steps(count, (count,), 0) if count > 1 else lowering.build.number(0.0, (), I32)
    return Tensor(steps, ((count,) if count > 1 else (),))


@rule("embedding")
def embedding(lowering: Lowering, node: Node) -> Lowered:
    """value[..., d] = weight[index[...], d]."""
    weight, index = lowering.tensor(node, given(node, "weight")), lowering.tensor(node, given(node, "indices"))
    return _rows_of(lowering, weight, index)


def _rows_of(lowering: Lowering, weight: Tensor, index: Tensor) -> Tensor:
    """weight[index]: the table's rows, for each index."""
    if any(ROWS in dim for dim in weight.dims):
        raise Unsupported("takes rows by their index")
    table = permuted(weight, [*range(1, len(weight.dims)), 0])  # [D, V]
    count, places = len(table.dims) - 1, len(index.dims)
    index = cast(lowering, index, I32)
    wide = reshaped(index, (*index.sizes, *[Size(1)] * count))
    wide = expanded(wide, (*index.sizes, *table.sizes[:-1]))
    front = reshaped(table, (*[Size(1)] * places, *table.sizes))
    front = expanded(front, (*wide.sizes, table.sizes[-1]))
    return _picked(lowering, front, wide)


@rule("embedding_dense_backward")
def embedding_backward(lowering: Lowering, node: Node) -> Lowered:
    """The sum of gradients of each entry of a table: one-hot indices times gradients."""
    from headrace.kernels.rows.lowering.sums import matmul

    gradient, index = lowering.tensor(node, given(node, "grad_output")), lowering.tensor(node, given(node, "indices"))
    count = given(node, "num_weights")
    if given(node, "scale_grad_by_freq"):
        raise Unsupported("uses an embedding with scale_grad_by_freq")
    if count > TABLE:
        raise Unsupported(f"learns an embedding of {count} entries; up to {TABLE} are compiled")
    index = cast(lowering, index, I32)
    places = _steps(lowering, count)
    hot = apply(lowering, "eq", reshaped(index, (*index.sizes, Size(1))), places)
    skipped = given(node, "padding_idx", -1)
    if skipped is not None and skipped >= 0:
        padding = Tensor(lowering.build.number(float(skipped), (), I32), ())
        hot = apply(lowering, "and", hot, apply(lowering, "ne", places, padding))
    hot = cast(lowering, hot, F32)
    total = Size(1)
    for size in index.sizes:
        total = Size(total.inner * size.inner, total.rows or size.rows)
    left = reshaped(hot, (total, Size(count)))
    right = reshaped(gradient, (total, gradient.sizes[-1]))
    return matmul(lowering, permuted(left, [1, 0]), right)


@rule("index_select")
def index_select(lowering: Lowering, node: Node) -> Lowered:
    x, index = lowering.tensor(node, given(node, "self")), lowering.tensor(node, given(node, "index"))
    dim = given(node, "dim") % len(x.dims)
    return _selected(lowering, x, index, dim)


def _selected(lowering: Lowering, x: Tensor, index: Tensor, dim: int) -> Tensor:
    """x at the same indices along a dimension, for all others."""
    if ROWS in x.dims[dim]:
        raise Unsupported("takes rows by their index")
    if index.rows or any(ROWS in axes for axes in index.dims):
        raise Unsupported("selects by an index with rows; use gather")
    x = last(merged(lowering, x, dim), dim)
    index = cast(lowering, index, I32)
    wide = expanded(reshaped(index, (*[Size(1)] * (len(x.dims) - 1), *index.sizes)), (*x.sizes[:-1], *index.sizes))
    if len(index.dims) != 1:
        raise Unsupported("selects by an index of several dimensions")
    return back(_beside(lowering, x, wide), dim)


@rule("index")
def index(lowering: Lowering, node: Node) -> Lowered:
    """x[..., index]: by one tensor of integers along one dimension."""
    x = lowering.tensor(node, node.args[0])
    found = [(d, i) for d, i in enumerate(given(node, "indices")) if i is not None]
    if len(found) == 2 and [d for d, _ in found] == [0, 1] and lowering.tensor(node, found[0][1]) is lowering.positions:
        return _in_each_row(lowering, x, cast(lowering, lowering.tensor(node, found[1][1]), I32))
    if len(found) != 1:
        raise Unsupported("indexes along several dimensions at once; use gather")
    dim, argument = found[0]
    places = lowering.tensor(node, argument)
    if places.dtype != I32:
        raise Unsupported("selects by truth values: how many there are depends on the data")
    if dim == 0 and not any(ROWS in axes for axes in x.dims):
        return _rows_of(lowering, x, places)
    return _selected(lowering, x, places, dim)


@rule("index_put", "_unsafe_index_put")
def index_put(lowering: Lowering, node: Node) -> Lowered:
    """base, with numbers added to one place of each row, or put there: the gradient of x[arange(rows), index]."""
    base, places = lowering.tensor(node, node.args[0]), given(node, "indices")
    tensors = [lowering.tensor(node, place) for place in places if place is not None]
    if len(tensors) != 2 or len(places) != 2 or tensors[0] is not lowering.positions or len(base.dims) != 2:
        raise Unsupported("writes at indices; use scatter, or torch.where")
    index = cast(lowering, tensors[1], I32)
    numbers = cast(lowering, lowering.tensor(node, given(node, "values")), base.dtype)
    count = base.sizes[1].inner
    here = apply(lowering, "eq", reshaped(index, (*index.sizes, Size(1))), _steps(lowering, count))
    new = reshaped(numbers, (*numbers.sizes, Size(1)))
    if given(node, "accumulate"):
        new = apply(lowering, "add", base, new)
    return apply(lowering, "where", here, new, base)


def _in_each_row(lowering: Lowering, x: Tensor, index: Tensor) -> Tensor:
    """x[arange(rows), index]: one of each row's."""
    if x.dims[0] != (ROWS,) or index.dims != ((ROWS,),):
        raise Unsupported("indexes rows by tensors of other shapes")
    behind = last(merged(lowering, x, 1), 1)
    wide = expanded(reshaped(index, (*index.sizes, *[Size(1)] * (len(x.dims) - 2))), behind.sizes[:-1])
    return _picked(lowering, behind, wide)


@rule("sort", "argsort", "topk")
def sort(lowering: Lowering, node: Node) -> Lowered:
    """Values and places, along a dimension."""
    name, x = operation_name(node), lowering.tensor(node, given(node, "self"))
    dim = given(node, "dim", -1) % max(len(x.dims), 1)
    falling = bool(given(node, "largest", True)) if name == "topk" else bool(given(node, "descending", False))
    if ROWS in x.dims[dim]:
        raise Unsupported("sorts the rows")
    if x.dtype != F32:
        raise Unsupported("sorts integers")
    x = last(merged(lowering, x, dim), dim)
    if not x.dims[-1]:
        zeros = Tensor(lowering.build.number(0.0, x.view.shape, I32), x.dims)
        results: Sequence[Tensor] = (back(x, dim), back(zeros, dim))
    else:
        source = lowering.build.map("neg", x.view) if falling else x.view
        values = lowering.build.sort(source)
        if falling:
            values = lowering.build.map("neg", values)
        results = [Tensor(values, x.dims), Tensor(lowering.build.sort(source, places=True), x.dims)]
        if name == "topk":
            results = [cut(lowering, r, len(r.dims) - 1, Size(0), Size(given(node, "k"))) for r in results]
        results = [back(r, dim) for r in results]
    return results[1] if name == "argsort" else list(results)
