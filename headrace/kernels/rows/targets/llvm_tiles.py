"""Products on the processor's tiles of bfloat16 (Intel AMX), as exact as float32.

A float32 is the exact sum of three bfloat16 with eight bits of it each. Of the nine products of two such sums six are
computed; the other three are smaller than what float32 rounds away. Sums are float32's. (Henry, Tang & Heinecke 2019,
arXiv:1904.06376, section II.) What is infinite has no such parts: its products are not numbers.

A packed factor consists of words of two bfloat16, VECTOR apart along the index that is summed over. A tile has 16 x 16
of them: of a left factor 16 rows with words along the sum, of a right one words along the sum for 16 columns. It lies
there three times, one for each part of its numbers. Tiles are ordered along the sum first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headrace.kernels.rows.row_plan import SPAN, VECTOR, Transposed, packed_words
from headrace.kernels.rows.targets.llvm_expressions import Step
from headrace.kernels.rows.targets.llvm_math import maximum, select
from headrace.kernels.rows.targets.llvm_products import Multiply, turned
from headrace.kernels.rows.targets.llvm_text import Body, Module

WORDS = VECTOR * VECTOR  # of a tile
ROOM = 3 * WORDS  # words of a packed tile
PARTS = 3  # bfloat16 of a float32
# parts of both factors that are multiplied: from one product to the next, one of them stays in its tiles
PRODUCTS = ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0))
TERMS = 128  # of a sum: so many numbers of the source are packed at a time, which stay in the first cache


def pack_weight(module: Module, shape: Sequence[int], strides: Sequence[int]) -> str:
    """The function of %weight, a matrix with one stride of 1, and %packed, that packs it as a left factor."""
    b = Body()
    (rows, terms), (row, column) = shape, strides
    along = column == 1
    with b.loop(rows, VECTOR) as r, b.loop(terms, SPAN) as k:
        at = b.plus(b.times(r, row), b.times(k, column))
        given = b.at("%weight", at), b.at("%weight", b.plus(at, VECTOR * column))
        _pack(b, given, row if along else column, b.at("%packed", _place(b, r, k, terms)), turn=not along)
    return module.function(b, "ptr noalias %weight, ptr noalias %packed")


def packed_step(step: Step, value: Transposed) -> Step:
    """Pack numbers of the block's rows as a right factor, for a sum over rows."""
    b, view, lanes = step.body, value.source, step.plan.lanes
    (source, offset), target = step.address(view.value, view.offset), step.pointer(value)
    stride = view.strides[0] * lanes
    with b.loop(view.shape[0], VECTOR) as c, b.loop(lanes, SPAN) as e:
        at = b.plus(offset * lanes, b.times(c, stride), e)
        given = b.at(source, at), b.at(source, b.plus(at, VECTOR))
        _pack(b, given, stride, b.at(target, _place(b, c, e, lanes)), turn=True)
    return step


def multiply_on_tiles(module: Module, sizes: Multiply) -> str:
    """The function of %weight, packed, %source, %target, and %bias: see Multiply. Sizes are multiples of SPAN."""
    assert sizes.terms is not None
    b = Body()
    room = b.new(f"alloca [{packed_words(min(sizes.terms, TERMS) * sizes.width)} x i32], align 64")
    if sizes.start == "bias":
        _fill(b, sizes)
    with _configured(module, b, [VECTOR, VECTOR]):
        for k in range(0, sizes.terms, TERMS):
            _add_terms(b, sizes, room, k, min(TERMS, sizes.terms - k))
    if sizes.floor:
        with b.loop(sizes.rows) as r, b.loop(sizes.width, VECTOR) as e:
            at = b.plus(b.times(r, sizes.target), e)
            b.store(maximum(b, b.load("%target", at), b.number(0)), "%target", at)
    parameters = "ptr noalias %weight, ptr noalias %source, ptr noalias %target"
    return module.function(b, parameters + ", ptr noalias %bias" * (sizes.start == "bias"))


