"""Products of float32 matrices on the processor's tiles of bfloat16 (Intel AMX), as exact as float32.

A float32 is the exact sum of three bfloat16 with eight bits of it each. Of the nine products of two such sums six are
computed; the other three are smaller than what float32 rounds away. Sums are float32's. (Henry, Tang & Heinecke 2019,
arXiv:1904.06376, section II.) Six products on tiles take half the time of one in vectors.

A packed factor consists of words of two bfloat16, neighbours along k, the index that is summed over; in tiles of 16 x
16 words, a cache line each row: of a left factor [r, k] 16 rows, of a right one [k, c] 16 pairs of k. Tiles are ordered
along k first, then along r or c. Three such planes, one for each term of the sum, lie `plane` words apart. Words are
stored in arrays of float32 and are never computed with there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core import cgutils  # noqa: TID253

from headrace.kernels.nn.amx import TILE, TILE_SPAN
from headrace.kernels.nn.layout import WIDTH
from headrace.kernels.nn.simd import constant, lanes, load, store, transpose_16x16, vector
from headrace.kernels.runtime.intrinsics import ARRAY, LITERAL, call_llvm, operation
from headrace.kernels.runtime.jit import INNER, njit

U = np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_byte, _long = ir.IntType(8), ir.IntType(64)
_pointer, _words = _byte.as_pointer(), ir.VectorType(ir.IntType(32), 16)


@operation(types.UniTuple(lanes, 3), lanes, lanes)
def _split(builder: ir.IRBuilder, even: ir.Value, odd: ir.Value) -> ir.Value:
    """Three words of each pair of numbers: their first eight bits, the next eight, the rest. even: the lower halves."""
    found = []
    for _ in range(3):
        bits = [builder.and_(builder.bitcast(x, _words), constant(0xFFFF0000)) for x in (even, odd)]
        word = builder.or_(builder.lshr(bits[0], constant(16)), bits[1])
        found.append(builder.bitcast(word, vector))
        even, odd = (builder.fsub(x, builder.bitcast(b, vector)) for x, b in zip((even, odd), bits, strict=True))
    return cgutils.pack_array(builder, found)


@operation(types.UniTuple(lanes, 2), lanes, lanes)
def _even_odd(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    """Of 32 numbers those at even indices, and those at odd ones."""
    orders = [ir.Constant(_words, [2 * i + odd for i in range(16)]) for odd in range(2)]
    return cgutils.pack_array(builder, [builder.shuffle_vector(first, second, order) for order in orders])


def _tile(number: int) -> ir.Constant:
    """A tile as an operand of an instruction."""
    return ir.Constant(_byte, number)


def _mover(instruction: str) -> Callable[..., None]:
    """An intrinsic that copies between a tile and sixteen rows of sixteen words, `row` words apart, from array[index]
    on."""

    @operation(types.void, LITERAL, ARRAY, types.uint64, types.uint64)
    def move(builder: ir.IRBuilder, tile: int, array: ir.Value, index: ir.Value, row: ir.Value) -> None:
        start = builder.bitcast(builder.gep(array, [index]), _pointer)
        bytes_apart = builder.shl(row, ir.Constant(_long, 2))
        call_llvm(builder, f"x86.{instruction}", ir.VoidType(), _tile(tile), start, bytes_apart)

    return move


_load_tile, _store_tile = _mover("tileloadd64"), _mover("tilestored64")


@operation(types.void, LITERAL, LITERAL, LITERAL)
def _add_product(builder: ir.IRBuilder, target: int, left: int, right: int) -> None:
    """target += left times right, of tiles."""
    call_llvm(builder, "x86.tdpbf16ps", ir.VoidType(), *map(_tile, (target, left, right)))


@operation(types.void)
def open_tiles(builder: ir.IRBuilder) -> None:
    """Configure eight tiles of sixteen rows of 64 bytes for this thread, until close_tiles()."""
    setting = bytearray(64)
    setting[0] = 1
    for tile in range(8):
        setting[16 + 2 * tile], setting[48 + tile] = 64, 16
    configuration = cgutils.global_constant(builder, "tiles", ir.Constant(ir.ArrayType(_byte, 64), setting))
    call_llvm(builder, "x86.ldtilecfg", ir.VoidType(), builder.bitcast(configuration, _pointer))


@operation(types.void)
def close_tiles(builder: ir.IRBuilder) -> None:
    """Release the tiles."""
    call_llvm(builder, "x86.tilerelease", ir.VoidType())


@njit(**INNER)
def _store_words(even, odd, target, t, plane):
    first, second, third = _split(even, odd)
    store(target, t, first), store(target, t + plane, second), store(target, t + plane + plane, third)


@njit(**INNER)
def pack(source, s, row, outer, inner, along, left, target, t, plane, tiles):
    """Pack a matrix as a factor: `outer` rows (or columns, of a right factor) by `inner` of the sum's index k.

    It is source[s + o * row + k] where `along`, else source[s + k * row + o]. left: as a left factor, else a right one.
    tiles: how many lie along k in all. outer: a multiple of 16; inner: of 32. All uint64, but the booleans.
    """
    for o in range(_0, outer, WIDTH):
        for k in range(_0, inner, _2 * WIDTH):
            offset = t + (o // WIDTH * tiles + k // (_2 * WIDTH)) * TILE
            first = s + (o * row + k if along else k * row + o)
            for i in range(_0, WIDTH):
                if along:
                    at = first + i * row
                    even, odd = _even_odd(load(source, at), load(source, at + WIDTH))
                else:
                    at = first + _2 * i * row
                    even, odd = load(source, at), load(source, at + row)
                _store_words(even, odd, target, offset + i * WIDTH, plane)
            if along != left:
                for term in range(_0, _3):
                    transpose_16x16(target, offset + term * plane, WIDTH, offset + term * plane, WIDTH)


@njit(**INNER)
def _add_six_products(left, a, b, left_plane, right, x, y, right_plane):
    """Add the products of two left tiles, at a and b, and two right ones, at x and y, to the four tiles 0 to 3."""
    for m in range(_0, _3):
        _load_tile(4, left, a + m * left_plane, WIDTH), _load_tile(5, left, b + m * left_plane, WIDTH)
        for n in range(_0, _3 - m):
            _load_tile(6, right, x + n * right_plane, WIDTH), _load_tile(7, right, y + n * right_plane, WIDTH)
            _add_product(0, 4, 6), _add_product(1, 4, 7), _add_product(2, 5, 6), _add_product(3, 5, 7)


@njit(**INNER)
def multiply_tiles(left, a, left_plane, right, x, right_plane, tiles, columns, target, t, target_row):
    """target[r, c] += sum over k of left[r, k] * right[k, c], for r < 32 and c < columns, a multiple of 32.

    a, x, t: their offsets; tiles: along k. All uint64. Between open_tiles() and close_tiles().
    """
    size = tiles * TILE
    for c in range(_0, columns, TILE_SPAN):
        upper, lower = t + c, t + c + WIDTH * target_row
        _load_tile(0, target, upper, target_row), _load_tile(1, target, upper + WIDTH, target_row)
        _load_tile(2, target, lower, target_row), _load_tile(3, target, lower + WIDTH, target_row)
        first = x + c // WIDTH * size
        for k in range(_0, size, TILE):
            _add_six_products(left, a + k, a + size + k, left_plane, right, first + k, first + size + k, right_plane)
        _store_tile(0, target, upper, target_row), _store_tile(1, target, upper + WIDTH, target_row)
        _store_tile(2, target, lower, target_row), _store_tile(3, target, lower + WIDTH, target_row)
