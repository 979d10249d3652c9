"""Rules of views, of tensors made of numbers, and of joining and cutting."""

from __future__ import annotations

import math
import operator
import sys
from typing import TYPE_CHECKING

from headrace.kernels.rows.lowering.rules import RULES, Lowered, Lowering, Unsupported, rule
from headrace.kernels.rows.lowering.tensors import (
    ROWS,
    Dimension,
    Mismatch,
    Size,
    Tensor,
    axes_of,
    expanded,
    finest,
    inner_axes,
    of_value,
    permuted,
    rebuilt,
    reshaped,
    split,
)
from headrace.kernels.rows.row_program import I32, View
from headrace.kernels.rows.tracing.nodes import given, operation_name

if TYPE_CHECKING:
    from torch.fx import Node


@rule("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "_reshape_alias", "flatten", "unflatten", chosen=True)
def view(lowering: Lowering, node: Node) -> Lowered:
    if given(node, "dtype") is not None:
        raise Unsupported("reads the bytes of a tensor as another dtype")
    tensor, sizes = lowering.tensor(node, node.args[0]), lowering.sizes(node)
    try:
        return reshaped(tensor, sizes)
    except Mismatch:  # borders of features that strides cannot say: copied, as one axis behind the rows
        shape = (*(s for s in tensor.sizes if s.rows), Size(math.prod(s.inner for s in tensor.sizes if not s.rows)))
        if any(s.rows and s.inner != 1 for s in tensor.sizes) or any(ROWS in dim for dim in tensor.dims[1:]):
            raise
        copy = lowering.build.packed(tensor.view, always=True)
        return reshaped(of_value(copy.value, [axes_of(size) for size in shape]), sizes)


@rule("expand", "broadcast_in_dim", "expand_as", chosen=True)
def expand(lowering: Lowering, node: Node) -> Lowered:
    tensor = lowering.tensor(node, node.args[0])
    if operation_name(node) == "broadcast_in_dim":
        kept = given(node, "broadcast_dimensions")
        between = [Size(1)] * len(lowering.sizes(node))
        for own, dim in enumerate(kept):
            between[dim] = tensor.sizes[own]
        tensor = reshaped(tensor, between)
    return expanded(tensor, lowering.sizes(node))


@rule("permute", "t", "transpose", "numpy_T", chosen=True)
def permute(lowering: Lowering, node: Node) -> Lowered:
    tensor = lowering.tensor(node, node.args[0])
    order = list(range(len(tensor.dims)))
    if operation_name(node) == "permute":
        order = [i % len(order) for i in given(node, "dims")]
    elif operation_name(node) == "transpose":
        first, second = given(node, "dim0") % len(order), given(node, "dim1") % len(order)
        order[first], order[second] = order[second], order[first]
    else:
        order.reverse()
    return permuted(tensor, order)


@rule("slice", chosen=True)
def slice_(lowering: Lowering, node: Node) -> Lowered:
    tensor = lowering.tensor(node, node.args[0])
    dim, start, step = given(node, "dim", 0) % len(tensor.dims), given(node, "start") or 0, given(node, "step", 1)
    wanted = lowering.sizes(node)[dim]
    if wanted == tensor.sizes[dim] and step == 1:
        end = given(node, "end")
        if ROWS in tensor.dims[dim] and end is not None and end < sys.maxsize:
            _first(lowering, node, tensor.sizes[dim], end)  # of more rows than that it would not be all
        return tensor
    if start < 0 or ROWS in tensor.dims[dim]:
        first = _first(lowering, node, tensor.sizes[dim], start)
        return cut(lowering, tensor, dim, first, wanted, step)
    return cut(lowering, tensor, dim, Size(start), wanted, step)


def _first(lowering: Lowering, node: Node, size: Size, start: int) -> Size:
    """Start of a slice, which may be a multiple of the number of rows."""
    if not size.rows:
        return Size(size.inner + start if start < 0 else start)
    found = lowering.traced.multiple(start)
    if found is None:
        raise Unsupported("takes some of the rows, by their position")
    times = found + size.inner if found < 0 else found
    return Size(times, True)


def cut(lowering: Lowering, tensor: Tensor, dim: int, first: Size, size: Size, step: int = 1) -> Tensor:
    """`size` numbers along a dimension, from `first` on."""
    axes = tensor.dims[dim]
    whole = tensor.sizes[dim]
    if whole.rows and (not size.rows or step != 1 or not (first.rows or first.inner == 0)):
        raise Unsupported("takes some of the rows, by their position")
    if whole.rows and axes[0] == ROWS and whole.inner > 1:
        raise Mismatch("a part of the rows, by their position")
    inner = tuple(n for n in axes if n != ROWS)
    if len(inner) != 1:
        tensor = merged(lowering, tensor, dim)
        inner = tuple(n for n in tensor.dims[dim] if n != ROWS)
        axes = tensor.dims[dim]
    dims, strides = list(tensor.dims), tensor.strides()
    stride = strides[dim][0] if inner else 0
    left = size.inner
    dims[dim] = tuple(left if n != ROWS else n for n in axes if n == ROWS or left != 1)
    strides[dim] = [stride * step] if left != 1 else []
    return rebuilt(tensor, dims, strides, first.inner * stride)


def merged(lowering: Lowering, tensor: Tensor, dim: int) -> Tensor:
    """The tensor with at most one axis besides the rows in a dimension; copied if strides cannot say that."""
    axes, strides = tensor.dims[dim], tensor.strides()[dim]
    inner = [n for n in axes if n != ROWS]
    if len(inner) <= 1:
        return tensor
    if ROWS in axes and axes[0] != ROWS and axes[-1] != ROWS:
        raise Mismatch("rows between two other axes of one dimension")
    if any(own != n * after for own, n, after in zip(strides, inner[1:], strides[1:], strict=False)):
        tensor = Tensor(lowering.build.packed(tensor.view), tensor.dims)
        strides = tensor.strides()[dim]
    dims, all_strides = list(tensor.dims), tensor.strides()
    total = Size(1).inner
    for n in inner:
        total *= n
    one: Dimension = (total,)
    if ROWS in axes:
        one = (ROWS, total) if axes[0] == ROWS else (total, ROWS)
    dims[dim], all_strides[dim] = one, [strides[-1]]
    return rebuilt(tensor, dims, all_strides)


@rule("select", chosen=True)
def select(lowering: Lowering, node: Node) -> Lowered:
    tensor = lowering.tensor(node, node.args[0])
    dim, index = given(node, "dim") % len(tensor.dims), given(node, "index")
    if ROWS in tensor.dims[dim]:
        raise Unsupported("takes one of the rows, by its position")
    index = index % max(tensor.sizes[dim].inner, 1)
    found = cut(lowering, tensor, dim, Size(index), Size(1))
    dims, strides = list(found.dims), found.strides()
    del dims[dim], strides[dim]
    return rebuilt(found, dims, strides)


@rule("unfold", chosen=True)
def unfold(lowering: Lowering, node: Node) -> Lowered:
    """Windows along a dimension, whose numbers become the last."""
    x = lowering.tensor(node, node.args[0])
    dim, size, step = given(node, "dimension") % len(x.dims), given(node, "size"), given(node, "step")
    if ROWS in x.dims[dim]:
        raise Unsupported("takes windows of rows")
    x = merged(lowering, x, dim)
    dims, strides = list(x.dims), x.strides()
    stride, count = (*strides[dim], 0)[0], (x.sizes[dim].inner - size) // step + 1
    for at, n, apart in ((dim, count, stride * step), (len(dims), size, stride)):
        dims[at : at + 1] = [(n,) if n != 1 else ()]
        strides[at : at + 1] = [[apart] if n != 1 else []]
    return rebuilt(x, dims, strides)


@rule("diagonal")
def diagonal(lowering: Lowering, node: Node) -> Lowered:
    """The numbers at equal places along two dimensions, which become the last."""
    x = lowering.tensor(node, node.args[0])
    pair = [given(node, name, default) % len(x.dims) for name, default in (("dim1", 0), ("dim2", 1))]
    if any(ROWS in x.dims[d] for d in pair):
        raise Unsupported("takes a diagonal over the rows")
    for dim in pair:
        x = merged(lowering, x, dim)
    steps, (size,) = [sum(x.strides()[d]) for d in pair], lowering.sizes(node)[-1:]
    offset = given(node, "offset", 0)
    first = offset * steps[1] if offset >= 0 else -offset * steps[0]
    kept = [d for d in range(len(x.dims)) if d not in pair]
    dims, own = axes_of(size), [sum(steps)] if size.inner != 1 else []
    return rebuilt(x, [*(x.dims[d] for d in kept), dims], [*(x.strides()[d] for d in kept), own], first)


@rule("split_with_sizes", "split", "chunk", "unbind", chosen=True)
def split_(lowering: Lowering, node: Node) -> Lowered:
    tensor = lowering.tensor(node, node.args[0])
    dim, at = given(node, "dim", 0) % len(tensor.dims), 0
    whole, found = tensor.sizes[dim], list[Tensor | None]()
    for number in range(lowering.traced.count(node)):
        if operation_name(node) == "unbind":
            part = cut(lowering, tensor, dim, Size(number), Size(1))
            dims, strides = list(part.dims), part.strides()
            del dims[dim], strides[dim]
            found.append(rebuilt(part, dims, strides))
            continue
        if not lowering.traced.sizes(node, number)[dim][0]:
            found.append(None)  # which nothing reads
            continue
        size = lowering.sizes(node, number)[dim]
        found.append(cut(lowering, tensor, dim, Size(at, whole.rows), size))
        at += size.inner
    return found


@rule("getitem", chosen=True)
def getitem(lowering: Lowering, node: Node) -> Lowered:
    found = lowering.tensors[node.args[0]]  # type: ignore[index]
    assert isinstance(found, list)
    one = found[node.args[1]]  # type: ignore[index]
    if one is None:
        name = operation_name(node.args[0])  # type: ignore[arg-type]
        instead = f": a{name}() is compiled" if name in ("max", "min") else ""
        raise Unsupported(f"takes {name} over the rows of the minibatch with places, as its gradient does{instead}")
    return one


RULES[operator.getitem.__name__] = getitem


@rule("cat", "stack", chosen=True)
def cat(lowering: Lowering, node: Node) -> Lowered:
    tensors = [lowering.tensor(node, n) for n in given(node, "tensors")]
    dim = given(node, "dim", 0)
    if operation_name(node) == "stack":
        dim %= len(tensors[0].dims) + 1
        tensors = [reshaped(t, (*t.sizes[:dim], Size(1), *t.sizes[dim:])) for t in tensors]
    tensors = [t for t in tensors if len(t.dims) > 1 or t.sizes != (Size(0),)]
    return joined(lowering, tensors, dim % len(tensors[0].dims))


def joined(lowering: Lowering, tensors: list[Tensor], dim: int) -> Tensor:
    """Tensors side by side along a dimension."""
    rows = any(ROWS in t.dims[dim] for t in tensors)
    if rows and not all(ROWS in t.dims[dim] for t in tensors):
        raise Unsupported("joins rows with something else along their dimension")
    parts: list[View] = []
    others = [finest([t.dims[i] for t in tensors]) if i != dim else () for i in range(len(tensors[0].dims))]
    for tensor in tensors:
        tensor = merged(lowering, tensor, dim)
        own = tensor.dims[dim]
        if rows and own != (ROWS,) and own[-1] != ROWS:
            raise Mismatch("rows joined in another order")
        tensor = split(tensor, [own if i == dim else axes for i, axes in enumerate(others)])
        strides, dims = tensor.strides(), list(tensor.dims)
        if own in ((), (ROWS,)):  # an axis of size 1, to join along
            dims[dim], strides[dim] = (1, *own), [0]
        axis = sum(len([n for n in d if n != ROWS]) for d in dims[:dim])
        flat = tuple(stride for one in strides for stride in one)
        parts.append(View(tensor.view.value, inner_axes(dims), flat, tensor.view.offset))
    whole = lowering.build.join(parts, axis)
    total, end = whole.shape[axis], (ROWS,) if rows else ()
    if total == 1:  # a size of 1 has no axis
        shape, steps = (kept[:axis] + kept[axis + 1 :] for kept in (whole.shape, whole.strides))
        whole = View(whole.value, shape, steps)
    others[dim] = (total, *end) if total != 1 else end
    return Tensor(whole, tuple(others))


@rule("slice_scatter", "select_scatter", chosen=True)
def written(lowering: Lowering, node: Node) -> Lowered:
    """A tensor with a part of it replaced: what is before the part, the new numbers, what is after it."""
    whole, new = lowering.tensor(node, given(node, "self")), lowering.tensor(node, given(node, "src"))
    dim = given(node, "dim", 0) % len(whole.dims)
    size = whole.sizes[dim]
    if operation_name(node) == "select_scatter":
        first, count = given(node, "index"), 1
        new = reshaped(new, (*new.sizes[:dim], Size(1), *new.sizes[dim:]))
    else:
        first, count = given(node, "start") or 0, new.sizes[dim].inner
    if given(node, "step", 1) != 1 or size.rows:
        if new.sizes[dim] == size and given(node, "step", 1) == 1:
            return new
        raise Unsupported("writes to some of the rows, or to every other feature")
    first = first + size.inner if first < 0 else first
    ends = [(0, first), (first + count, size.inner - first - count)]
    before, after = (cut(lowering, whole, dim, Size(at), Size(n)) if n else None for at, n in ends)
    return joined(lowering, [part for part in (before, new, after) if part is not None], dim)


@rule("flip", "rev", chosen=True)
def flip(lowering: Lowering, node: Node) -> Lowered:
    """A tensor in reversed order along some dimensions, put together of single numbers."""
    x = lowering.tensor(node, node.args[0])
    for dim in (d % len(x.dims) for d in given(node, "dims")):
        if ROWS in x.dims[dim]:
            raise Unsupported("reverses the order of rows")
        count = x.sizes[dim].inner
        if count > 1:
            x = joined(lowering, [cut(lowering, x, dim, Size(i), Size(1)) for i in reversed(range(count))], dim)
    return x


@rule("as_strided")
def as_strided(lowering: Lowering, node: Node) -> Lowered:
    """All numbers of a tensor in order, in another shape, as GroupNorm's decomposition reads them."""
    source, made = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    if not (source.is_contiguous() and made.is_contiguous() and source.numel() == made.numel()):
        raise Unsupported("uses as_strided, which is not compiled")
    return reshaped(lowering.tensor(node, node.args[0]), lowering.sizes(node))


@rule("roll", chosen=True)
def roll(lowering: Lowering, node: Node) -> Lowered:
    """Roll a tensor: numbers move by some places along dimensions, and those past the end come to the beginning."""
    x, dims = lowering.tensor(node, node.args[0]), given(node, "dims") or ()
    sizes = x.sizes
    if not dims:  # of all numbers in order
        if any(size.rows for size in sizes):
            raise Unsupported("rolls over the rows")
        x = reshaped(x, [Size(math.prod(size.inner for size in sizes))])
    for shift, dim in zip(given(node, "shifts"), [d % len(x.dims) for d in dims] or [0], strict=True):
        if ROWS in x.dims[dim]:
            raise Unsupported("rolls over the rows")
        count = x.sizes[dim].inner
        if last := shift % count:
            parts = [(count - last, last), (0, count - last)]
            x = joined(lowering, [cut(lowering, x, dim, Size(at), Size(n)) for at, n in parts], dim)
    return x if dims else reshaped(x, sizes)


_EMPTY = {"empty", "empty_like", "new_empty", "empty_permuted", "new_empty_strided", "empty_strided"}
_NUMBERS = {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0, "ones": 1.0, "ones_like": 1.0, "new_ones": 1.0}


@rule(*_NUMBERS, *_EMPTY, "full", "full_like", "new_full", "scalar_tensor", chosen=True)
def full(lowering: Lowering, node: Node) -> Lowered:
    name = operation_name(node)
    if name in ("scalar_tensor", "full", "full_like", "new_full"):
        number = lowering.number(node, "s" if name == "scalar_tensor" else "fill_value")
    else:
        number = _NUMBERS.get(name, 0.0)
    dims = [axes_of(size) for size in lowering.sizes(node)]
    return Tensor(lowering.build.number(number, inner_axes(dims), lowering.dtype(node)), tuple(dims))


@rule("tril_indices", "triu_indices")
def triangle(lowering: Lowering, node: Node) -> Lowered:
    row, col, offset = (given(node, name, 0) for name in ("row", "col", "offset"))
    lower = operation_name(node) == "tril_indices"
    inside = [(i, j) for i in range(row) for j in range(col) if (j - i <= offset if lower else j - i >= offset)]
    numbers = [float(n) for axis in zip(*inside, strict=True) for n in axis]
    sizes = lowering.sizes(node)
    value = lowering.build.constant(numbers, inner_axes(map(axes_of, sizes)), I32)
    return of_value(value, [axes_of(size) for size in sizes])


@rule("eye")
def eye(lowering: Lowering, node: Node) -> Lowered:
    sizes = lowering.sizes(node)
    if any(size.rows for size in sizes):
        raise Unsupported("uses an identity matrix over the rows")
    shape = tuple(size.inner for size in sizes)
    numbers = [float(i == j) for i in range(shape[0]) for j in range(shape[1])]
    value = lowering.build.constant(numbers, inner_axes(map(axes_of, sizes)), lowering.dtype(node))
    return of_value(value, [axes_of(size) for size in sizes])