def add_on_tiles(module: Module, sizes: Multiply) -> str:
    """The function of %weight, %source, packed, %target, %count, and %blocks, of sums over rows: see Multiply.

    Rows are multiples of SPAN, or fewer; the width is one. Lanes behind %count, whose numbers are the last row's, are
    zero in one of the factors.
    """
    b = Body()
    heights = [min(sizes.rows - first, VECTOR) for first in range(0, min(sizes.rows, SPAN), VECTOR)]
    room = b.new(f"alloca [{packed_words(SPAN * sizes.lanes)} x i32], align 64")
    if sizes.start == "zero":
        _fill(b, sizes)
    with _configured(module, b, heights):
        if not sizes.blocks:
            _add_rows(b, sizes, heights, room, ("%weight", "%source"), "%count")
        else:
            with b.loop("%blocks") as block:
                last = b.new(f"icmp eq i64 {b.plus(block, 1)}, %blocks")
                count = b.new(f"select i1 {last}, i64 %count, i64 {sizes.lanes}")
                weight, source = (b.at(x, b.times(block, sizes.blocks)) for x in ("%weight", "%source"))
                _add_rows(b, sizes, heights, room, (weight, source), count)
    parameters = "ptr noalias %weight, ptr noalias %source, ptr noalias %target, i64 %count"
    return module.function(b, parameters + ", i64 %blocks" * (sizes.blocks > 0))


