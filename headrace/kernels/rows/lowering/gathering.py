"""Rules of reading and writing along one dimension: gather, scatter.

Indices are looked up by comparing them with each place, for all lanes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.kernels.rows.lowering.features import back, last, with_axis
from headrace.kernels.rows.lowering.pointwise import apply, cast, number
from headrace.kernels.rows.lowering.rules import Lowered, Lowering, Unsupported, rule
from headrace.kernels.rows.lowering.sums import reduced
from headrace.kernels.rows.lowering.tensors import ROWS, Size, Tensor, expanded, reshaped, together
from headrace.kernels.rows.lowering.views import cut, joined, merged
from headrace.kernels.rows.row_program import I32, Constant, View
from headrace.kernels.rows.tracing.nodes import given, operation_name

if TYPE_CHECKING:
    from torch.fx import Node

PARTS = 64  # numbers at fixed places that are put together one by one


def steps(lowering: Lowering, count: int) -> Tensor:
    """0, 1, 2 ... along one dimension."""
    found = lowering.build.steps(count, (count,), 0) if count > 1 else lowering.build.number(0.0, (), I32)
    return Tensor(found, ((count,) if count > 1 else (),))


def fixed(index: Tensor) -> list[int] | None:
    """The numbers of an index of one dimension that the program's text contains."""
    value, view = index.view.value, index.view
    if not isinstance(value, Constant) or len(view.shape) > 1 or not all(isinstance(n, float) for n in value.numbers):
        return None
    places = [view.offset + i * s for n, s in zip(view.shape, view.strides, strict=True) for i in range(n)]
    return [int(value.numbers[i]) for i in places or [view.offset]]  # type: ignore[arg-type]


def beside(lowering: Lowering, x: Tensor, index: Tensor) -> Tensor:
    """x[..., index[..., j]] for each j."""
    front = reshaped(x, (*x.sizes[:-1], Size(1), x.sizes[-1]))
    return picked(lowering, expanded(front, (*index.sizes, x.sizes[-1])), index)


def picked(lowering: Lowering, x: Tensor, index: Tensor) -> Tensor:
    """x[..., index[...]], along the last dimension of x."""
    pair, dims = together([x, reshaped(index, (*index.sizes, Size(1)))])
    source, own = merged(lowering, pair[0], len(dims) - 1), pair[1].view
    end = len(own.shape) - len([n for n in pair[1].dims[-1] if n != ROWS])
    places = View(own.value, own.shape[:end], own.strides[:end], own.offset)
    return Tensor(lowering.build.pick(with_axis(source), places), dims[:-1])


@rule("gather", chosen=True)
def gather(lowering: Lowering, node: Node) -> Lowered:
    """value[..., j] = x[..., index[..., j]]."""
    x, index = lowering.tensor(node, given(node, "self")), lowering.tensor(node, given(node, "index"))
    dim = given(node, "dim") % max(len(x.dims), 1)
    if ROWS in x.dims[dim]:
        raise Unsupported("gathers from other rows")
    x, index = last(merged(lowering, x, dim), dim), last(cast(lowering, index, I32), dim)
    return back(beside(lowering, _as_far(lowering, x, index), index), dim)


def _as_far(lowering: Lowering, x: Tensor, index: Tensor) -> Tensor:
    """Part of x that an index of these sizes can reach. The last dimension stays whole."""
    for d in range(len(x.dims) - 1):
        if x.sizes[d] != index.sizes[d]:
            if x.sizes[d].rows or index.sizes[d].rows:
                raise Unsupported("takes fewer rows than there are")
            x = cut(lowering, x, d, Size(0), index.sizes[d])
    return x


