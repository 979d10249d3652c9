"""Rules of sums and matrix products: where rows meet, and where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.kernels.rows.lowering.pointwise import apply, cast, number
from headrace.kernels.rows.lowering.rules import Lowered, Lowering, Unsupported, rule
from headrace.kernels.rows.lowering.selecting import chosen, masked
from headrace.kernels.rows.lowering.tensors import (
    ROWS,
    Dimension,
    Mismatch,
    Size,
    Tensor,
    expanded,
    finest,
    inner_axes,
    permuted,
    rebuilt,
    reshaped,
    split,
)
from headrace.kernels.rows.lowering.views import merged
from headrace.kernels.rows.row_program import BOOL, F32, I32, Count, View
from headrace.kernels.rows.tracing.nodes import given, operation_name

if TYPE_CHECKING:
    from torch.fx import Node

BATCHES = 64  # of a product with weights of their own for each: so many products at most


@rule("sum", "mean", "amax", "amin", "prod", "any", "all", "max", "min", "argmax", "argmin", chosen=True)
def reduction(lowering: Lowering, node: Node) -> Lowered:
    """Lower a reduction over some dimensions, or over all."""
    name = operation_name(node)
    x = lowering.tensor(node, node.args[0])
    dims, keep = _dims(node, len(x.dims)), bool(given(node, "keepdim", False))
    if name in ("any", "all"):
        x = cast(lowering, x, BOOL)
    elif name in ("sum", "mean", "prod"):
        x = cast(lowering, x, lowering.dtype(node))
    at = lowering.traced.selections.dimension(node.args[0])
    if at is not None and at in dims:
        return _of_chosen(lowering, node, x, dims, keep)
    if name in ("max", "min") and given(node, "dim") is not None:
        values = reduced(lowering, "a" + name, x, dims, keep)
        if any(ROWS in x.dims[d] for d in dims):
            return [values, None]
        return [values, reduced(lowering, "arg" + name, x, dims, keep)]
    found = reduced(lowering, {"max": "amax", "min": "amin"}.get(name, name), x, dims, keep)
    return found


@rule("chosen_count", chosen=True)
def chosen_count(lowering: Lowering, node: Node) -> Lowered:
    """Number that is computed from the count of chosen numbers."""
    mask, factor, power, less, plus = node.args
    ones = cast(lowering, lowering.tensor(node, mask), F32)
    found = reduced(lowering, "sum", ones, list(range(len(ones.dims))), False)
    if less:
        found = apply(lowering, "sub", found, number(lowering, float(less)))  # type: ignore[arg-type]
    if power == 2 or power == -2:
        found = apply(lowering, "mul", found, found)
    if power < 0:  # type: ignore[operator]
        found = apply(lowering, "reciprocal", found)
    found = apply(lowering, "mul", found, number(lowering, float(factor)))  # type: ignore[arg-type]
    return apply(lowering, "add", found, number(lowering, float(plus))) if plus else found  # type: ignore[arg-type]


def _of_chosen(lowering: Lowering, node: Node, x: Tensor, dims: list[int], keep: bool) -> Tensor:
    """A reduction of the numbers that truth values choose."""
    name, mask = operation_name(node), chosen(lowering, node.args[0])
    assert mask is not None
    if name not in ("sum", "mean", "any", "all"):  # of none at all, torch raises
        raise Unsupported(f"takes {name} of what truth values choose")
    left = apply(lowering, "where", mask, x, number(lowering, float(name == "all"), x.dtype))
    found = reduced(lowering, "sum" if name == "mean" else name, left, dims, keep)
    if name == "mean":
        found = apply(lowering, "div", found, reduced(lowering, "sum", cast(lowering, mask, F32), dims, keep))
    return found


def _dims(node: Node, count: int) -> list[int]:
    dims = given(node, "dim", given(node, "dims"))
    dims = [dims] if isinstance(dims, int) else list(dims or [])
    return sorted(d % count for d in dims) if dims else list(range(count))


_FUNCTIONS = {"amax": "max", "amin": "min", "mean": "sum"}


def reduced(lowering: Lowering, name: str, x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
    """A reduction over dimensions."""
    over_rows = any(ROWS in x.dims[d] for d in dims)
    if over_rows and x.dtype == I32:  # whole numbers up to 2^24 are exact
        return cast(lowering, reduced(lowering, name, cast(lowering, x, F32), dims, keep), I32)
    if over_rows and name in ("any", "all") and x.rows:
        truths = reduced(lowering, {"any": "amax", "all": "amin"}[name], cast(lowering, x, F32), dims, keep)
        return cast(lowering, truths, BOOL)
    if over_rows and name not in ("sum", "mean", "amax", "amin") and x.rows:
        raise Unsupported(f"takes {name} over rows; sums, means, the largest and the smallest are compiled")
    if over_rows and not x.rows and name not in ("sum", "mean", "amax", "amin", "any", "all"):
        raise Unsupported(f"takes {name} over rows")
    function = _FUNCTIONS.get(name, name)
    if function.startswith("arg"):
        x = cast(lowering, x, F32) if x.dtype == BOOL else x
        if x.dtype != F32:
            raise Unsupported("takes the place of the largest of integers, as by argmax or in the gradient of cumprod")
        if len(dims) != 1:
            x, dims = reshaped(x, (_product(x.sizes),)), [0]
        x = merged(lowering, x, dims[0])
        if not x.dims[dims[0]]:  # of one number: it is the first
            return squeezed(Tensor(lowering.build.number(0.0, x.view.shape, I32), x.dims), dims, keep)
    kept = [d for d in range(len(x.dims)) if d not in dims]
    turned = permuted(x, [*kept, *dims])
    total = _product([x.sizes[d] for d in dims])
    axes = inner_axes(x.dims[d] for d in kept)
    source = turned.view
    value = lowering.build.reduce(function, source, len(axes), over_rows and x.rows)
    left: list[Dimension] = [x.dims[d] for d in kept]
    if over_rows and not x.rows and function == "sum":  # the same number, as often as there are rows
        value = lowering.build.map("mul", value, lowering.build.number(Count(1.0, 1), axes))
    if name == "mean":
        share: float | Count = Count(1 / total.inner, -1) if total.rows else 1 / total.inner
        value = lowering.build.map("mul", value, lowering.build.number(share, axes))
    found = Tensor(value, tuple(left))
    if keep:
        found = reshaped(found, [Size(1) if d in dims else size for d, size in enumerate(x.sizes)])
    return found


def squeezed(x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
    """Remove dimensions of size 1, unless they are kept."""
    return x if keep else reshaped(x, [size for d, size in enumerate(x.sizes) if d not in dims])


def _product(sizes: Sequence[Size]) -> Size:
    inner = 1
    for size in sizes:
        inner *= size.inner
    return Size(inner, any(size.rows for size in sizes))


@rule("var", "std", "var_mean", chosen=True)
def variance(lowering: Lowering, node: Node) -> Lowered:
    """The mean squared distance from the mean, which takes a pass over the numbers of its own."""
    name, x = operation_name(node), lowering.tensor(node, node.args[0])
    mask = chosen(lowering, node.args[0])
    dims, keep = _dims(node, len(x.dims)), bool(given(node, "keepdim", False))
    less = given(node, "correction")
    less = (1 if given(node, "unbiased", True) else 0) if less is None else less
    at = lowering.traced.selections.dimension(node.args[0])
    if mask is not None and at in dims:
        return _variance_of_chosen(lowering, name, x, mask, dims, keep, float(less))
    mean = reduced(lowering, "mean", x, dims, True)
    distance = apply(lowering, "sub", x, mean)
    total = reduced(lowering, "sum", apply(lowering, "mul", distance, distance), dims, keep)
    count = _product([x.sizes[d] for d in dims])
    share: float | Count = 1 / (count.inner - less) if not count.rows else Count(1.0, -1, int(less))
    if count.rows and count.inner != 1:
        share = Count(1 / count.inner, -1, less / count.inner)
    found = apply(lowering, "mul", total, Tensor(lowering.build.number(share, ()), ()))
    if name == "std":
        found = apply(lowering, "sqrt", found)
    return [found, mean if keep else squeezed(mean, dims, False)] if name == "var_mean" else found


def _variance_of_chosen(
    lowering: Lowering, name: str, x: Tensor, mask: Tensor, dims: list[int], keep: bool, less: float
) -> Lowered:
    zero = number(lowering, 0.0)
    count = reduced(lowering, "sum", cast(lowering, mask, F32), dims, True)
    mean = apply(lowering, "div", reduced(lowering, "sum", apply(lowering, "where", mask, x, zero), dims, True), count)
    distance = apply(lowering, "where", mask, apply(lowering, "sub", x, mean), zero)
    total = reduced(lowering, "sum", apply(lowering, "mul", distance, distance), dims, True)
    found = apply(lowering, "div", total, apply(lowering, "sub", count, number(lowering, less)))
    if name == "std":
        found = apply(lowering, "sqrt", found)
    results = [squeezed(found, dims, keep), squeezed(mean, dims, keep)]
    return list(results) if name == "var_mean" else results[0]


@rule("cumsum", "cumprod", chosen=True)
def cumulative(lowering: Lowering, node: Node) -> Lowered:
    """Sum, or product, over j of x[j] where j <= i, for each i."""
    function, neutral = ("sum", 0.0) if operation_name(node) == "cumsum" else ("prod", 1.0)
    x, dim = lowering.tensor(node, node.args[0]), given(node, "dim") % len(lowering.tensor(node, node.args[0]).dims)
    if ROWS in x.dims[dim]:
        raise Unsupported("takes a cumulative sum or product along the rows")
    x = merged(lowering, cast(lowering, x, lowering.dtype(node)), dim)
    if not x.dims[dim]:
        return x
    count = x.sizes[dim].inner
    last = permuted(x, [*(d for d in range(len(x.dims)) if d != dim), dim])
    axes, strides = last.view.shape[:-1], last.view.strides
    shape = (*axes, count, count)
    source = View(last.view.value, shape, (*strides[:-1], 0, strides[-1]), last.view.offset)
    build = lowering.build
    upto = build.map("le", build.steps(count, shape, len(axes) + 1), build.steps(count, shape, len(axes)))
    masked = build.map("where", upto, source, build.number(neutral, shape, x.dtype))
    summed = Tensor(build.reduce(function, masked, len(axes) + 1), last.dims)
    order = list(range(len(x.dims) - 1))
    order.insert(dim, len(x.dims) - 1)
    return permuted(summed, order)


@rule("_trilinear")
def trilinear(lowering: Lowering, node: Node) -> Lowered:
    """The product of three tensors, each with some dimensions of size 1, summed over some dimensions."""
    factors = []
    for i in "123":
        x = lowering.tensor(node, given(node, f"i{i}"))
        sizes = list(x.sizes)
        for dim in given(node, f"expand{i}"):
            sizes.insert(dim, Size(1))
        factors.append(reshaped(x, sizes))
    product = apply(lowering, "mul", apply(lowering, "mul", factors[0], factors[1]), factors[2])
    return reduced(lowering, "sum", product, sorted(given(node, "sumdim")), False)


@rule("addmm", "addbmm", "baddbmm", chosen=True)
def addmm(lowering: Lowering, node: Node) -> Lowered:
    if operation_name(node) == "addbmm":
        raise Unsupported("uses addbmm, which is not compiled")
    bias = lowering.tensor(node, given(node, "self"))
    names = ("mat1", "mat2") if operation_name(node) == "addmm" else ("batch1", "batch2")
    left, right = (_factor(lowering, given(node, name)) for name in names)
    product = matmul(lowering, left, right)
    for name, x in (("alpha", "product"), ("beta", "bias")):
        factor = given(node, name, 1)
        if factor != 1 and x == "product":
            product = apply(lowering, "mul", product, number(lowering, float(factor)))
        elif factor != 1:
            bias = apply(lowering, "mul", bias, number(lowering, float(factor)))
    return apply(lowering, "add", product, bias)


@rule("mm", "bmm", "mv", "dot", "matmul", chosen=True)
def mm(lowering: Lowering, node: Node) -> Lowered:
    left, right = (_factor(lowering, argument) for argument in node.args[:2])
    name = operation_name(node)
    if name == "dot":
        return reduced(lowering, "sum", apply(lowering, "mul", left, right), [0], False)
    if name == "mv":
        column = reshaped(right, (*right.sizes, Size(1)))
        return squeezed(matmul(lowering, left, column), [1], False)
    return matmul(lowering, left, right)


def _factor(lowering: Lowering, node: Any) -> Tensor:
    """Factor of a product. Rows that truth values did not choose are 0, since a sum must not include them."""
    return masked(lowering, node)


def matmul(lowering: Lowering, left: Tensor, right: Tensor) -> Tensor:
    """[..., M, K] times [..., K, N]."""
    *batch, m, k = left.dims
    n = right.dims[-1]
    middle = finest([axes for axes in (k, right.dims[-2]) if axes] or [()])
    left = split(left, [*batch, m, _or_expanded(k, middle)])
    right = split(right, [*right.dims[:-2], _or_expanded(right.dims[-2], middle), n])
    if ROWS in middle:
        return _gradient(lowering, left, right)
    if left.dtype != F32 or right.dtype != F32:
        raise Unsupported("multiplies matrices of integers")
    if (left.rows and right.rows) or not (left.rows or right.rows):
        return _by_number(lowering, left, right)
    if any(ROWS in dim for dim in (left.dims[-1], right.dims[-2])):
        raise Mismatch("a product that sums over rows of one factor alone")
    if right.rows:  # (left @ right)^T = right^T @ left^T
        turned = _with_weights(lowering, _turned(right), _turned(left))
        return _turned(turned)
    return _with_weights(lowering, left, right)


def _or_expanded(own: Dimension, other: Dimension) -> Dimension:
    return other if own else own


def _turned(x: Tensor) -> Tensor:
    count = len(x.dims)
    return permuted(x, [*range(count - 2), count - 1, count - 2])


def _with_weights(lowering: Lowering, left: Tensor, right: Tensor) -> Tensor:
    """Product of a tensor that has rows with weights that have none: [..., M, K] times [..., K, N]."""
    left, right = merged(lowering, left, len(left.dims) - 1), merged(lowering, right, len(right.dims) - 2)
    right = merged(lowering, right, len(right.dims) - 1)
    batch, m, n = left.dims[:-2], left.dims[-2], right.dims[-1]
    source, k = left.view, left.sizes[-1].inner
    if not left.dims[-1]:  # of one number
        source = View(source.value, (*source.shape, 1), (*source.strides, 0), source.offset)
    alone = not any(axes and any(steps) for axes, steps in zip(right.dims[:-2], right.strides()[:-2], strict=True))
    if alone or not any(batch):
        weight = _matrix(right, k)
        made = lowering.build.product(source, weight)
        return _grouped(made, (*batch, m, n))
    parts = []
    if any(ROWS in axes for axes in right.dims[:-2]):
        raise Mismatch("weights of their own for each row")
    axes = inner_axes(batch)
    if len(axes) != 1 or any(ROWS in axes_ for axes_ in batch) or axes[0] > BATCHES:
        raise Unsupported("multiplies by more than 64 matrices of weights, or by several along several dimensions")
    wide = expanded(right, (*left.sizes[:-2], *right.sizes[-2:]))
    for i in range(axes[0]):
        own = View(source.value, source.shape[1:], source.strides[1:], source.offset + i * source.strides[0])
        flat = [stride for dim in wide.strides()[:-2] for stride in dim]
        part = rebuilt(wide, wide.dims[-2:], wide.strides()[-2:], i * flat[0])
        made = lowering.build.product(own, _matrix(part, k))
        parts.append(View(made.value, (1, *made.shape), (0, *made.strides)))
    return _grouped(lowering.build.join(parts, 0), (*batch, m, n))


def _matrix(right: Tensor, k: int) -> View:
    """Weights [N, K] of a Product from [..., K, N], which is the same for all of the leading dimensions."""
    view = right.view
    own = [stride for dim in right.strides()[-2:] for stride in dim]
    columns = right.sizes[-1].inner
    inner_stride = own[0] if right.dims[-2] else 0
    outer_stride = own[-1] if right.dims[-1] else 0
    return View(view.value, (columns, k), (outer_stride, inner_stride), view.offset)


def _grouped(view: View, dims: Sequence[Dimension]) -> Tensor:
    """Tensor of a product's view. The view's last axis may be of size 1; a dimension of size 1 has no axis."""
    axes = inner_axes(dims)
    return Tensor(View(view.value, axes, _strides(view, axes), view.offset), tuple(dims))


def _strides(view: View, axes: Sequence[int]) -> tuple[int, ...]:
    found = [stride for n, stride in zip(view.shape, view.strides, strict=True) if n != 1]
    assert len(found) == len(axes), (view.shape, axes)
    return tuple(found)


def _gradient(lowering: Lowering, left: Tensor, right: Tensor) -> Tensor:
    """[M, K] times [K, N], where the rows are in K: the sum over them of outer products."""
    if not left.rows or not right.rows:
        return _by_number(lowering, left, right)
    if len(left.dims) > 2:
        return _summed_batches(lowering, left, right)
    left, right = merged(lowering, left, 0), merged(lowering, right, 1)
    views = []
    for x in (permuted(left, [1, 0]), right):
        view = x.view
        if not x.dims[1]:
            view = View(view.value, (*view.shape, 1), (*view.strides, 0), view.offset)
        views.append(view)
    return _grouped(lowering.build.outer(*views), (left.dims[0], right.dims[1]))


def _summed_batches(lowering: Lowering, left: Tensor, right: Tensor) -> Tensor:
    """One product for each of the leading dimension's matrices."""
    batch = inner_axes(left.dims[:-2])
    if not batch:  # one matrix
        one = _gradient(lowering, *(rebuilt(x, x.dims[-2:], x.strides()[-2:]) for x in (left, right)))
        return Tensor(one.view, (*left.dims[:-2], *one.dims))
    if len(batch) != 1 or batch[0] > BATCHES:
        raise Unsupported("sums products over rows for more than 64 matrices, or along several dimensions")
    right = expanded(right, (*left.sizes[:-2], *right.sizes[-2:]))
    parts = []
    for i in range(batch[0]):
        pair = []
        for x in (left, right):
            steps = [stride for dim in x.strides()[:-2] for stride in dim]
            pair.append(rebuilt(x, x.dims[-2:], x.strides()[-2:], i * steps[0]))
        one = _gradient(lowering, *pair)
        parts.append(View(one.view.value, (1, *one.view.shape), (0, *one.view.strides), one.view.offset))
    joined = lowering.build.join(parts, 0)
    return Tensor(joined, (*left.dims[:-2], left.dims[-2], right.dims[-1]))


def _by_number(lowering: Lowering, left: Tensor, right: Tensor) -> Tensor:
    """Product in which both factors have rows, or neither has: each number is a sum of products of its own."""
    m, n = left.sizes[-2], right.sizes[-1]
    rows = reshaped(left, (*left.sizes[:-1], Size(1), left.sizes[-1]))
    columns = _turned(right)
    columns = reshaped(columns, (*columns.sizes[:-2], Size(1), *columns.sizes[-2:]))
    if m.rows and n.rows:
        raise Mismatch("each row multiplied by each other row")
    products = apply(lowering, "mul", rows, columns)
    return reduced(lowering, "sum", products, [len(products.dims) - 1], False)
