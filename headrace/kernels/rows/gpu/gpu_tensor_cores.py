"""Matrix products on a GPU's tensor cores: an instruction multiplies tiles of which each thread of a warp has a part.

Tensor cores take TF32, a float32 rounded to 11 bits. Where results are to be as exact as float32's, each number is the
sum of two of them, and three products are added: those of the largest of one factor with the rest of the other have
sums of their own, which are added to that of both largest at the end; the product of both rests is smaller than what
float32 rounds away. What is infinite has no such parts: its products are not numbers.

A warp's tile has `height` rows and COLUMNS columns. The instruction takes rows and columns in any order, so a thread
takes those that lie side by side. Which numbers of an instruction's tiles a thread has is in PTX's manual, under
mma.m16n8k8. In a program for the CPU a warp's threads run one after the other between the instructions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from headrace.kernels.rows.gpu.gpu_steps import ThreadStep
from headrace.kernels.rows.gpu.gpu_text import CPU, THREADS, WIDTH, ThreadBody
from headrace.kernels.rows.targets.llvm_text import Module

WARP = 32  # threads
WARPS = THREADS // WARP  # of a block
ROWS, DEPTH = 16, 8  # of an instruction's left tile; its right one has DEPTH rows and as many columns
COLUMNS = 32  # of a warp's tile
TILES = COLUMNS // DEPTH  # of an instruction, side by side
HEIGHTS = (32, 16)  # of a warp's tile
LEAST = 32  # rows, and terms, of products for which tensor cores are taken
# of both factors, the parts that are multiplied, by the sum that they are added to
PARTS = {"plain": (((0, 0),),), "split": (((0, 0),), ((1, 0), (0, 1)))}
_FOUR = "{float, float, float, float}"
_INTRINSIC = "llvm.nvvm.mma.m16n8k8.row.col.tf32"


@dataclass(frozen=True)
class Factor:
    """Numbers of a factor: (term, i) lies `stride` numbers from (term - 1, i), and one from (term, i - 1)."""

    base: str
    stride: int


@dataclass(frozen=True)
class Tile:
    """A warp's tile: the products of both factors' terms from `begin` to below `end`, whose number is a multiple of
    DEPTH; of names, which may be equal, or numbers, which are not. starts: of a row, what its sums begin with. store:
    takes a row, a column, and WIDTH sums from there on."""

    left: Factor
    right: Factor
    height: int
    begin: str | int
    end: str | int
    starts: Callable[[str], str]
    store: Callable[[str, str, str], None]


def height_for(rows: int, terms: int, columns: int, count: int = 1) -> int:
    """Rows of a warp's tile, for `count` products of these sizes; 0 where tensor cores are not taken. As high as all
    warps have one, or as low as there is."""
    if min(rows, terms) < LEAST or rows % ROWS or terms % DEPTH or columns % COLUMNS:
        return 0
    whole = [height for height in HEIGHTS if rows % height == 0]
    enough = (height for height in whole if count * (rows // height) * (columns // COLUMNS) >= WARPS)
    return next(enough, whole[-1])


def warp(b: ThreadBody) -> str:
    """The number of a thread's warp."""
    return b.new(f"lshr i64 %tid, {WARP.bit_length() - 1}")


def multiply(step: ThreadStep, product: Tile, kind: str) -> None:
    """Compute a warp's tile. kind: of PARTS."""
    thread = step.b.new(f"and i64 %tid, {WARP - 1}")
    if step.memory is CPU:
        with step.b.when(step.b.new(f"icmp eq i64 {thread}, 0")):
            _imitated(step, product, kind)
        return
    b, own = step.b, _Thread(step, product, thread)
    empty = isinstance(product.begin, str)
    if empty:
        own.stored(own.starts())
    with b.when(b.less(str(product.begin), product.end)) if empty else nullcontext():
        first = own.starts()
        starts = [("float", x) for x in (*first, *[b.number(0)] * (len(first) * (len(PARTS[kind]) - 1)))]
        with b.carrying(product.end, starts, DEPTH, product.begin) as (k, names, ends):
            left, right = own.parts(own.left(k), kind), own.parts(own.right(k), kind)
            for number, pairs in enumerate(PARTS[kind]):
                sums = names[number * len(first) : (number + 1) * len(first)]
                for i, j in pairs:
                    sums = _multiplied(b, left[i], right[j], sums)
                ends += sums
        own.stored(_added(b, ends, len(first)))


