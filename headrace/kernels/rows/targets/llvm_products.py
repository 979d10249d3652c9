"""Matrix products on tiles, whose sums stay in registers: each is taken in order, whatever the machine's registers.

One function serves all three passes of a dense layer, because it takes the strides of its factors:

    forward     target[n, e]  = bias[n] + sum_k weight[n, k] source[k, e]
    backward    target[k, e]  = sum_n weight[n, k] gradient[n, e]
    gradient    target[n, k] += sum_e gradient[n, e] source[e, k], of a transposed source: lanes are k

In blocks of one row lanes are the target's numbers. Weights are read with those of one column side by side, and are
turned once a call where they lie otherwise. Sums are taken in the same order, so products have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.kernels.rows.row_plan import VECTOR, Transposed, padded
from headrace.kernels.rows.row_program import Outer
from headrace.kernels.rows.targets.llvm_expressions import Reader, Step, expression
from headrace.kernels.rows.targets.llvm_math import maximum, select
from headrace.kernels.rows.targets.llvm_steps import _inside, begin
from headrace.kernels.rows.targets.llvm_text import Body, Module

TERMS = (
    64  # of a sum, after which a machine of few registers goes on with the next rows: the source's stay in its cache
)

TOGETHER = 12, 6  # vectors of sums in 32 and in 16 registers, for blocks of one row


@dataclass(frozen=True)
class Multiply:
    """The sizes and strides of target[r, e] = start + sum over k < terms of weight[r, k] * source[k, e].

    terms: None for the function's parameter %count. start: "zero", "target", or "bias": one for each row, `bias`
    numbers apart. Strides are in numbers. e runs over `width` numbers side by side; the source's vectors lie `strip`
    numbers apart. again: count of sums that are computed in turn, whose factors lie `next` numbers apart. floor: sums
    below zero become zero. blocks: distance between the factors of %blocks sums, each of `lanes` terms except the last,
    which has %count; 0 for one sum. half: only half of a vector is computed.
    """

    rows: int
    terms: int | None
    width: int
    row: int
    column: int
    source: int
    target: int
    start: str = "zero"
    bias: int = 0
    again: int = 1
    next: tuple[int, int] = (0, 0)
    floor: bool = False
    strip: int = VECTOR
    blocks: int = 0
    lanes: int = 0
    half: bool = False


def multiply(module: Module, sizes: Multiply, wide: bool) -> str:
    """The function of %weight, %source, %target, and %bias, or %count, or %count and %blocks. wide: the machine has 32
    registers of VECTOR."""
    b = Body(VECTOR // 2 if sizes.half else VECTOR)
    sums, across = (24, 4) if wide else (6 + 6 * sizes.half, 1)
    if sizes.terms is not None and sizes.terms > TERMS and not wide:
        _in_chunks(b, sizes, sums)
    else:
        _columns(b, sizes, sums, across, "0", sizes.terms, sizes.start)
    parameters = "ptr noalias %weight, ptr noalias %source, ptr noalias %target"
    parameters += ", ptr noalias %bias" * (sizes.start == "bias") + ", i64 %count" * (sizes.terms is None)
    parameters += ", i64 %blocks" * (sizes.blocks > 0)
    return module.function(b, parameters)


def _in_chunks(b: Body, sizes: Multiply, sums: int) -> None:
    assert sizes.terms is not None
    last = (sizes.terms - 1) // TERMS * TERMS
    inside = replace(sizes, floor=False)
    _columns(b, inside, sums, 1, "0", TERMS, sizes.start)
    if last > TERMS:
        with b.loop(last, TERMS, TERMS) as k:
            _columns(b, inside, sums, 1, k, TERMS, "target")
    _columns(b, sizes, sums, 1, str(last), sizes.terms - last, "target")


def _columns(b: Body, sizes: Multiply, sums: int, across: int, k: str, terms: int | None, start: str) -> None:
    """All rows of the target, `across` vectors at a time; sums: vectors of them that registers hold."""
    if sizes.half:
        _tiles(b, sizes, sums, 1, "0", k, terms, start)
        return
    step = VECTOR * across
    whole = sizes.width - sizes.width % step
    if whole:
        with b.loop(whole, step) as e:
            _tiles(b, sizes, sums // across, across, e, k, terms, start)
    if sizes.width > whole:
        across = (sizes.width - whole) // VECTOR
        _tiles(b, sizes, sums // across, across, str(whole), k, terms, start)


def _tiles(b: Body, sizes: Multiply, height: int, across: int, e: str, k: str, terms: int | None, start: str) -> None:
    whole = sizes.rows - sizes.rows % height
    if whole:
        with b.loop(whole, height) as r:
            _tile(b, sizes, height, across, r, e, k, terms, start)
    if sizes.rows > whole:
        _tile(b, sizes, sizes.rows - whole, across, str(whole), e, k, terms, start)


def _tile(
    b: Body, sizes: Multiply, height: int, across: int, r: str, e: str, k: str, terms: int | None, start: str
) -> None:
    """One tile of sums in registers."""
    weight = b.at("%weight", b.plus(b.times(r, sizes.row), b.times(k, sizes.column)))
    source = b.at("%source", b.plus(b.times(k, sizes.source), b.times(e, sizes.strip // VECTOR)))
    target = b.at("%target", b.plus(b.times(r, sizes.target), e))
    starts: list[tuple[str, str]] = []
    for i in range(height):
        if start == "target":
            starts += [(b.f32, b.load(target, str(i * sizes.target + v * VECTOR))) for v in range(across)]
            continue
        first = b.number(0)
        if start == "bias":
            first = b.broadcast(b.load("%bias", b.times(b.plus(r, i), sizes.bias), one=True))
        starts += [(b.f32, first)] * across
    count = "%count" if terms is None else terms
    if not sizes.blocks:
        found = _again(b, sizes, (height, across), (weight, source), count, starts)
    else:
        with b.carrying("%blocks", starts) as (block, names, found):
            last = b.new(f"icmp eq i64 {b.plus(block, 1)}, %blocks")
            count = b.new(f"select i1 {last}, i64 %count, i64 {sizes.lanes}")
            weight, source = (b.at(x, b.times(block, sizes.blocks)) for x in (weight, source))
            known = [(b.f32, name) for name in names]
            found += _again(b, sizes, (height, across), (weight, source), count, known)
    for i in range(height):
        for v in range(across):
            total = found[i * across + v]
            b.store(
                maximum(b, total, b.number(0)) if sizes.floor else total, target, str(i * sizes.target + v * VECTOR)
            )


def _again(
    b: Body,
    sizes: Multiply,
    tile: tuple[int, int],
    factors: tuple[str, str],
    terms: int | str,
    starts: list[tuple[str, str]],
) -> list[str]:
    """The sums of one tile, `again` times in turn."""
    if sizes.again == 1:
        return _sums(b, sizes, tile, factors, terms, starts)
    with b.carrying(sizes.again, starts) as (again, names, found):
        weight, source = (b.at(x, b.times(again, n)) for x, n in zip(factors, sizes.next, strict=True))
        found += _sums(b, sizes, tile, (weight, source), terms, [(b.f32, name) for name in names])
    return found


def _sums(
    b: Body,
    sizes: Multiply,
    tile: tuple[int, int],
    factors: tuple[str, str],
    terms: int | str,
    starts: list[tuple[str, str]],
) -> list[str]:
    """The sums of one tile, from what they start with."""
    (height, across), (weight, source) = tile, factors
    with b.carrying(terms, starts) as (j, sums, ends):
        x = [b.load(b.at(source, b.times(j, sizes.source)), str(v * sizes.strip)) for v in range(across)]
        column = b.times(j, sizes.column)
        for i in range(height):
            one = b.broadcast(b.load(weight, b.plus(column, i * sizes.row), one=True))
            ends += [b.fma(one, x[v], sums[i * across + v]) for v in range(across)]
    return ends


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
    """Write so many vectors of the target, or numbers for a width of 1, from `first` on."""
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


def dots_step(step: Step, outer: Outer) -> Step:
    """Add to VECTOR accumulators of each pair of numbers, at %sums, the products of the block's rows."""
    b = step.body
    left, right = expression(step.plan, outer.left), expression(step.plan, outer.right)
    n, k = outer.shape
    batch = outer.left.shape[:-1]
    inside = [_inside(b, first) for first in range(0, step.plan.lanes, VECTOR)]

    def kept(reader: Reader, node: object, mask: str) -> str:
        return select(b, mask, reader.value(node), b.number(0))  # type: ignore[arg-type]

    def pairs(index: list[str]) -> None:
        if len(index) < len(batch):
            with b.loop(batch[len(index)]) as i:
                pairs([*index, i])
            return
        with b.loop(n) as i:
            x = [kept(Reader(step, [*index, i], str(f * VECTOR)), left, m) for f, m in enumerate(inside)]
            with b.loop(k) as j:
                y = [kept(Reader(step, [*index, j], str(f * VECTOR)), right, m) for f, m in enumerate(inside)]
                at = b.times(b.plus(b.times(i, k), j), VECTOR)
                pairs_of_lanes = [b.floats("fmul", *pair) for pair in zip(x[:2], y[:2], strict=True)]
                for f in range(2, len(x)):  # even and odd vectors apart: half as long a chain
                    pairs_of_lanes[f % 2] = b.fma(x[f], y[f], pairs_of_lanes[f % 2])
                total = b.load("%sums", at)
                found = pairs_of_lanes[0] if len(x) == 1 else b.floats("fadd", *pairs_of_lanes)
                b.store(b.floats("fadd", total, found), "%sums", at)

    pairs([])
    return step


