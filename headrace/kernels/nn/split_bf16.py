"""Products of float32 matrices on the processor's tiles of bfloat16 (Intel AMX), as exact as float32.

A float32 is the sum of three bfloat16, which take eight bits of it each, exactly. Of the nine products of two such sums
six count; the other three are smaller than what float32 rounds away. Sums are float32's. (Henry, Tang & Heinecke 2019,
arXiv:1904.06376, section II.) Six products on tiles take half the time of one in vectors.

A factor lies as words of two bfloat16, neighbours along k, the index that is summed over; in tiles of 16 x 16 words, a
cache line each row: of a left factor [r, k] 16 rows, of a right one [k, c] 16 pairs of k. Tiles lie along k first, then
along r or c. Three such planes, one for each third, lie `plane` words apart. Words lie in arrays of float32 and are
never computed with there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core import cgutils  # noqa: TID253
from numba.extending import intrinsic  # noqa: TID253

from headrace.kernels.nn.amx import TILE, TILE_SPAN
from headrace.kernels.nn.layout import WIDTH
from headrace.kernels.nn.simd import lanes, load, store, turn
from headrace.kernels.runtime.jit import INNER, njit

U = np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_byte, _word, _long = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_pointer = _byte.as_pointer()
_floats, _words = ir.VectorType(ir.FloatType(), 16), ir.VectorType(_word, 16)


def _constant(number: int) -> ir.Constant:
    return ir.Constant(_words, [number] * 16)


@intrinsic
def _thirds(typing: Any, even: Any, odd: Any) -> Any:
    """Three words of each pair of numbers: their first eight bits, the next eight, the rest. even: the lower halves."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        even, odd = args
        found = []
        for _ in range(3):
            bits = [builder.and_(builder.bitcast(x, _words), _constant(0xFFFF0000)) for x in (even, odd)]
            word = builder.or_(builder.lshr(bits[0], _constant(16)), bits[1])
            found.append(builder.bitcast(word, _floats))
            even, odd = (builder.fsub(x, builder.bitcast(b, _floats)) for x, b in zip((even, odd), bits, strict=True))
        return context.make_tuple(builder, call.return_type, found)

    return types.UniTuple(lanes, 3)(lanes, lanes), generate


@intrinsic
def _sorted(typing: Any, first: Any, second: Any) -> Any:
    """Of 32 numbers those at even places, and those at odd ones."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        parts = [
            builder.shuffle_vector(*args, ir.Constant(_words, [2 * i + odd for i in range(16)])) for odd in range(2)
        ]
        return context.make_tuple(builder, call.return_type, parts)

    return types.UniTuple(lanes, 2)(lanes, lanes), generate


def _call(builder: ir.IRBuilder, name: str, arguments: list[ir.Value]) -> None:
    kind = ir.FunctionType(ir.VoidType(), [x.type for x in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), arguments)


def _tile(kind: Any) -> ir.Constant:
    """A tile's number, which must be known when compiling."""
    return ir.Constant(_byte, kind.literal_value)


