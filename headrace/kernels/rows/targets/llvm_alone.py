"""Products and copies for blocks of one row, whose lanes run along a value's numbers.

Weights are read with the numbers of one term side by side. Those that lie otherwise are turned once a call. Sums are
taken in the same order as with rows as lanes: a product has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.kernels.rows.row_plan import VECTOR, Transposed, padded
from headrace.kernels.rows.targets.llvm_expressions import Step
from headrace.kernels.rows.targets.llvm_math import maximum
from headrace.kernels.rows.targets.llvm_products import Multiply, turned
from headrace.kernels.rows.targets.llvm_text import Body, Module

TOGETHER = 12, 6  # vectors of sums in registers, of 32 and of 16


def multiply_alone(module: Module, sizes: Multiply, wide: bool) -> str:
    """The function of %weight, %source, %target, and %bias: see Multiply, for one lane. The numbers of a column of the
    weights lie side by side."""
    b, most = Body(), TOGETHER[not wide]
    vectors, rest = divmod(sizes.rows, VECTOR)
    whole = vectors - vectors % most
    if whole:
        with b.loop(whole * VECTOR, most * VECTOR) as first:
            _numbers(b, sizes, first, most)
    if vectors > whole:
        _numbers(b, sizes, str(whole * VECTOR), vectors - whole)
    if rest:
        b.width = 1
        _numbers(b, sizes, str(vectors * VECTOR), rest)
    parameters = "ptr noalias %weight, ptr noalias %source, ptr noalias %target"
    return module.function(b, parameters + ", ptr noalias %bias" * (sizes.start == "bias"))


def _numbers(b: Body, sizes: Multiply, first: str, count: int) -> None:
    """So many vectors of the target, or numbers for a width of 1, from `first` on."""
    places = [b.plus(first, i * b.width) for i in range(count)]
    starts = [(b.f32, b.number(0))] * count
    if sizes.start == "bias":
        starts = [(b.f32, _bias(b, sizes.bias, at)) for at in places]
    assert sizes.terms is not None
    with b.carrying(sizes.terms, starts) as (k, sums, ends):
        x = b.broadcast(b.load("%source", b.times(k, sizes.source), one=True))
        weight = b.at("%weight", b.plus(b.times(k, sizes.column), first))
        ends += [b.fma(b.load(weight, str(i * b.width)), x, total) for i, total in enumerate(sums)]
    for at, total in zip(places, ends, strict=True):
        b.store(maximum(b, total, b.number(0)) if sizes.floor else total, "%target", at)


def _bias(b: Body, stride: int, at: str) -> str:
    if stride == 1 or b.width == 1:
        return b.load("%bias", b.times(at, stride))
    found = "poison"
    for i in range(b.width):
        one = b.load("%bias", b.times(b.plus(at, i), stride), one=True)
        found = b.new(f"insertelement {b.f32} {found}, float {one}, i64 {i}")
    return found


def turn_weight(module: Module, shape: Sequence[int], strides: Sequence[int], pitch: int) -> str:
    """The function of %weight, a matrix, and %packed, that writes its columns, `pitch` numbers apart."""
    b, (rows, terms), (row, column) = Body(), shape, strides
    tall, across = (n - n % VECTOR if column == 1 else 0 for n in (rows, terms))
    if tall and across:
        with b.loop(tall, VECTOR) as r, b.loop(across, VECTOR) as k:
            given = b.at("%weight", b.plus(b.times(r, row), k))
            target = b.at("%packed", b.plus(b.times(k, pitch), r))
            for i, own in enumerate(turned(b, [b.load(given, str(j * row)) for j in range(VECTOR)])):
                b.store(own, target, str(i * pitch))
    b.width = 1
    edges = [(0, tall, across, terms), (tall, rows, 0, terms)] if tall and across else [(0, rows, 0, terms)]
    for top, bottom, left, right in edges:
        if bottom > top and right > left:
            with b.loop(bottom, begin=top) as r, b.loop(right, begin=left) as k:
                one = b.load("%weight", b.plus(b.times(r, row), b.times(k, column)))
                b.store(one, "%packed", b.plus(b.times(k, pitch), r))
    return module.function(b, "ptr noalias %weight, ptr noalias %packed")


def padded_step(step: Step, value: Transposed) -> Step:
    """Copy numbers to a vector's length: of those behind the last, sums are never read."""
    b, view = step.body, value.source
    (source, offset), target = step.address(view.value, view.offset), step.pointer(value)

    def along(index: list[str], at: str, to: str) -> None:
        axis = len(index)
        if axis < len(view.shape) - 1:
            size = padded(view.shape[-1])
            for n in view.shape[axis + 1 : -1]:
                size *= n
            with b.loop(view.shape[axis]) as i:
                along([*index, i], b.plus(at, b.times(i, view.strides[axis])), b.plus(to, b.times(i, size)))
            return
        count, stride = view.shape[-1], view.strides[-1]
        whole = count - count % VECTOR if stride == 1 else 0
        for first, end, width in ((0, whole, VECTOR), (whole, count, 1)):
            if end > first:
                b.width = width
                with b.loop(end, width, first) as k:
                    b.store(b.load(source, b.plus(at, b.times(k, stride))), target, b.plus(to, k))

    along([], str(offset), "0")
    return step