def transposed_step(step: Step, value: Transposed) -> Step:
    """Transpose sixteen numbers of sixteen lanes, by four perfect shuffles: each exchanges one bit of the number's
    index with one of the lane's."""
    b, view = step.body, value.source
    count, lanes = view.shape[-1], step.plan.lanes
    (source, offset), target = step.address(view.value, view.offset), step.pointer(value)
    stride = view.strides[-1] * lanes

    def along(index: list[str]) -> None:
        if len(index) < len(view.shape) - 1:
            with b.loop(view.shape[len(index)]) as i:
                along([*index, i])
            return
        places = [b.times(i, s * lanes) for i, s in zip(index, view.strides[:-1], strict=True)]
        begin_ = b.plus(offset * lanes, *places)
        steps = 1
        for size, i in zip(reversed(view.shape[:-1]), reversed(index), strict=True):
            places.append(b.times(i, steps * padded(count) * lanes))
            steps *= size
        to = b.plus(0, *places[len(index) :])
        whole = count - count % VECTOR
        if whole:
            with b.loop(whole, VECTOR) as k, b.loop(lanes, VECTOR) as e:
                at = b.plus(begin_, b.times(k, stride), e)
                _square(b, source, at, stride, VECTOR, target, b.plus(to, b.times(k, lanes), b.times(e, VECTOR)))
        if count > whole:
            with b.loop(lanes, VECTOR) as e:
                at = b.plus(begin_, whole * stride, e)
                _square(b, source, at, stride, count - whole, target, b.plus(to, whole * lanes, b.times(e, VECTOR)))

    along([])
    return step


def _square(b: Body, source: str, at: str, stride: int, count: int, target: str, to: str) -> None:
    base, goal = b.at(source, at), b.at(target, to)
    rows = [b.load(base, str(i * stride)) if i < count else "zeroinitializer" for i in range(VECTOR)]
    for j, row in enumerate(turned(b, rows)):
        b.store(row, goal, str(j * VECTOR))


def turned(b: Body, rows: list[str]) -> list[str]:
    """Transpose VECTOR vectors."""
    halves = [[j + half + VECTOR * row for j in range(8) for row in (0, 1)] for half in (0, 8)]
    for _ in range(4):
        rows = [
            b.new(f"shufflevector {b.f32} {x}, {b.f32} {y}, {b.i32} <{', '.join(f'i32 {i}' for i in half)}>")
            for x, y in zip(rows[:8], rows[8:], strict=True)
            for half in halves
        ]
    return rows


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


__all__ = [
    "Multiply",
    "begin",
    "dots_step",
    "multiply",
    "multiply_alone",
    "padded_step",
    "replace",
    "transposed_step",
    "turn_weight",
    "turned",
]