def _mover(instruction: str) -> Any:
    """Between a tile and sixteen rows of sixteen words, `row` words apart, from array[index] on."""

    @intrinsic(prefer_literal=True)
    def move(typing: Any, tile: Any, array: Any, index: Any, row: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
            data = context.make_array(call.args[1])(context, builder, args[1]).data
            place = builder.bitcast(builder.gep(data, [args[2]]), _pointer)
            _call(builder, instruction, [_tile(tile), place, builder.shl(args[3], ir.Constant(_long, 2))])
            return context.get_dummy_value()

        return types.void(tile, array, types.uint64, types.uint64), generate

    return move


_fetch, _put = _mover("tileloadd64"), _mover("tilestored64")


@intrinsic(prefer_literal=True)
def _add_product(typing: Any, target: Any, left: Any, right: Any) -> Any:
    """target += left times right, of tiles."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        _call(builder, "tdpbf16ps", [_tile(kind) for kind in (target, left, right)])
        return context.get_dummy_value()

    return types.void(target, left, right), generate


@intrinsic
def open_tiles(typing: Any) -> Any:
    """Give this thread eight tiles of sixteen rows of 64 bytes, until close_tiles()."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        setting = bytearray(64)
        setting[0] = 1
        for tile in range(8):
            setting[16 + 2 * tile], setting[48 + tile] = 64, 16
        constant = ir.Constant(ir.ArrayType(_byte, 64), setting)
        place = builder.bitcast(cgutils.global_constant(builder, "tiles", constant), _pointer)
        _call(builder, "ldtilecfg", [place])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def close_tiles(typing: Any) -> Any:
    """Give tiles back."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        _call(builder, "tilerelease", [])
        return context.get_dummy_value()

    return types.void(), generate


@njit(**INNER)
def _put_words(even, odd, target, t, plane):
    first, second, third = _thirds(even, odd)
    store(target, t, first), store(target, t + plane, second), store(target, t + plane + plane, third)


@njit(**INNER)
def lay(source, s, row, outer, inner, along, left, target, t, plane, tiles):
    """Lay a matrix as a factor: `outer` rows (or columns, of a right factor) by `inner` of the sum's index k.

    source[s + o * row + k] where `along`, else source[s + k * row + o]. left: as a left factor, else as a right one.
    tiles: how many lie along k in all. outer: a multiple of 16; inner: of 32. All uint64, but the booleans.
    """
    for o in range(_0, outer, WIDTH):
        for k in range(_0, inner, _2 * WIDTH):
            place = t + (o // WIDTH * tiles + k // (_2 * WIDTH)) * TILE
            first = s + (o * row + k if along else k * row + o)
            for i in range(_0, WIDTH):
                if along:
                    at = first + i * row
                    even, odd = _sorted(load(source, at), load(source, at + WIDTH))
                else:
                    at = first + _2 * i * row
                    even, odd = load(source, at), load(source, at + row)
                _put_words(even, odd, target, place + i * WIDTH, plane)
            if along != left:
                for third in range(_0, _3):
                    turn(target, place + third * plane, WIDTH, place + third * plane, WIDTH)


@njit(**INNER)
def _six(left, a, b, left_plane, right, x, y, right_plane):
    """Add the products of two left tiles, at a and b, and two right ones, at x and y, to the four tiles 0 to 3."""
    for m in range(_0, _3):
        _fetch(4, left, a + m * left_plane, WIDTH), _fetch(5, left, b + m * left_plane, WIDTH)
        for n in range(_0, _3 - m):
            _fetch(6, right, x + n * right_plane, WIDTH), _fetch(7, right, y + n * right_plane, WIDTH)
            _add_product(0, 4, 6), _add_product(1, 4, 7), _add_product(2, 5, 6), _add_product(3, 5, 7)


@njit(**INNER)
def multiply_tiles(left, a, left_plane, right, x, right_plane, tiles, columns, target, t, target_row):
    """target[r, c] += sum over k of left[r, k] * right[k, c], for r < 32 and c < columns, a multiple of 32.

    a, x, t: where they begin; tiles: along k. All uint64. Between open_tiles() and close_tiles().
    """
    size = tiles * TILE
    for c in range(_0, columns, TILE_SPAN):
        upper, lower = t + c, t + c + WIDTH * target_row
        _fetch(0, target, upper, target_row), _fetch(1, target, upper + WIDTH, target_row)
        _fetch(2, target, lower, target_row), _fetch(3, target, lower + WIDTH, target_row)
        first = x + c // WIDTH * size
        for k in range(_0, size, TILE):
            _six(left, a + k, a + size + k, left_plane, right, first + k, first + size + k, right_plane)
        _put(0, target, upper, target_row), _put(1, target, upper + WIDTH, target_row)
        _put(2, target, lower, target_row), _put(3, target, lower + WIDTH, target_row)
