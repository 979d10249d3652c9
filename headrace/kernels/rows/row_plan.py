"""Plan of a row program, which a target emits: the steps in order, and the place of each stored value.

Rows are divided into blocks, and blocks into parts. Each thread takes one part at a time. A phase is a pass over all
blocks. A stored value with rows has a tile for each of its numbers: this number of all rows of a block, side by side.
Sums over rows are accumulated separately for each part, and added in the order of parts after the phase, so results do
not depend on the number of threads. With few rows, gradients of weights are computed by weights instead: both factors
are kept for all rows, and after the phase each thread takes pieces of the matrices, over all rows. Values that are not
stored are Maps. They are computed again in the loop of each value that reads them.

A block of one row is for calls of very few rows, as of whole sequences: a value's numbers lie side by side, and the
lanes of an operation are these numbers instead of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from headrace.kernels.nn.amx import SPAN, sizes_pay
from headrace.kernels.rows.row_program import Outer, Product, Program, Reduce, Value, View, contiguous

ON_TILES = 64  # rows of a block with products on tiles: each block reads all packed weights, of 6 bytes a number
BLOCKS = (32, 64, 16)  # rows of a block; the first, unless with another less memory outside the second cache is read
BY_WEIGHTS = 512  # most rows for which the factors of gradients are kept: those of more rows leave the caches
KEPT = 4096  # most numbers of a row that are kept for that
PIECE = 24  # rows of a matrix that are a piece of it: whole tiles of a product, whatever the machine's registers
HALF = 8  # rows of the smallest call: half a vector
ALONE = 1  # row of a block whose lanes are a value's numbers, on a CPU
SEQUENCES = 8  # rows of a call at most for which such blocks take less time: with 16, both take the same
FIRST_MEMORY = 1 << 16  # bytes of the first cache, and a little more
MEMORY = 1 << 20  # bytes of the second cache
VECTOR = 16  # numbers of an operation, whatever the width of the machine's registers: then bits do not depend on it
PACKED = 2 * SPAN  # rows of a weight that are packed at a time
FEW = 512  # numbers of an Outer, up to which each is a sum along lanes of its own, without a transposed factor

# Memory that a value may lie in. tile: a thread's own, used again for each block; kept: of each block, written in one
# phase and read in another; both count offsets in tiles. uniform: of the call, for values without rows; offset in
# numbers. given, result: the caller's; offset is the position among the uniform inputs or the outputs.
Space: TypeAlias = Literal["tile", "kept", "given", "uniform", "result"]
Form: TypeAlias = Literal["dots", "right", "left"]


@dataclass(frozen=True)
class Place:
    """Position of a value in memory, in row-major order. A bool is a float32, 0 or 1; an i32 is in the same 4 bytes."""

    space: Space
    offset: int


@dataclass(eq=False)
class Transposed(Value):
    """Transposed view. For each of the leading axes it has vectors of the last axis' numbers, padded with zeros, one
    vector for each of the block's rows. The lanes of an Outer run along it.

    shape: [..., padded K], for each row. packed: whether it is a right factor on tiles (targets.llvm_tiles), of so many
    words for each row.
    """

    source: View = None  # type: ignore[assignment]
    packed: bool = False

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.source,)


@dataclass(eq=False)
class Packed(Value):
    """A weight as a left factor on tiles (targets.llvm_tiles), or turned for blocks of one row (targets.llvm_products).
    shape: so many words."""

    source: View = None  # type: ignore[assignment]

    @property
    def pieces(self) -> list[int]:
        """Number of rows of each piece that a thread packs."""
        rows = self.source.shape[0]
        return [min(PACKED, rows - first) for first in range(0, rows, PACKED)]

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.source,)


@dataclass
class Phase:
    """One pass over all rows.

    before: uniform values to compute first, once: of sums of the phase before, and what follows from them.
    steps: for each block, in order: columns (Input) to gather, values to store, sums to add to.
    packed: weights to pack before its steps, in pieces.
    stores: positions of outputs with rows, whose views are written at the end of each block.
    gradients: sums that are taken by weights after the phase, those with one accumulator together.
    """

    before: list[Value] = field(default_factory=list)
    packed: list[Packed] = field(default_factory=list)
    steps: list[Value] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)
    gradients: list[list[Value]] = field(default_factory=list)

    @property
    def pieces(self) -> int:
        """Pieces of all gradients."""
        return sum(len(pieces(values[0])) for values in self.gradients)

    @property
    def packs(self) -> int:
        """Pieces of all weights that are packed."""
        return sum(len(value.pieces) for value in self.packed)


@dataclass
class Plan:
    """A program with its memory.

    places: of each stored value. sums: where the accumulators of each Outer and each Reduce over rows begin, in numbers
    of a part's, or of the call's where it is taken by weights; several that are only added to each other share theirs,
    and one of these has a place, the total's.
    transposed: of an Outer whose lanes run along one of its factors. packed: of a Product on tiles.
    phases: the last has no steps where results follow from sums.
    tiles, kept: count of tiles of a thread, and of a block. uniform, accumulators: count of numbers. block: see
    rows_of_block(). lanes: rows of a block. width: rows of an operation.
    """

    program: Program
    phases: list[Phase]
    places: dict[Value, Place]
    sums: dict[Value, int]
    transposed: dict[Value, Transposed]
    packed: dict[Value, Packed]
    tiles: int
    kept: int
    uniform: int
    accumulators: int
    block: int = 0

    @property
    def lanes(self) -> int:
        if self.block == ALONE:
            return 1
        on_tiles = self.packed or any(turned.packed for turned in self.transposed.values())
        return ON_TILES if on_tiles else rows_of_block(self.tiles, self.accumulators, self.block)

    @property
    def width(self) -> int:
        return min(VECTOR, self.lanes)

    def in_lanes(self, value: Value) -> bool:
        """Tell whether the lanes of a value's vectors are rows."""
        return value.rows and self.block != ALONE

    @property
    def half(self) -> bool:
        """True if calls have HALF rows at most."""
        return self.block == HALF


