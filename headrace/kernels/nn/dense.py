"""Matrix products on blocks of 64 samples, feature-major: row f of a block holds feature f of its 64 samples.

One product serves all three passes of a dense layer, because it takes the strides of its factors:

    forward     target[o, e]   = bias[o] + sum_i weight[o, i] source[i, e]
    backward    target[i, e]   = sum_o weight[o, i] grad[o, e]
    gradient    target[o, i]   += sum_e grad[o, e] source[i, e], with the source transposed: lanes are inputs

Sums stay in registers, six rows by 64 lanes or twelve by 32 where the machine has 512-bit registers, else six by 16,
over so many terms that the source's rows stay in the first cache for all tiles. Each is taken in order, whatever the
tile, so that results depend neither on the tile nor on the machine's register width. Gradients of few weights are sums
along lanes instead (add_dots), which need no transposed source.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core import cgutils  # noqa: TID253

from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import (
    WIDE,
    add_apart,
    broadcast_as,
    dots,
    fma,
    fma_vector,
    load,
    load_as,
    row_sums,
    splat,
    store,
    store_vector,
    total,
    transpose_16x16,
    vector,
)
from headrace.kernels.runtime.intrinsics import ARRAY, operation
from headrace.kernels.runtime.jit import INNER, njit

_ZERO, _ONE = np.uint64(0), np.uint64(1)
TARGET, ZERO, BIAS = (np.uint64(i) for i in range(3))  # what the sums of a product begin with
_2, _3 = np.uint64(2) * WIDTH, np.uint64(3) * WIDTH

# of a tile: begin, bias; weight, w, row, column, count; source, s, source_row; target, t, target_row
_OPERANDS = (*[types.uint64] * 2, ARRAY, *[types.uint64] * 4, *(ARRAY, types.uint64, types.uint64) * 2)


def _tile(rows: int, vectors: int) -> Callable[..., None]:
    """combine() for so many rows by so many vectors, whose sums stay in registers."""

    @operation(types.void, *_OPERANDS)
    def tile(builder, begin, bias, weight, w, row, column, count, source, s, source_row, target, t, target_row):  # type: ignore
        def at(first: ir.Value, stride: ir.Value, number: int) -> ir.Value:
            return builder.add(first, builder.mul(stride, ir.Constant(stride.type, number)))

        def vectors_of(first: ir.Value) -> list[ir.Value]:
            return [builder.add(first, ir.Constant(first.type, vector.count * v)) for v in range(vectors)]

        def is_(how: np.uint64) -> ir.Value:
            return builder.icmp_unsigned("==", begin, ir.Constant(begin.type, int(how)))

        places = [vectors_of(at(t, target_row, r)) for r in range(rows)]
        starts = [at(w, row, r) for r in range(rows)]
        sums = [[cgutils.alloca_once(builder, vector) for _ in one] for one in places]
        with builder.if_else(is_(TARGET)) as (from_target, from_bias):
            with from_target:
                for own, one in zip(sums, places, strict=True):
                    for sum_of, i in zip(own, one, strict=True):
                        builder.store(load_as(builder, target, i, vector), sum_of)
            with from_bias:
                for r, own in enumerate(sums):
                    place = builder.select(is_(BIAS), builder.add(bias, ir.Constant(bias.type, r)), w)
                    found = builder.load(builder.gep(weight, [place]))
                    number = builder.select(is_(BIAS), found, ir.Constant(found.type, 0.0))
                    first = broadcast_as(builder, number, vector)
                    for sum_of in own:
                        builder.store(first, sum_of)
        with cgutils.for_range(builder, count) as loop:
            first = builder.add(s, builder.mul(loop.index, source_row))
            x = [load_as(builder, source, i, vector) for i in vectors_of(first)]
            k = builder.mul(loop.index, column)
            for start, own in zip(starts, sums, strict=True):
                a = broadcast_as(builder, builder.load(builder.gep(weight, [builder.add(start, k)])), vector)
                for value, sum_of in zip(x, own, strict=True):
                    builder.store(fma_vector(builder, a, value, builder.load(sum_of)), sum_of)
        for own, one in zip(sums, places, strict=True):
            for sum_of, i in zip(own, one, strict=True):
                store_vector(builder, target, i, builder.load(sum_of))

    return tile


@njit(**INNER)
def _nothing(begin, bias, weight, w, row, column, rows, count, source, s, source_row, target, t, target_row):
    pass


def _tiles(rows: int, vectors: int, rest: Callable[..., None] = _nothing) -> Callable[..., None]:
    """combine() for so many vectors of columns, in tiles of so many rows; `rest` for the rows that are left."""
    tile, height = _tile(rows, vectors), np.uint64(rows)

    @njit(**INNER)
    def tiles(begin, bias, weight, w, row, column, rows, count, source, s, source_row, target, t, target_row):
        while rows >= height:
            tile(begin, bias, weight, w, row, column, count, source, s, source_row, target, t, target_row)
            w, t, rows, bias = w + height * row, t + height * target_row, rows - height, bias + height
        rest(begin, bias, weight, w, row, column, rows, count, source, s, source_row, target, t, target_row)

    return tiles


_by_64, _by_32, _by_16 = (_tiles(4, vectors, _tiles(1, vectors)) for vectors in (4, 2, 1))
if WIDE:
    _by_64, _by_32, _by_16 = _tiles(6, 4, _by_64), _tiles(12, 2, _by_32), _tiles(8, 1, _by_16)
    _TERMS = np.uint64(1 << 32)
else:
    _by_16, _TERMS = _tiles(6, 1, _by_16), BLOCK


@njit(**INNER)
def combine(begin, bias, weight, w, row, column, rows, count, source, s, source_row, target, t, target_row, width):
    """Sums begin with the TARGET as in multiply(), with ZERO, or with the BIAS of their row as in affine(), of which
    weight[bias] is the first."""
    for k in range(_ZERO, count, _TERMS):
        terms, first, start = min(_TERMS, count - k), w + k * column, s + k * source_row
        how = begin if k == _ZERO else TARGET
        e = _ZERO
        while e < width:
            at, to = start + e, t + e
            if WIDE and e + BLOCK <= width:
                _by_64(
                    how, bias, weight, first, row, column, rows, terms, source, at, source_row, target, to, target_row
                )
                e += BLOCK
            elif WIDE and e + _2 <= width:
                _by_32(
                    how, bias, weight, first, row, column, rows, terms, source, at, source_row, target, to, target_row
                )
                e += _2
            else:
                _by_16(
                    how, bias, weight, first, row, column, rows, terms, source, at, source_row, target, to, target_row
                )
                e += WIDTH


@njit(**INNER)
def multiply(weight, w, row, column, rows, count, source, s, source_row, target, t, target_row, width):
    """target[r, e] += sum over k < count of weight[r, k] * source[k, e], for r < rows and e < width.

    w, s, t: where the matrices begin in their flat float32 arrays; row, column: weight's strides; source_row,
    target_row: strides of the other two, whose columns lie side by side. width: a multiple of 16. All uint64.
    """
    combine(TARGET, w, weight, w, row, column, rows, count, source, s, source_row, target, t, target_row, width)


@njit(**INNER)
def affine(bias, weight, w, row, column, rows, count, source, s, source_row, target, t, target_row, width):
    """multiply() to a target whose row r is weight[bias + r] throughout, and which is not read."""
    combine(BIAS, bias, weight, w, row, column, rows, count, source, s, source_row, target, t, target_row, width)


@njit(**INNER)
def whole_vectors(count):
    """`count` rounded up to whole vectors."""
    return (count + WIDTH - _ONE) // WIDTH * WIDTH


@njit(**INNER)
def clear(target, first, count):
    """target[first : first + count] = 0; count a multiple of 16."""
    zero = splat(np.float32(0))
    for i in range(first, first + count, WIDTH):
        store(target, i, zero)


@njit(**INNER)
def add(target, source, first, count):
    """target[first : first + count] += source[first : first + count]; count a multiple of 16."""
    for i in range(first, first + count, WIDTH):
        store(target, i, load(target, i) + load(source, i))


@njit(**INNER)
def transpose(scratch, source, rows, target, stride, lanes):
    """scratch[target + e * stride + r] = scratch[source + r * lanes + e] for e < lanes, sixteen rows at a time."""
    whole = rows - rows % WIDTH
    for r in range(_ZERO, whole, WIDTH):
        for e in range(_ZERO, lanes, WIDTH):
            transpose_16x16(scratch, source + r * lanes + e, lanes, target + e * stride + r, stride)
    for r in range(whole, rows):
        for e in range(_ZERO, lanes):
            scratch[target + e * stride + r] = scratch[source + r * lanes + e]


@njit(**INNER)
def add_dots(scratch, first, rows, source, columns, target, t, target_row):
    """target[t + r * target_row + c] += row r of the block at scratch[first] times row c of the one at source."""
    whole = columns - columns % WIDTH
    for r in range(_ZERO, rows if whole > _ZERO else _ZERO):
        i = first + r * BLOCK
        x0, x1, x2, x3 = load(scratch, i), load(scratch, i + WIDTH), load(scratch, i + _2), load(scratch, i + _3)
        for c in range(_ZERO, whole, WIDTH):
            at = t + r * target_row + c
            store(target, at, load(target, at) + dots(scratch, source + c * BLOCK, BLOCK, x0, x1, x2, x3))
    for c in range(whole, columns):
        i = source + c * BLOCK
        x0, x1, x2, x3 = load(scratch, i), load(scratch, i + WIDTH), load(scratch, i + _2), load(scratch, i + _3)
        several = rows - rows % WIDTH
        for r in range(_ZERO, several, WIDTH):
            found = dots(scratch, first + r * BLOCK, BLOCK, x0, x1, x2, x3)
            add_apart(target, t + r * target_row + c, target_row, found)
        for r in range(several, rows):
            j = first + r * BLOCK
            even = fma(load(scratch, j + _2), x2, load(scratch, j) * x0)
            odd = fma(load(scratch, j + _3), x3, load(scratch, j + WIDTH) * x1)
            target[t + r * target_row + c] += total(even + odd)


@njit(**INNER)
def add_row_sums(scratch, first, rows, target, t):
    """target[t + r] += sum of row r of the block at scratch[first]."""
    whole = rows - rows % WIDTH
    for r in range(_ZERO, whole, WIDTH):
        store(target, t + r, load(target, t + r) + row_sums(scratch, first + r * BLOCK, BLOCK))
    for r in range(whole, rows):
        i = first + r * BLOCK
        pairs = (load(scratch, i) + load(scratch, i + WIDTH)) + (load(scratch, i + _2) + load(scratch, i + _3))
        target[t + r] += total(pairs)