def _add_terms(b: Body, sizes: Multiply, room: str, first: int, terms: int) -> None:
    """Add the products of so many terms, from `first` on."""
    assert sizes.terms is not None
    with b.loop(sizes.width, VECTOR) as e, b.loop(terms, SPAN) as k:
        at = b.plus(b.times(k, sizes.source), e, first * sizes.source)
        given = b.at("%source", at), b.at("%source", b.plus(at, VECTOR * sizes.source))
        _pack(b, given, sizes.source, b.at(room, _place(b, e, k, terms)))
    with b.loop(sizes.rows, SPAN) as r, b.loop(sizes.width, SPAN) as e:
        left = b.at("%weight", _place(b, r, str(first), sizes.terms)), sizes.terms // SPAN * ROOM
        right = b.at(room, _place(b, e, "0", terms)), terms // SPAN * ROOM
        target = b.at("%target", b.plus(b.times(r, sizes.target), e)), sizes.target
        _add(b, left, right, terms // SPAN, target, 2, empty=first == 0 and sizes.start == "zero")


def _add_rows(b: Body, sizes: Multiply, heights: list[int], room: str, factors: tuple[str, str], count: str) -> None:
    """Add the products of a block whose first `count` rows count."""
    (weight, source), lanes = factors, sizes.lanes
    number = b.broadcast(b.new(f"trunc i64 {count} to i32"), "i32")
    inside = []
    for first in range(0, lanes, VECTOR):
        numbers = ", ".join(f"i32 {first + i}" for i in range(VECTOR))
        inside.append(b.new(f"icmp ult {b.i32} <{numbers}>, {number}"))
    with b.loop(sizes.rows, SPAN) as r:
        for i, height in enumerate(heights):
            for e in range(0, lanes, SPAN):
                at = b.plus(b.times(b.plus(r, i * VECTOR), sizes.row), e)
                given = b.at(weight, at), b.at(weight, b.plus(at, VECTOR))
                goal = b.at(room, _place(b, str(i * VECTOR), str(e), lanes))
                _pack(b, given, sizes.row, goal, height, inside[e // VECTOR :][:2])
        with b.loop(sizes.width, SPAN) as c:
            apart = lanes // SPAN * ROOM
            right = b.at(source, _place(b, c, "0", lanes)), apart
            target = b.at("%target", b.plus(b.times(r, sizes.target), c)), sizes.target
            _add(b, (room, apart), right, lanes // SPAN, target, len(heights))


def _place(b: Body, row: str, k: str, terms: int) -> str:
    """Offset of the tile of a row, or a column, and of a term in a packed factor with so many terms."""
    return b.plus(b.times(row, terms // SPAN * ROOM // VECTOR), b.times(k, ROOM // SPAN))


def _pack(
    b: Body,
    given: tuple[str, str],
    stride: int,
    target: str,
    rows: int = VECTOR,
    inside: Sequence[str] = (),
    turn: bool = False,
) -> None:
    """Pack a tile. given: the addresses of the vectors that its first row has in the lower and upper halves of words;
    those of others are `stride` numbers apart. inside: which numbers of each are kept; others become zero. turn: the
    tile's rows run along these vectors."""
    if turn:
        halves = [turned(b, [b.load(own, str(i * stride)) for i in range(VECTOR)]) for own in given]
        for i, pair in enumerate(zip(*halves, strict=True)):
            _store_words(b, pair, target, str(i * VECTOR))
        return
    with b.loop(rows) as row:
        numbers = [b.load(own, b.times(row, stride)) for own in given]
        if inside:
            numbers = [select(b, own, x, b.number(0)) for own, x in zip(inside, numbers, strict=True)]
        _store_words(b, numbers, target, b.times(row, VECTOR))


def _store_words(b: Body, numbers: Sequence[str], target: str, place: str) -> None:
    """Store words of pairs of numbers: their first eight bits, the next eight, the rest."""
    for part in range(PARTS):
        bits = [b.ints("and", b.new(f"bitcast {b.f32} {x} to {b.i32}"), b.integer(-(1 << 16))) for x in numbers]
        word = b.ints("or", b.ints("lshr", bits[0], b.integer(16)), bits[1])
        b.store(word, target, b.plus(place, part * WORDS), "i32")
        if part + 1 < PARTS:
            known = [b.new(f"bitcast {b.i32} {own} to {b.f32}") for own in bits]
            numbers = [b.floats("fsub", x, own) for x, own in zip(numbers, known, strict=True)]


def _fill(b: Body, sizes: Multiply) -> None:
    """Let the target be the bias, or zero."""
    with b.loop(sizes.rows) as r:
        first = b.number(0)
        if sizes.start == "bias":
            first = b.broadcast(b.load("%bias", b.times(r, sizes.bias), one=True))
        with b.loop(sizes.width, VECTOR) as e:
            b.store(first, "%target", b.plus(b.times(r, sizes.target), e))


def _add(
    b: Body,
    left: tuple[str, int],
    right: tuple[str, int],
    depth: int,
    target: tuple[str, int],
    high: int,
    empty: bool = False,
) -> None:
    """Add the products of `high` tiles of rows and two of columns, so many tiles along the sum, to a target.

    left, right, target: the address, and how many words lie from one tile, or one row of the target, to the next.
    empty: the target is zero. Tiles 0 to 3 have the sums, 4 and 5 the left factor's, 6 and 7 the right one's.
    """
    sums = [(i, j, b.at(target[0], str(i * VECTOR * target[1] + j * VECTOR))) for i in range(high) for j in range(2)]
    for i, j, at in sums:
        if empty:
            _do(b, "tilezero", f"i8 {2 * i + j}")
        else:
            _do(b, "tileloadd64", f"i8 {2 * i + j}", f"ptr {at}", f"i64 {4 * target[1]}")
    with b.loop(depth) as k:
        at, known = b.times(k, ROOM), (PARTS, PARTS)
        for m, n in PRODUCTS:
            if m != known[0]:
                for i in range(high):
                    _load(b, 4 + i, left[0], b.plus(at, i * left[1] + m * WORDS))
            if n != known[1]:
                for j in range(2):
                    _load(b, 6 + j, right[0], b.plus(at, j * right[1] + n * WORDS))
            for i, j, _ in sums:
                _do(b, "tdpbf16ps", f"i8 {2 * i + j}", f"i8 {4 + i}", f"i8 {6 + j}")
            known = m, n
    for i, j, at in sums:
        _do(b, "tilestored64", f"i8 {2 * i + j}", f"ptr {at}", f"i64 {4 * target[1]}")


def _load(b: Body, tile: int, base: str, place: str) -> None:
    _do(b, "tileloadd64", f"i8 {tile}", f"ptr {b.at(base, place)}", f"i64 {4 * VECTOR}")


@contextmanager
def _configured(module: Module, b: Body, heights: list[int]) -> Iterator[None]:
    """Configure tiles of sixteen rows for the lines within this block; for sums and for the left factor, of so many
    rows in turn."""
    setting = [1, *[0] * 63]
    for tile in range(8):
        own = heights[(0, 0, 1, 1, 0, 1)[tile] % len(heights)] if tile < 6 else VECTOR
        setting[16 + 2 * tile], setting[48 + tile] = 4 * VECTOR, own
    _do(b, "ldtilecfg", f"ptr {module.constant([*map(str, setting)], 'i8')}")
    yield
    _do(b, "tilerelease")


def _do(b: Body, name: str, *operands: str) -> None:
    """Append an instruction on tiles."""
    kinds = ", ".join(operand.split()[0] for operand in operands)
    b.intrinsics.add(f"declare void @llvm.x86.{name}({kinds})")
    b.do(f"call void @llvm.x86.{name}({', '.join(operands)})")
