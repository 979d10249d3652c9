"""Gradients of large weights, in a kernel of their own after the phase that has their factors.

A block of threads has a tile of a gradient in registers, and adds many rows to it; within the phase each block of rows
would have to add to all numbers of the gradient in the device's memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.kernels.rows.fuse import is_sum
from headrace.kernels.rows.gpu.gpu_steps import ThreadStep
from headrace.kernels.rows.gpu.gpu_tensor_cores import COLUMNS, DEPTH, WARPS, Factor, Tile, height_for, multiply, warp
from headrace.kernels.rows.gpu.gpu_text import WIDTH
from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import Outer, Value, View
from headrace.kernels.rows.targets.llvm_math import select

LARGE = 8192  # numbers of a gradient that is computed apart
SIDE = 16  # threads along each axis of a tile
LARGEST_SIDE, SMALLER_SIDE = 128, 64  # numbers of a tile along each axis
UNROLLED = 2  # rows, of more of which the factors do not stay in registers
ENOUGH = 264  # blocks of threads that an H100 runs at once: what is more has to wait for all of them


Key: TypeAlias = tuple[object, ...]


def view_key(view: View) -> Key:
    """The key of a view: equal for equal views."""
    return id(view.value), view.shape, view.strides, view.offset


@dataclass(frozen=True)
class Apart:
    """A gradient that is computed apart. left, right: where its factors begin, in numbers of a row. at: where its parts
    begin, in numbers."""

    value: Outer
    left: int
    right: int
    at: int

    @property
    def sides(self) -> tuple[int, int]:
        """Numbers of a tile along each axis."""
        n, k = (LARGEST_SIDE if size >= LARGEST_SIDE else SMALLER_SIDE for size in self.value.shape)
        return n, k

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles along each axis."""
        n, k = (-(-size // side) for size, side in zip(self.value.shape, self.sides, strict=True))
        return n, k


@dataclass
class Gradients:
    """The gradients of a plan that are computed apart. factors: where each begins, in numbers of a row; width: of all.
    chunks: of the rows, which are added apart. size: numbers of all parts."""

    apart: dict[Value, Apart] = field(default_factory=dict)
    factors: dict[Key, int] = field(default_factory=dict)
    width: int = 0
    chunks: int = 1
    size: int = 0


def _is_large(value: Outer) -> bool:
    n, k = value.shape
    # whose numbers a thread reads several at a time, aligned
    return value.size >= LARGE and len(value.left.shape) == 1 and n % WIDTH == 0 and k % WIDTH == 0


def gradients_of(plan: Plan) -> Gradients:
    """Find the gradients of a plan that are computed apart."""
    sharing = Counter(plan.sums.values())
    values = [value for phase in plan.phases for value in phase.steps if isinstance(value, Outer)]
    large = [v for v in values if _is_large(v) and sharing[plan.sums[v]] == 1]
    found = Gradients()

    def place(view: View) -> int:
        key = view_key(view)
        if key not in found.factors:
            found.factors[key] = found.width
            found.width += view.size  # a multiple of WIDTH
        return found.factors[key]

    tiles = sum(n * k for v in large for n, k in [Apart(v, 0, 0, 0).tiles])
    found.chunks = max(1, ENOUGH // max(1, tiles))
    for value in large:
        assert is_sum(value)
        found.apart[value] = Apart(value, place(value.left), place(value.right), found.size)
        found.size += found.chunks * value.size
    return found


def keep_step(step: ThreadStep, view: View, width: int) -> None:
    """Copy a factor to %kept, for a later kernel: its numbers of a row side by side, rows `width` numbers apart; zeros
    for lanes that are no rows."""
    b = step.b
    with b.share(view.size * step.lanes) as i:
        lane, number = b.divided(i, view.size)
        at = b.plus(view.offset * step.pitch, b.times(number, view.strides[-1] * step.pitch), lane)
        x = b.load(step.pointer(view.value), at)
        b.store(select(b, b.less(lane, "%count"), x, b.number(0)), "%kept", b.plus(b.times(lane, width), number))


def tile_step(step: ThreadStep, apart: Apart, width: int, chunks: int) -> None:
    """Write the sum of tile %tile over the rows of chunk %chunk to %sums. The factors' %rows rows are at %kept, `width`
    numbers apart."""
    b, (n, k), (high, wide) = step.b, apart.value.shape, apart.sides
    whole = n % COLUMNS == k % COLUMNS == step.lanes % DEPTH == 0
    height = height_for(high, wide, wide) if step.tensor_cores and whole else 0
    together = DEPTH if height else UNROLLED
    units = b.new(f"udiv i64 %rows, {together}")
    begin, end = (
        b.mul(b.new(f"udiv i64 {b.mul(units, x)}, {chunks}"), together) for x in ("%chunk", b.add("%chunk", 1))
    )
    if height:
        _on_tensor_cores(step, apart, width, height, (begin, end))
        return
    row, column = b.divided("%tid", SIDE)
    down, across = b.divided("%tile", apart.tiles[1])
    # a thread's numbers are groups of WIDTH side by side, which neighbouring threads read together
    own = [b.plus(b.times(down, high), b.times(row, WIDTH), j) for j in range(0, high, SIDE * WIDTH)]
    other = [b.plus(b.times(across, wide), b.times(column, WIDTH), j) for j in range(0, wide, SIDE * WIDTH)]
    factors = [(apart.left, own, n), (apart.right, other, k)]
    known = [
        [b.plus(at, b.new(f"select i1 {b.less(i, size)}, i64 {i}, i64 0")) for i in firsts]
        for at, firsts, size in factors
    ]
    count = len(own) * len(other) * WIDTH * WIDTH
    places = [(i, j, m) for i in own for j in range(WIDTH) for m in other]

    def added(sums: list[str], at: str) -> list[str]:
        base = b.at("%kept", b.mul(at, width))
        left, right = ([b.load(base, i) for i in firsts] for firsts in known)
        x, y = ([b.part(v, lane) for v in side for lane in range(WIDTH)] for side in (left, right))
        with b.single():
            return [b.fma(one, two, sums[i * len(y) + j]) for i, one in enumerate(x) for j, two in enumerate(y)]

    def stored(sums: list[str]) -> None:
        b.width = WIDTH
        for number, (i, j, m) in enumerate(places):
            with b.when_all([(b.plus(i, j), n)] * (n % high > 0) + [(m, k)] * (k % wide > 0)):
                at = b.plus(b.times(b.plus(i, j), k), m)
                b.store(b.joined(sums[WIDTH * number : WIDTH * (number + 1)]), "%sums", at)

    b.width = WIDTH
    stored(["0x0000000000000000"] * count)
    with b.when(b.less(begin, end)):
        zero = [("float", "0x0000000000000000")] * count
        with b.carrying(end, zero, UNROLLED, begin) as (at, names, ends):
            found = names
            for offset in range(UNROLLED):
                found = added(found, b.plus(at, offset))
            ends += found
        stored(ends)


def _on_tensor_cores(step: ThreadStep, apart: Apart, width: int, height: int, chunk: tuple[str, str]) -> None:
    """The same, a tile of each warp at a time. chunk: its rows."""
    b, (n, k), (high, wide) = step.b, apart.value.shape, apart.sides
    down, across = b.divided("%tile", apart.tiles[1])
    with b.share((high // height) * (wide // COLUMNS), warp(b), WARPS) as i:
        own, other = b.divided(i, wide // COLUMNS)
        row = b.plus(b.times(down, high), b.times(own, height))
        column = b.plus(b.times(across, wide), b.times(other, COLUMNS))
        with b.when_all([(row, n)] * (n % high > 0) + [(column, k)] * (k % wide > 0)):
            to = b.plus(b.times(row, k), column)

            def store(r: str, c: str, found: str) -> None:
                b.store(found, "%sums", b.plus(to, b.times(r, k), c))

            places = (apart.left, row), (apart.right, column)
            left, right = (Factor(b.at("%kept", b.plus(at, place)), width) for at, place in places)
            multiply(step, Tile(left, right, height, *chunk, lambda _: b.number(0), store), step.tensor_cores)
