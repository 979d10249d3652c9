"""Matrix products of a block of rows: each thread has a tile of sums in registers, taken in order.

Weights are packed before: [terms, rows], rows padded, so that a thread reads several numbers at a time whatever the
strides of the view that the product takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.kernels.rows.gpu.gpu_steps import ThreadStep, inside
from headrace.kernels.rows.gpu.gpu_tensor_cores import COLUMNS, WARPS, Factor, Tile, height_for, multiply, warp
from headrace.kernels.rows.gpu.gpu_text import THREADS, WIDTH, ThreadBody
from headrace.kernels.rows.row_program import Outer, Product, View, contiguous
from headrace.kernels.rows.targets.llvm_math import select

# numbers of a row, and lanes, of a thread's tile
TILES = ((8, 2 * WIDTH), (8, WIDTH), (4, WIDTH), (2, WIDTH), (1, WIDTH), (1, 1))
OUTERS = ((8, 4), (4, 4), (4, 2), (2, 2), (2, 1), (1, 1))
TERMS = (32, 16, 8)  # weights that a thread has at once, and as many that are on their way
OTHERS = 28  # registers of a thread besides its sums, the factors, and where these lie


@dataclass(frozen=True)
class Pack:
    """A product's weights in the order in which threads read them. at: where they begin, in numbers."""

    view: View
    at: int

    @property
    def pitch(self) -> int:
        return packed_rows(self.view)

    @property
    def size(self) -> int:
        return self.pitch * self.view.shape[1]