def _added(b: ThreadBody, sums: list[str], count: int) -> list[str]:
    """The sums of a tile, `count`, of those that are kept apart."""
    rests = [sums[i : i + count] for i in range(count, len(sums), count)]
    return [b.floats("fadd", *pair) for pair in zip(sums, *rests, strict=False)] if rests else sums


class _Thread:
    """A thread's share of a warp's tile. Of the numbers that lie side by side, it has `high` rows."""

    def __init__(self, step: ThreadStep, product: Tile, thread: str) -> None:
        self.b, self.product, self.high = step.b, product, product.height // DEPTH
        self.on_cpu, b = step.memory is CPU, step.b
        self.group, self.within = b.new(f"lshr i64 {thread}, 2"), b.new(f"and i64 {thread}, 3")
        self.row = b.times(self.group, self.high)
        self.column = b.times(self.within, 2 * WIDTH)

    def starts(self) -> list[str]:
        """The sums' first values: of each tile of ROWS rows, TILES times four."""
        rows = [self.product.starts(self.b.plus(self.row, i)) for i in range(self.high)]
        return [rows[i + half] for i in range(0, self.high, 2) for _ in range(TILES) for half in (0, 0, 1, 1)]

    def left(self, k: str) -> list[str]:
        """The left factor's numbers, DEPTH terms from k on: of each tile of ROWS rows, four."""
        halves = self._loaded(self.product.left, k, self.row, self.high)
        return [halves[half][i + j] for i in range(0, self.high, 2) for half in (0, 1) for j in (0, 1)]

    def right(self, k: str) -> list[str]:
        """The right factor's: of each tile of DEPTH columns, two."""
        halves = self._loaded(self.product.right, k, self.b.times(self.group, TILES), TILES)
        return [halves[half][j] for j in range(TILES) for half in (0, 1)]

    def _loaded(self, factor: Factor, k: str, first: str, count: int) -> list[list[str]]:
        """Load `count` numbers of a term of the first half of DEPTH, and as many of the second half."""
        b, found = self.b, []
        for half in (0, DEPTH // 2):
            at = b.plus(b.times(b.plus(k, self.within, half), factor.stride), first)
            b.width, width = WIDTH if count % WIDTH == 0 else 1, b.width
            loaded = [b.load(factor.base, b.plus(at, i)) for i in range(0, count, b.width)]
            found.append([b.part(x, lane) for x in loaded for lane in range(b.width)])
            b.width = width
        return found

    def parts(self, numbers: list[str], kind: str) -> list[list[str]]:
        """Numbers as TF32, and with "split" what these leave of them."""
        with self.b.single():
            largest = [_rounded(self.b, x, self.on_cpu) for x in numbers]
            if kind == "plain":
                return [largest]
            rests = [self.b.floats("fsub", x, own) for x, own in zip(numbers, largest, strict=True)]
            return [largest, [_rounded(self.b, x, self.on_cpu) for x in rests]]

    def stored(self, sums: list[str]) -> None:
        """Store the sums, WIDTH of a row at once."""
        b = self.b
        b.width, width = WIDTH, b.width
        for i in range(self.high):
            for e in (0, 1):  # of both columns that a thread has of an instruction's tile
                first = 4 * TILES * (i // 2) + 2 * (i % 2) + e
                column = b.plus(self.column, WIDTH * e)
                joined = b.joined([sums[first + 4 * j] for j in range(TILES)])
                self.product.store(b.plus(self.row, i), column, joined)
        b.width = width


def _rounded(b: ThreadBody, x: str, on_cpu: bool) -> str:
    """A float32 rounded to TF32, halves away from zero."""
    if not on_cpu:
        bits = b.new(f'call i32 asm "cvt.rna.tf32.f32 $0, $1;", "=r,f"(float {x})')
        return b.new(f"bitcast i32 {bits} to float")
    bits = b.new(f"bitcast float {x} to i32")
    near = b.new(f"and i32 {b.new(f'add i32 {bits}, 4096')}, -8192")
    special = b.new(f"icmp eq i32 {b.new(f'and i32 {bits}, 2139095040')}, 2139095040")
    return b.new(f"bitcast i32 {b.new(f'select i1 {special}, i32 {bits}, i32 {near}')} to float")


def _multiplied(b: ThreadBody, left: list[str], right: list[str], sums: list[str]) -> list[str]:
    """The sums with the products of all tiles."""
    operands = ", ".join(["i32"] * 6 + ["float"] * 4)
    b.intrinsics.add(f"declare {_FOUR} @{_INTRINSIC}({operands})")
    words = [[b.new(f"bitcast float {x} to i32") for x in numbers] for numbers in (left, right)]
    found = []
    for tile in range(len(sums) // 4):
        i, j = divmod(tile, TILES)
        given = [f"i32 {x}" for x in (*words[0][4 * i : 4 * i + 4], *words[1][2 * j : 2 * j + 2])]
        given += [f"float {x}" for x in sums[4 * tile : 4 * tile + 4]]
        made = b.new(f"call {_FOUR} @{_INTRINSIC}({', '.join(given)})")
        found += [b.new(f"extractvalue {_FOUR} {made}, {n}") for n in range(4)]
    return found


def _imitated(step: ThreadStep, product: Tile, kind: str) -> None:
    """The same on the CPU: what each thread has lies in memory, [numbers, WARP]."""
    b, tiles, sets = step.b, product.height // ROWS, len(PARTS[kind])
    count, lefts, rights = 4 * TILES * tiles, 4 * tiles, 2 * TILES
    left, right = sets * count, sets * count + 2 * lefts
    step.begin = (f"  %fragments = alloca [{(right + 2 * rights) * WARP} x float], align 16",)
    name = _imitation(step.module)

    def address(number: int) -> str:
        return b.at("%fragments", str(number * WARP))

    def keep(first: int, numbers: list[str], thread: str) -> None:
        with b.single():
            for i, x in enumerate(numbers):
                b.store(x, address(first + i), thread)

    with b.loop(WARP) as thread:
        keep(0, _Thread(step, product, thread).starts() + [b.number(0)] * (count * (sets - 1)), thread)
    some = nullcontext() if isinstance(product.begin, int) else b.when(b.less(product.begin, product.end))
    with some, b.loop(product.end, DEPTH, product.begin) as k:
        with b.loop(WARP) as thread:
            own = _Thread(step, product, thread)
            for first, numbers in ((left, own.left(k)), (right, own.right(k))):
                for part, found in enumerate(own.parts(numbers, kind)):
                    keep(first + part * len(numbers), found, thread)
        for number, pairs in enumerate(PARTS[kind]):
            for (m, n), tile in itertools.product(pairs, range(tiles * TILES)):
                i, j = divmod(tile, TILES)
                places = left + m * lefts + 4 * i, right + n * rights + 2 * j, number * count + 4 * tile
                b.do(f"call void @{name}({', '.join(f'ptr {address(place)}' for place in places)})")
    with b.loop(WARP) as thread:
        own = _Thread(step, product, thread)
        with b.single():
            sums = [b.load(address(i), thread) for i in range(sets * count)]
            sums = _added(b, sums, count)
        own.stored(sums)


def _imitation(module: Module) -> str:
    """The function of %left, %right and %sums, numbers of a warp's threads, that adds products as the instruction does:
    in order of the terms."""
    b = ThreadBody(1)

    def held(base: str, thread: tuple[str, str], register: str) -> tuple[str, str]:
        """Row and column of the number that a thread, the second of so many groups of four, has in a register."""
        group, within = thread
        return base, b.plus(b.times(register, WARP), b.times(group, 4), within)

    with b.loop(ROWS) as row, b.loop(DEPTH) as column:
        (upper, group), (pair, odd) = b.divided(row, 8), b.divided(column, 2)
        own = held("%sums", (group, pair), b.plus(b.times(upper, 2), odd))
        with b.carrying(DEPTH, [("float", b.load(*own))]) as (k, names, ends):
            half, within = b.divided(k, 4)
            x = b.load(*held("%left", (group, within), b.plus(b.times(half, 2), upper)))
            y = b.load(*held("%right", (column, within), half))
            ends.append(b.fma(x, y, names[0]))
        b.store(ends[0], *own)
    return module.function(b, "ptr %left, ptr %right, ptr %sums")