@rule("scatter_add", "scatter", "scatter_reduce", chosen=True)
def scatter(lowering: Lowering, node: Node) -> Lowered:
    """base, plus (or replaced by) each source's number at the index that goes with it."""
    name = operation_name(node)
    base, index = lowering.tensor(node, given(node, "self")), lowering.tensor(node, given(node, "index"))
    source = given(node, "src")
    if source is None:
        source = given(node, "value")
    dim = given(node, "dim") % max(len(base.dims), 1)
    if ROWS in base.dims[dim]:
        raise Unsupported("scatters to other rows")
    if given(node, "reduce") not in (None, "sum", "add") or given(node, "include_self") is False:
        raise Unsupported(f"scatters with reduce={given(node, 'reduce')!r}")
    adds = name == "scatter_add" or given(node, "reduce") is not None
    numbers = cast(lowering, lowering.tensor(node, source), base.dtype)
    for d in range(len(numbers.dims)):
        if numbers.sizes[d] != index.sizes[d] and not numbers.sizes[d].rows:
            numbers = cut(lowering, numbers, d, Size(0), index.sizes[d])
    numbers = last(expanded(numbers, index.sizes), dim)
    base, index = last(base, dim), last(cast(lowering, index, I32), dim)
    return back(_beyond(lowering, base, written(lowering, _as_far(lowering, base, index), index, numbers, adds)), dim)


def _beyond(lowering: Lowering, base: Tensor, new: Tensor) -> Tensor:
    """A tensor whose first numbers along some dimensions are new."""
    for d in reversed(range(len(base.dims) - 1)):
        if base.sizes[d] != new.sizes[d]:
            own = base
            for other in range(d):
                own = (
                    cut(lowering, own, other, Size(0), new.sizes[other])
                    if own.sizes[other] != new.sizes[other]
                    else own
                )
            count = new.sizes[d].inner
            rest = cut(lowering, own, d, Size(count), Size(base.sizes[d].inner - count))
            new = joined(lowering, [new, rest], d)
    return new


def written(lowering: Lowering, base: Tensor, index: Tensor, new: Tensor, adds: bool) -> Tensor:
    """Write new [..., J] to base [..., K] at index [..., J]: added, or in place of old numbers (the last of
    several)."""
    count, several = base.sizes[-1].inner, index.sizes[-1].inner
    known = fixed(index)
    if known is not None and count <= PARTS and len({*known}) == several and {*known} <= {*range(count)}:
        return _at_fixed(lowering, base, known, new, adds)
    numbers = reshaped(new, (*new.sizes[:-1], Size(1), new.sizes[-1]))
    places = reshaped(steps(lowering, count), (Size(count), Size(1)))
    here = apply(lowering, "eq", reshaped(index, (*index.sizes[:-1], Size(1), index.sizes[-1])), places)
    end = len(base.dims)
    if adds:
        found = apply(lowering, "where", here, numbers, number(lowering, 0.0, base.dtype))
        return apply(lowering, "add", base, reduced(lowering, "sum", found, [end], False))
    if several == 1:
        found = apply(lowering, "where", here, numbers, reshaped(base, (*base.sizes, Size(1))))
        return reshaped(found, found.sizes[:-1])
    latest = apply(lowering, "where", here, steps(lowering, several), number(lowering, -1.0, I32))
    latest = reduced(lowering, "amax", latest, [end], False)
    value = picked(lowering, expanded(numbers, (*latest.sizes, numbers.sizes[-1])), latest)
    return apply(lowering, "where", apply(lowering, "ge", latest, number(lowering, 0.0, I32)), value, base)


def _at_fixed(lowering: Lowering, base: Tensor, places: list[int], new: Tensor, adds: bool) -> Tensor:
    """Same as written(), at places that are the same for all rows, none twice: parts are joined side by side."""
    end = len(base.dims) - 1
    parts = [cut(lowering, base, end, Size(k), Size(1)) for k in range(base.sizes[-1].inner)]
    for j, k in enumerate(places):
        own = cut(lowering, new, end, Size(j), Size(1))
        parts[k] = apply(lowering, "add", parts[k], own) if adds else expanded(own, parts[k].sizes)
    return joined(lowering, parts, end) if len(parts) > 1 else parts[0]