def packed_rows(weight: View) -> int:
    """Count of a weight's rows, padded so that each tile's numbers are there, and lie aligned."""
    return -(-weight.shape[0] // WIDTH) * WIDTH


def pack_step(step: ThreadStep, pack: Pack) -> None:
    """A block's share of the packing, at %packed: THREADS numbers from %first on."""
    b, view = step.b, pack.view
    at = b.plus("%first", "%tid")
    with b.when(b.less(at, pack.size)):
        term, row = b.divided(at, pack.pitch)
        exists, known = b.less(row, view.shape[0]), b.below(row, view.shape[0])
        place = b.plus(view.offset, b.times(known, view.strides[0]), b.times(term, view.strides[1]))
        found = b.load(step.pointer(view.value), place)
        b.store(select(b, exists, found, b.number(0)), "%packed", at)


def product_step(step: ThreadStep, value: Product) -> None:
    """source x weights, of packed weights at %packed."""
    step.rolled = True
    b, source = step.b, value.source
    rows, lead = value.shape[-1], math.prod(value.shape[:-1])
    if step.tensor_cores and (height := height_for(rows, source.shape[-1], step.lanes, lead)):
        _on_tensor_cores(step, value, height)
        return

    def items(tile: tuple[int, int]) -> int:
        return lead * -(-rows // tile[0]) * (step.lanes // tile[1])

    height, across = next(
        (t for t in TILES if items(t) >= THREADS and t[0] <= packed_rows(value.weight) and t[1] <= step.lanes),
        TILES[-1],
    )
    b.width = min(across, WIDTH)
    groups, down = step.lanes // across, -(-rows // height)
    strides = contiguous(value.shape)
    with b.share(lead * down * groups) as i:
        rest, group = b.divided(i, groups)
        place, group_of_rows = b.divided(rest, down)
        index = b.places(place, list(value.shape[:-1]))
        first = b.times(group_of_rows, height)
        # a thread's vectors lie apart, so that neighbouring threads read neighbouring ones
        lanes = [b.plus(b.times(group, b.width), start) for start in range(0, step.lanes, groups * b.width)]
        offset = [b.times(k, s * step.pitch) for k, s in zip(index, source.strides[:-1], strict=True)]
        begin = b.at(step.pointer(source.value), b.plus(source.offset * step.pitch, *offset))
        sums = _product_sums(step, value, (begin, b.at("%packed", first)), first, height, lanes)
        to = b.plus(*(b.times(k, s * step.pitch) for k, s in zip(index, strides[:-1], strict=True)), 0)
        for number in range(height):
            own = b.plus(first, number)
            with b.when_all([(own, rows)] * (rows % height > 0)):
                for column, lane in enumerate(lanes):
                    target = b.plus(to, b.times(own, step.pitch), lane)
                    b.store(sums[number * len(lanes) + column], step.pointer(value), target)


def _on_tensor_cores(step: ThreadStep, value: Product, height: int) -> None:
    """The same, a tile of each warp at a time."""
    b, source, rows = step.b, value.source, value.shape[-1]
    down, across = rows // height, step.lanes // COLUMNS
    with b.share(math.prod(value.shape[:-1]) * down * across, warp(b), WARPS) as i:
        rest, group = b.divided(i, across)
        place, tile = b.divided(rest, down)
        index = b.places(place, list(value.shape[:-1]))
        first, lane = b.times(tile, height), b.times(group, COLUMNS)
        offset = [b.times(k, s * step.pitch) for k, s in zip(index, source.strides[:-1], strict=True)]
        begin = b.at(step.pointer(source.value), b.plus(source.offset * step.pitch, *offset, lane))
        strides = contiguous(value.shape)
        to = b.plus(*(b.times(k, s * step.pitch) for k, s in zip(index, strides[:-1], strict=True)), 0, lane)

        def starts(row: str) -> str:
            return b.number(0) if value.bias is None else _bias(step, value.bias, b.plus(first, row))

        def store(row: str, column: str, found: str) -> None:
            b.store(found, step.pointer(value), b.plus(to, b.times(b.plus(first, row), step.pitch), column))

        left = Factor(b.at("%packed", first), packed_rows(value.weight))
        right = Factor(begin, source.strides[-1] * step.pitch)
        multiply(step, Tile(left, right, height, 0, source.shape[-1], starts, store), step.tensor_cores)


def _bias(step: ThreadStep, bias: View, row: str) -> str:
    at = step.b.plus(bias.offset, step.b.times(row, bias.strides[0]))
    return step.b.load(step.pointer(bias.value), at, one=True)


def _product_sums(
    step: ThreadStep, value: Product, factors: tuple[str, str], first: str, height: int, lanes: list[str]
) -> list[str]:
    """The sums of a thread's tile, row by row."""
    b, (source, packed) = step.b, factors
    terms, pitch, stride = value.source.shape[-1], packed_rows(value.weight), value.source.strides[-1] * step.pitch
    starts = [(b.f32, start) for start in _starts(step, value, first, height) for _ in lanes]

    def added(x_at: str, weights: list[str], sums: list[str]) -> list[str]:
        x = [b.load(b.at(source, b.times(x_at, stride)), lane) for lane in lanes]
        pairs = [(b.broadcast(w), one) for w in _apart(b, weights, height) for one in x]
        return [b.fma(w, one, total) for (w, one), total in zip(pairs, sums, strict=True)]

    def loaded(k: str) -> list[str]:
        return _numbers(b, packed, b.times(k, pitch), height)

    across, high = b.width * len(lanes), max(height, WIDTH)

    def taken(weights: int) -> int:
        """Registers, with so many weights at once."""
        return height * across + 2 * weights + weights // high * across + OTHERS

    unrolled = next((n for n in TERMS if taken(n) <= step.registers), TERMS[-1]) // high
    whole = terms - terms % unrolled
    sums = [start for _, start in starts]
    if whole > unrolled:
        # weights of the next terms are on their way while these are multiplied
        begin = [w for term in range(unrolled) for w in loaded(str(term))]
        kind = f"<{WIDTH} x float>" if height % WIDTH == 0 else "float"
        with b.carrying(whole, [*starts, *((kind, w) for w in begin)], unrolled) as (k, names, ends):
            found, weights = names[: len(starts)], names[len(starts) :]
            after = b.plus(k, unrolled)
            after = b.new(f"select i1 {b.less(after, whole)}, i64 {after}, i64 {k}")
            following = [w for term in range(unrolled) for w in loaded(b.plus(after, term))]
            each = len(weights) // unrolled
            for term in range(unrolled):
                found = added(b.plus(k, term), weights[each * term : each * (term + 1)], found)
            ends += [*found, *following]
        sums = ends[: len(starts)]
    for last in map(str, range(whole if whole > unrolled else 0, terms)):
        sums = added(last, loaded(last), sums)
    return sums


def _starts(step: ThreadStep, value: Product, first: str, height: int) -> list[str]:
    b, bias = step.b, value.bias
    if bias is None:
        return [b.number(0)] * height
    found = []
    for number in range(height):
        own = b.plus(first, number)
        if value.shape[-1] % height:
            own = b.below(own, value.shape[-1])
        found.append(b.broadcast(_bias(step, bias, own)))
    return found


def _numbers(b: ThreadBody, base: str, at: str, count: int) -> list[str]:
    """Load `count` numbers that lie side by side, several in a value where they are aligned."""
    if count % WIDTH:
        return [b.load(base, b.plus(at, i), one=True) for i in range(count)]
    b.width, width = WIDTH, b.width
    found = [b.load(base, b.plus(at, i)) for i in range(0, count, WIDTH)]
    b.width = width
    return found


def _apart(b: ThreadBody, values: list[str], count: int) -> list[str]:
    """The single numbers of what _numbers() has loaded."""
    if count % WIDTH:
        return values
    b.width, width = WIDTH, b.width
    found = [b.part(value, i) for value in values for i in range(WIDTH)]
    b.width = width
    return found


def outer_step(step: ThreadStep, value: Outer) -> None:
    """Add to the numbers at %sums the products of the block's rows. A thread's numbers lie apart, so that neighbouring
    threads read neighbouring tiles."""
    step.rolled = True
    b = step.b
    n, k = value.shape

    def counts(tile: tuple[int, int]) -> tuple[int, int]:
        return -(-n // tile[0]), -(-k // tile[1])

    def fits(tile: tuple[int, int]) -> bool:
        """True if a thread has registers for its sums, WIDTH rows of both factors, and their addresses."""
        return math.prod(tile) + (WIDTH + 2) * sum(tile) + OTHERS <= step.registers and tile[0] <= n and tile[1] <= k

    tile = next((t for t in OUTERS if math.prod(counts(t)) >= THREADS and fits(t)), OUTERS[-1])
    down, across = counts(tile)
    with b.share(down * across) as i:
        row, column = b.divided(i, across)
        rows = [b.plus(row, down * j) for j in range(tile[0])]
        columns = [b.plus(column, across * j) for j in range(tile[1])]
        known = (_known(b, rows, n, n % tile[0] > 0), _known(b, columns, k, k % tile[1] > 0))
        sums = _outer_sums(step, value, known)
        with b.single():
            for j, own in enumerate(rows):
                for m, other in enumerate(columns):
                    total = sums[j * tile[1] + m]
                    at = b.plus(b.times(own, k), other)
                    with b.when_all([(own, n)] * (n % tile[0] > 0) + [(other, k)] * (k % tile[1] > 0)):
                        b.store(b.floats("fadd", b.load("%sums", at), total), "%sums", at)


def _known(b: ThreadBody, indices: list[str], count: int, some_beyond: bool) -> list[str]:
    """Indices, the first in place of those that do not exist."""
    if not some_beyond:
        return indices
    return [b.below(i, count) for i in indices]


def _outer_sums(step: ThreadStep, value: Outer, known: tuple[list[str], list[str]]) -> list[str]:
    b = step.b
    left, right = value.left, value.right
    batch = list(left.shape[:-1])
    zero = [("float", "0x0000000000000000")] * (len(known[0]) * len(known[1]))

    def bases(view: View, index: list[str], own: list[str]) -> list[str]:
        lead = [b.times(i, s * step.pitch) for i, s in zip(index, view.strides[:-1], strict=True)]
        pointer = step.pointer(view.value)
        return [
            b.at(pointer, b.plus(view.offset * step.pitch, *lead, b.times(i, view.strides[-1] * step.pitch)))
            for i in own
        ]

    def over(index: list[str], sums: list[tuple[str, str]]) -> list[str]:
        if len(index) < len(batch):
            with b.carrying(batch[len(index)], sums) as (i, names, ends):
                ends += over([*index, i], [("float", name) for name in names])
            return ends
        pairs = bases(left, index, known[0]), bases(right, index, known[1])
        return _rows_added(step, pairs, sums)

    return over([], zero)


def _rows_added(step: ThreadStep, bases: tuple[list[str], list[str]], sums: list[tuple[str, str]]) -> list[str]:
    """The sums over a block's rows, of which there are %count."""
    b = step.b
    b.width = WIDTH
    with b.carrying(step.lanes, sums, WIDTH) as (lane, names, ends):
        mask = inside(b, lane)
        sides = [[select(b, mask, b.load(base, lane), b.number(0)) for base in side] for side in bases]
        x, y = ([[b.part(one, i) for i in range(WIDTH)] for one in side] for side in sides)
        ends += names
        with b.single():
            for i in range(WIDTH):
                for j, one in enumerate(x):
                    for m, other in enumerate(y):
                        ends[j * len(y) + m] = b.fma(one[i], other[i], ends[j * len(y) + m])
    return ends