def block_of_sequences(rows: int, length: int) -> int:
    """The number to give plan() as `block`, for a loss of so many rows in sequences of `length`: a sequence is a row of
    the program, which has much work for each."""
    sequences = rows // length
    if length == 1 or sequences > VECTOR:
        return 0
    return ALONE if sequences <= SEQUENCES else VECTOR


def block_for(rows: int) -> int:
    """The number to give rows_of_block() as `block`, for a program without sums over rows: the least for its calls."""
    return next((block for block in (HALF, *sorted(BLOCKS)) if rows <= block), max(BLOCKS))


def rows_of_block(tiles: int, accumulators: int, block: int = 0) -> int:
    """Number of rows of a block: the one of BLOCKS with which a row reads least memory outside the second cache.

    tiles: tiles of a block. accumulators: numbers that each block adds to. Accumulators that do not fit into the cache
    are read once a block: larger blocks read less. Tiles that do not fit are read again: smaller blocks read less.
    block: what block_for() gives, which is then the number, but for two limits: it is a vector at least, and two at
    most where its tiles do not fit into the first cache. 0 for programs with sums over rows."""
    if block:
        return max(VECTOR, min(block, 2 * VECTOR) if 4 * block * tiles > FIRST_MEMORY else block)

    def beyond(rows: int) -> float:
        sums = accumulators / rows if 4 * accumulators > MEMORY else 0.0
        return sums + (tiles if 4 * rows * tiles > MEMORY else 0.0)

    return min(BLOCKS, key=beyond)


def outer_form(outer: Outer) -> Form:
    """Factor along whose numbers an Outer's lanes run, "left" or "right"; "dots" where lanes are rows."""
    n, k = outer.shape
    if n * k <= FEW or min(n, k) <= 2:
        return "dots"
    return "left" if k < n and k < VECTOR else "right"


def on_tiles(value: Value) -> bool:
    """True if tiles of bfloat16 gain time for a product: it consists of whole tiles, and its factors lie so that tiles
    can take them."""
    if isinstance(value, Product):
        return sizes_pay(*value.weight.shape) and 1 in value.weight.strides
    if not isinstance(value, Outer) or len(value.left.shape) + len(value.right.shape) > 2:
        return False
    return sizes_pay(*value.shape)


def packed_words(count: int) -> int:
    """Words of so many numbers in a factor on tiles: three of bfloat16 for each number, two in a word."""
    return 3 * count // 2


def accumulators(value: Value) -> int:
    """Count of numbers in which a sum over rows is accumulated.

    Reduce, and Outer of the form "dots": VECTOR for each number. Else a matrix [n, k] whose rows are padded to whole
    vectors; of the form "left", [k, n]."""
    if isinstance(value, Reduce):
        return VECTOR * value.size
    assert isinstance(value, Outer)
    if outer_form(value) == "dots":
        return VECTOR * value.size
    n, k = value.shape if outer_form(value) != "left" else value.shape[::-1]
    return n * padded(k)


def matrix(outer: Outer) -> tuple[View, View, int]:
    """Factors of an Outer whose form is not "dots", and the padded length of a row of accumulators. The first factor
    has a number for each row of the accumulators' matrix; the numbers of the second lie along its rows, in lanes."""
    own, turned = (outer.left, outer.right) if outer_form(outer) == "right" else (outer.right, outer.left)
    return own, turned, padded(turned.shape[-1])


def pieces(value: Value) -> list[int]:
    """Number of rows of each piece of a matrix of accumulators, for a sum that is taken by weights."""
    if not isinstance(value, Outer) or outer_form(value) == "dots":
        return [value.size]
    n = matrix(value)[0].shape[-1]
    return [min(PIECE, n - first) for first in range(0, n, PIECE)]


def padded(count: int) -> int:
    """A count rounded up to whole vectors."""
    return -(-count // VECTOR) * VECTOR


def inlined(view: View, inner: View) -> View | None:
    """View of inner's value that an unstored value needs to compute the numbers that `view` reads of it. `view` is a
    view of the unstored value; `inner` is one of the views that this value reads, and has its shape. None where no
    strides describe the view: the value is stored."""
    shape, steps = view.value.shape, contiguous(view.value.shape)
    strides, ends = [], [0] * len(shape)
    offset, rest = inner.offset, view.offset
    for axis, step in enumerate(steps):  # where the view begins, by axis
        at, rest = divmod(rest, step)
        offset += at * inner.strides[axis]
        ends[axis] += at
    for size, stride in zip(view.shape, view.strides, strict=True):
        own, left = 0, stride if size > 1 else 0
        for axis, step in enumerate(steps):
            times, left = divmod(left, step)
            own += times * inner.strides[axis]
            ends[axis] += times * (size - 1)
        strides.append(own)
    if any(end >= max(n, 1) for end, n in zip(ends, shape, strict=True)):  # it runs from one row of an axis to the next
        return None
    return View(inner.value, view.shape, tuple(strides), offset)
