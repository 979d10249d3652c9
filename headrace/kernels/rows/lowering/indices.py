"""Rules of reading and writing at indices: embeddings, x[i, j], x[mask] = y.

Each row is read and written by itself: along the rows' own dimension there may be nothing but arange() over the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.kernels.rows.lowering.gathering import PARTS, fixed, picked, steps, written
from headrace.kernels.rows.lowering.pointwise import apply, cast, number
from headrace.kernels.rows.lowering.rules import Lowered, Lowering, Unsupported, rule
from headrace.kernels.rows.lowering.selecting import masked
from headrace.kernels.rows.lowering.sums import matmul
from headrace.kernels.rows.lowering.tensors import (
    ROWS,
    Mismatch,
    Size,
    Tensor,
    expanded,
    permuted,
    reshaped,
    tensor_sizes,
    together,
)
from headrace.kernels.rows.lowering.views import cut, joined
from headrace.kernels.rows.row_plan import inlined
from headrace.kernels.rows.row_program import BOOL, F32, I32, Constant, Map, View
from headrace.kernels.rows.tracing.nodes import given
from headrace.kernels.rows.tracing.selections import marks

if TYPE_CHECKING:
    from torch.fx import Node

TABLE = 1024  # entries of an embedding that is learned: its gradient takes as many products for each row


@rule("embedding", chosen=True)
def embedding(lowering: Lowering, node: Node) -> Lowered:
    """value[..., d] = weight[index[...], d]."""
    weight, index = lowering.tensor(node, given(node, "weight")), lowering.tensor(node, given(node, "indices"))
    return _read(lowering, weight, Places(lowering, weight, [(0, index)], wraps=False))


@rule("embedding_dense_backward", chosen=True)
def embedding_backward(lowering: Lowering, node: Node) -> Lowered:
    """The sum of gradients of each entry of a table."""
    gradient, index = masked(lowering, given(node, "grad_output")), lowering.tensor(node, given(node, "indices"))
    if given(node, "scale_grad_by_freq"):
        raise Unsupported("uses an embedding with scale_grad_by_freq")
    return _summed(
        lowering, cast(lowering, index, I32), gradient, given(node, "num_weights"), given(node, "padding_idx")
    )


def _summed(lowering: Lowering, index: Tensor, new: Tensor, count: int, skipped: int | None = None) -> Tensor:
    """Sum of new [..., D] over all places with an index [...], which have rows: [count, D]. Computed as one-hot indices
    times numbers."""
    if count > TABLE:
        raise Unsupported(f"learns an embedding of {count} entries; up to {TABLE} are compiled")
    places = steps(lowering, count)
    hot = apply(lowering, "eq", reshaped(index, (*index.sizes, Size(1))), places)
    if skipped is not None and skipped >= 0:
        hot = apply(lowering, "and", hot, apply(lowering, "ne", places, number(lowering, float(skipped), I32)))
    total = Size(math.prod(n.inner for n in index.sizes), any(n.rows for n in index.sizes))
    left = reshaped(cast(lowering, hot, F32), (total, Size(count)))
    return matmul(lowering, permuted(left, [1, 0]), reshaped(new, (total, new.sizes[-1])))


@rule("index_select", chosen=True)
def index_select(lowering: Lowering, node: Node) -> Lowered:
    x, index = lowering.tensor(node, given(node, "self")), lowering.tensor(node, given(node, "index"))
    return _read(lowering, x, Places(lowering, x, [(given(node, "dim") % len(x.dims), index)], wraps=False))


@dataclass
class Places:
    """Integers along some dimensions of a tensor, as one index of these dimensions put together.

    inner: these dimensions. row: the dimension of the rows, if arange() over them is among the indices. left: the
    others. index: of inner together; None where there is none. asked: the sizes of the indices broadcast together.
    sizes: the same with the rows in a dimension of their own. at: where these dimensions are in what is read, before
    those of `left` that follow.
    """

    lowering: Lowering
    x: Tensor
    found: list[tuple[int, Tensor]]
    wraps: bool = True

    def __post_init__(self) -> None:
        lowering, x = self.lowering, self.x
        self.row, self.inner = None, list[int]()
        wide, dims = together([tensor for _, tensor in self.found])
        self.asked, self.index = tuple(tensor_sizes(dims)), None
        apart = [((n,) if n != 1 else ()) for dim in dims for n in (dim if ROWS in dim else (math.prod(dim),))]
        self.sizes = tuple(tensor_sizes(apart))
        wide = [reshaped(tensor, self.sizes) for tensor in wide]
        for (dim, _), tensor in zip(self.found, wide, strict=True):
            if tensor.view.value is lowering.positions.view.value:
                if x.dims[dim] != (ROWS,):
                    raise Unsupported("takes rows by their index")
                self.row = dim
                continue
            if ROWS in x.dims[dim]:
                raise Unsupported("takes rows by their index")
            self.inner.append(dim)
            count, own = x.sizes[dim].inner, cast(lowering, tensor, I32)
            if self.wraps:
                own = self._from_end(own, count)
            factor = number(lowering, float(count), I32)
            self.index = (
                own
                if self.index is None
                else _folded(lowering, _folded(lowering, self.index, factor, "mul"), own, "add")
            )
        self.left = [d for d in range(len(x.dims)) if d != self.row and d not in self.inner]
        if self.row is None and any(ROWS in d for d in dims) and any(ROWS in x.dims[d] for d in self.left):
            raise Unsupported("indexes each row by each other row's")
        indexed = sorted(d for d, _ in self.found)
        adjacent = indexed[-1] - indexed[0] == len(indexed) - 1
        self.at = indexed[0] if adjacent else 0

    def _from_end(self, index: Tensor, count: int) -> Tensor:
        """Convert indices that count from the end to indices that count from the beginning."""
        lowering = self.lowering
        numbers = fixed(index)
        if numbers is not None:
            value = lowering.build.constant([float(n % count) for n in numbers], index.view.shape, I32)
            return Tensor(View(value, value.shape, (1,) * len(value.shape)), index.dims)
        later = apply(lowering, "add", index, number(lowering, float(count), I32))
        return apply(lowering, "where", apply(lowering, "lt", index, number(lowering, 0.0, I32)), later, index)

    def front(self, x: Tensor) -> Tensor:
        """x as [..., left ..., inner together], the first dimensions being those of the indices."""
        order = [*([] if self.row is None else [self.row]), *self.left, *self.inner]
        turned = permuted(x, order)
        rest = tuple(x.sizes[d] for d in self.left)
        count = Size(math.prod(x.sizes[d].inner for d in self.inner))
        first = tuple(n if self.row is not None and n.rows else Size(1) for n in self.sizes)
        return reshaped(turned, (*first, *rest, count))

    def ordered(self, x: Tensor) -> Tensor:
        """Arrange what was read, [sizes ..., left ...], in torch's order."""
        several, at = len(self.sizes), self.at
        turned = permuted(x, [*range(several, several + at), *range(several), *range(several + at, len(x.dims))])
        return reshaped(turned, (*turned.sizes[:at], *self.asked, *turned.sizes[at + several :]))

    def unordered(self, x: Tensor) -> Tensor:
        """Arrange what is to be written, in torch's order or with fewer dimensions, as [sizes ..., left ...]."""
        left, several, at = tuple(self.x.sizes[d] for d in self.left), len(self.sizes), self.at
        whole = expanded(x, (*left[:at], *self.asked, *left[at:]))
        apart = reshaped(whole, (*left[:at], *self.sizes, *left[at:]))
        return permuted(apart, [*range(at, at + several), *range(at), *range(at + several, several + len(left))])


def _folded(lowering: Lowering, x: Tensor, y: Tensor, function: str) -> Tensor:
    """Sum or product of indices. Computed here where both are fixed."""
    one, other = fixed(x), fixed(y)
    if one is None or other is None or len(x.dims) > 1:
        return apply(lowering, function, x, y)
    count = max(len(one), len(other))
    pairs = zip(one * (count // len(one)), other * (count // len(other)), strict=True)
    numbers = [float(a + b if function == "add" else a * b) for a, b in pairs]
    dims = x.dims if len(one) == count else y.dims
    value = lowering.build.constant(numbers, (count,) if count > 1 else (), I32)
    return Tensor(View(value, value.shape, (1,) * len(value.shape)), dims)


def _read(lowering: Lowering, x: Tensor, places: Places) -> Tensor:
    """x at indices, in torch's order of dimensions."""
    front, rest = places.front(x), tuple(x.sizes[d] for d in places.left)
    wide = expanded(front, (*places.sizes, *rest, front.sizes[-1]))
    if places.index is None:
        return places.ordered(reshaped(wide, wide.sizes[:-1]))
    numbers, alone = fixed(places.index), len(places.sizes) == 1 and places.row is None
    if alone and numbers is not None and len(numbers) <= PARTS and all(0 <= n < wide.sizes[-1].inner for n in numbers):
        one = reshaped(front, front.sizes[1:])
        end = len(rest)
        found = [cut(lowering, one, end, Size(n), Size(1)) for n in numbers]
        found_ = joined(lowering, found, end) if len(found) > 1 else found[0]
        return places.ordered(permuted(found_, [end, *range(end)]))
    index = reshaped(places.index, (*places.index.sizes, *[Size(1)] * len(rest)))
    return places.ordered(picked(lowering, wide, expanded(index, (*places.sizes, *rest))))


@rule("index", chosen=True)
def index(lowering: Lowering, node: Node) -> Lowered:
    """x[..., index, ...]: by integers, by truth values."""
    x = lowering.tensor(node, node.args[0])
    places = [(d, lowering.tensor(node, i)) for d, i in enumerate(given(node, "indices")) if i is not None]
    if any(tensor.dtype == BOOL for _, tensor in places):
        return _chosen(lowering, x, places)
    return _read(lowering, *_flat(lowering, x, places))


def _chosen(lowering: Lowering, x: Tensor, places: list[tuple[int, Tensor]]) -> Tensor:
    """Select x where a mask holds. The result is all of x, with the mask's dimensions as one; see selections."""
    x, places = _masks_as_one(x, places)
    if len(places) == 1:
        return x
    return _read(lowering, x, Places(lowering, x, [(d, _all(lowering, i)) for d, i in places]))


def _all(lowering: Lowering, index: Tensor) -> Tensor:
    """The rows' positions in place of a mask over the rows."""
    return index if index.dtype != BOOL else lowering.positions


def _masks_as_one(x: Tensor, places: list[tuple[int, Tensor]]) -> tuple[Tensor, list[tuple[int, Tensor]]]:
    """A tensor, and indices, with the dimensions of a mask as one."""
    ((dim, mask),) = [(d, i) for d, i in places if i.dtype == BOOL][:1]
    several = len(mask.dims)
    if sum(tensor.dtype == BOOL for _, tensor in places) > 1:
        raise Unsupported("chooses by truth values along several dimensions")
    if not any(ROWS in own for own in mask.dims):
        raise Unsupported("selects by truth values that are the same for all rows; use torch.where")
    if mask.sizes != x.sizes[dim : dim + several]:
        raise Unsupported("chooses by truth values of another shape")
    if several != 1:
        total = Size(math.prod(n.inner for n in mask.sizes), True)
        x = reshaped(x, (*x.sizes[:dim], total, *x.sizes[dim + several :]))
        mask = reshaped(mask, (total,))
    return x, [(d - (several - 1) * (d > dim), mask if i.dtype == BOOL else i) for d, i in places]


def _flat(lowering: Lowering, x: Tensor, places: list[tuple[int, Tensor]]) -> tuple[Tensor, Places]:
    """Index of places in x. x [rows * K] at arange(rows) * K + i becomes x [rows, K] at i for each row."""
    if len(places) == 1 and len(x.dims) == 1 and x.sizes[0].rows and x.dims[0][0] == ROWS and x.sizes[0].inner > 1:
        count = x.sizes[0].inner
        index = cast(lowering, places[0][1], I32)
        inner = _within_row(lowering, index, count)
        if inner is not None:
            x = reshaped(x, (Size(1, True), Size(count)))
            everywhere = [0] * len([n for dim in inner.dims for n in dim if n != ROWS])
            rows = Tensor(View(lowering.positions.view.value, inner.view.shape, tuple(everywhere)), inner.dims)
            return x, Places(lowering, x, [(0, rows), (1, inner)], wraps=False)
    return x, Places(lowering, x, places)


def _whole(view: View | None) -> View | None:
    """Integers that were converted to float32 and back, without the conversions."""
    found = view
    for function in ("int", "float"):
        if found is None or not isinstance(found.value, Map) or found.value.function != function:
            return view
        found = inlined(found, found.value.arguments[0])
    return found


def _within_row(lowering: Lowering, index: Tensor, count: int) -> Tensor | None:
    """i of an index arange(rows) * count + i."""
    positions, value = lowering.positions.view.value, index.view.value
    if not isinstance(value, Map) or value.function != "add":
        return None
    parts = [_whole(inlined(index.view, argument)) for argument in value.arguments]
    for one, other in (parts, parts[::-1]):
        if one is None or other is None:
            continue
        own = one.value
        if count == 1 and own is positions:
            return Tensor(other, index.dims)
        if isinstance(own, Map) and own.function == "mul":
            factors = [argument.value for argument in own.arguments]
            if positions in factors and any(isinstance(f, Constant) and f.numbers == (float(count),) for f in factors):
                return Tensor(other, index.dims)
    return None


@rule("index_put", "_unsafe_index_put", chosen=True)
def index_put(lowering: Lowering, node: Node) -> Lowered:
    """Write numbers to base at indices or where a mask holds. They are added, or replace the old ones."""
    base, adds = lowering.tensor(node, node.args[0]), bool(given(node, "accumulate"))
    nodes = [(d, i) for d, i in enumerate(given(node, "indices")) if i is not None]
    places = [(d, lowering.tensor(node, i)) for d, i in nodes]
    values: Any = given(node, "values")
    new = cast(lowering, lowering.tensor(node, values), base.dtype)
    if adds and base.dtype == BOOL:
        raise Unsupported("adds truth values")
    if any(tensor.dtype == BOOL for _, tensor in places):
        if any(n.rows for n in new.sizes) and not marks(values):
            raise Unsupported("writes all rows' numbers to those that truth values choose")
        return _put_chosen(lowering, base, places, new, adds)
    if any(marks(i) for _, i in nodes) and not adds:
        raise Unsupported("writes at indices of rows that truth values choose")
    if adds:
        new = cast(lowering, masked(lowering, values), base.dtype)
    turned, at = _flat(lowering, base, places)
    if turned is not base and at.index is not None:
        new = _or_nan(lowering, at, new)
    return reshaped(_put(lowering, turned, at, new, adds), base.sizes)


def _or_nan(lowering: Lowering, places: Places, new: Tensor) -> Tensor:
    """New numbers, NaN in place of those that would be written to other rows."""
    assert places.index is not None
    index, count = places.index, places.x.sizes[1].inner
    low = apply(lowering, "lt", index, number(lowering, 0.0, I32))
    beyond = apply(lowering, "or", low, apply(lowering, "ge", index, number(lowering, float(count), I32)))
    places.index = apply(lowering, "where", beyond, number(lowering, 0.0, I32), index)
    if new.dtype != F32:
        raise Unsupported("writes integers at indices of all rows together")
    nan = number(lowering, math.nan)
    return apply(lowering, "where", reshaped(beyond, places.asked), nan, expanded(new, places.asked))


def _put(lowering: Lowering, base: Tensor, places: Places, new: Tensor, adds: bool) -> Tensor:
    """base with new numbers, which have the dimensions that reading at the indices gives, or fewer."""
    rest, several = tuple(base.sizes[d] for d in places.left), len(places.sizes)
    new, front = places.unordered(new), places.front(base)
    if places.index is None:
        found = expanded(front, (*places.sizes, *rest, Size(1)))
        found = reshaped(found, found.sizes[:-1])
        return _base_order(base, places, apply(lowering, "add", found, new) if adds else new)
    if places.row is None and any(n.rows for n in places.sizes):
        if not adds:
            raise Unsupported("writes each row's numbers to what all rows share")
        total = Size(math.prod(n.inner for n in rest))
        count = front.sizes[-1].inner
        flat = _summed(lowering, places.index, reshaped(new, (*places.sizes, total)), count)
        found = permuted(reshaped(flat, (Size(count), *rest)), [*range(1, len(rest) + 1), 0])
        return apply(
            lowering, "add", base, _base_order(base, places, reshaped(found, (*[Size(1)] * several, *found.sizes)))
        )
    rows = next((d for d, n in enumerate(places.sizes) if n.rows), None)
    others = [d for d in range(several) if d != rows]
    total = Size(math.prod(places.sizes[d].inner for d in others))
    first = (Size(1, True),) if rows is not None else (Size(1),)
    turned = permuted(new, [*([] if rows is None else [rows]), *range(several, several + len(rest)), *others])
    turned = reshaped(turned, (*first, *rest, total))
    index = permuted(places.index, [*([] if rows is None else [rows]), *others])
    index = reshaped(index, (*first, *[Size(1)] * len(rest), total))
    front = reshaped(front, (*first, *rest, front.sizes[-1]))
    found = written(lowering, front, index, turned, adds)
    return _base_order(
        base, places, reshaped(found, (*[n if n.rows else Size(1) for n in places.sizes], *found.sizes[1:]))
    )


def _base_order(base: Tensor, places: Places, x: Tensor) -> Tensor:
    """[..., left ..., inner together], as front() gives it, in base's dimensions."""
    rows = [] if places.row is None else [places.row]
    order = [*rows, *places.left, *places.inner]
    whole = reshaped(x, [base.sizes[d] for d in order])
    return permuted(whole, [order.index(d) for d in range(len(order))])


def _put_chosen(lowering: Lowering, base: Tensor, places: list[tuple[int, Tensor]], new: Tensor, adds: bool) -> Tensor:
    """base with new numbers where a mask holds, and at integers."""
    sizes = base.sizes
    base, places = _masks_as_one(base, places)
    dim, mask = next((d, i) for d, i in places if i.dtype == BOOL)
    if len(places) == 1:
        rest = len(base.dims) - dim - 1
        here = reshaped(mask, (*mask.sizes, *[Size(1)] * rest))
        whole = apply(lowering, "add", base, new) if adds else new
        if len(new.dims) > len(base.dims):
            raise Mismatch("numbers of more dimensions than what they are written to")
        return reshaped(apply(lowering, "where", here, whole, base), sizes)
    at = Places(lowering, base, [(d, _all(lowering, i)) for d, i in places])
    found = _put(lowering, base, at, new, adds)
    here = reshaped(mask, (*[Size(1)] * dim, *mask.sizes, *[Size(1)] * (len(base.dims) - dim - 1)))
    return reshaped(apply(lowering, "where", here, found, base), sizes)
