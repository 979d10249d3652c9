"""Matrix products on blocks of 64 samples, feature-major: row f of a block holds feature f of its 64 samples.

One product serves all three passes of a dense layer, because it takes the strides of its factors:

    forward     target[o, e]   += sum_i weight[o, i] source[i, e]
    backward    target[i, e]   += sum_o weight[o, i] delta[o, e]
    gradient    target[o, i]   += sum_e delta[o, e] source[i, e], with the source transposed: lanes are inputs

Sums stay in registers, six rows by 64 lanes where the machine has 512-bit registers, else four by 16. Each is taken
in order, whatever the tile, so that results depend neither on the tile nor on the machine's register width. Gradients
of few weights are sums along lanes instead (add_dots), which need no transposed source.
"""

from __future__ import annotations

import llvmlite.binding
import numpy as np

from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, splat, store, total, turn
from headrace.kernels.runtime.jit import INNER, njit

_ZERO, _ONE, _FOUR, _SIX, _EIGHT = (np.uint64(n) for n in (0, 1, 4, 6, 8))
_2, _3 = np.uint64(2) * WIDTH, np.uint64(3) * WIDTH
_WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f", False))


@njit(**INNER)
def _tile_6x64(weight, w, row, column, count, source, s, source_row, target, t, target_row):
    w1, t1 = w + row, t + target_row
    w2, t2 = w1 + row, t1 + target_row
    w3, t3 = w2 + row, t2 + target_row
    w4, t4 = w3 + row, t3 + target_row
    w5, t5 = w4 + row, t4 + target_row
    a0, a1, a2, a3 = load(target, t), load(target, t + WIDTH), load(target, t + _2), load(target, t + _3)
    b0, b1, b2, b3 = load(target, t1), load(target, t1 + WIDTH), load(target, t1 + _2), load(target, t1 + _3)
    c0, c1, c2, c3 = load(target, t2), load(target, t2 + WIDTH), load(target, t2 + _2), load(target, t2 + _3)
    d0, d1, d2, d3 = load(target, t3), load(target, t3 + WIDTH), load(target, t3 + _2), load(target, t3 + _3)
    e0, e1, e2, e3 = load(target, t4), load(target, t4 + WIDTH), load(target, t4 + _2), load(target, t4 + _3)
    f0, f1, f2, f3 = load(target, t5), load(target, t5 + WIDTH), load(target, t5 + _2), load(target, t5 + _3)
    for k in range(_ZERO, count):
        i, j = s + k * source_row, k * column
        x0, x1, x2, x3 = load(source, i), load(source, i + WIDTH), load(source, i + _2), load(source, i + _3)
        a, b, c = splat(weight[w + j]), splat(weight[w1 + j]), splat(weight[w2 + j])
        d, e, f = splat(weight[w3 + j]), splat(weight[w4 + j]), splat(weight[w5 + j])
        a0, a1, a2, a3 = fma(a, x0, a0), fma(a, x1, a1), fma(a, x2, a2), fma(a, x3, a3)
        b0, b1, b2, b3 = fma(b, x0, b0), fma(b, x1, b1), fma(b, x2, b2), fma(b, x3, b3)
        c0, c1, c2, c3 = fma(c, x0, c0), fma(c, x1, c1), fma(c, x2, c2), fma(c, x3, c3)
        d0, d1, d2, d3 = fma(d, x0, d0), fma(d, x1, d1), fma(d, x2, d2), fma(d, x3, d3)
        e0, e1, e2, e3 = fma(e, x0, e0), fma(e, x1, e1), fma(e, x2, e2), fma(e, x3, e3)
        f0, f1, f2, f3 = fma(f, x0, f0), fma(f, x1, f1), fma(f, x2, f2), fma(f, x3, f3)
    store(target, t, a0), store(target, t + WIDTH, a1), store(target, t + _2, a2), store(target, t + _3, a3)
    store(target, t1, b0), store(target, t1 + WIDTH, b1), store(target, t1 + _2, b2), store(target, t1 + _3, b3)
    store(target, t2, c0), store(target, t2 + WIDTH, c1), store(target, t2 + _2, c2), store(target, t2 + _3, c3)
    store(target, t3, d0), store(target, t3 + WIDTH, d1), store(target, t3 + _2, d2), store(target, t3 + _3, d3)
    store(target, t4, e0), store(target, t4 + WIDTH, e1), store(target, t4 + _2, e2), store(target, t4 + _3, e3)
    store(target, t5, f0), store(target, t5 + WIDTH, f1), store(target, t5 + _2, f2), store(target, t5 + _3, f3)


@njit(**INNER)
def _tile_4x64(weight, w, row, column, count, source, s, source_row, target, t, target_row):
    w1, t1 = w + row, t + target_row
    w2, t2 = w1 + row, t1 + target_row
    w3, t3 = w2 + row, t2 + target_row
    a0, a1, a2, a3 = load(target, t), load(target, t + WIDTH), load(target, t + _2), load(target, t + _3)
    b0, b1, b2, b3 = load(target, t1), load(target, t1 + WIDTH), load(target, t1 + _2), load(target, t1 + _3)
    c0, c1, c2, c3 = load(target, t2), load(target, t2 + WIDTH), load(target, t2 + _2), load(target, t2 + _3)
    d0, d1, d2, d3 = load(target, t3), load(target, t3 + WIDTH), load(target, t3 + _2), load(target, t3 + _3)
    for k in range(_ZERO, count):
        i, j = s + k * source_row, k * column
        x0, x1, x2, x3 = load(source, i), load(source, i + WIDTH), load(source, i + _2), load(source, i + _3)
        a, b, c, d = splat(weight[w + j]), splat(weight[w1 + j]), splat(weight[w2 + j]), splat(weight[w3 + j])
        a0, a1, a2, a3 = fma(a, x0, a0), fma(a, x1, a1), fma(a, x2, a2), fma(a, x3, a3)
        b0, b1, b2, b3 = fma(b, x0, b0), fma(b, x1, b1), fma(b, x2, b2), fma(b, x3, b3)
        c0, c1, c2, c3 = fma(c, x0, c0), fma(c, x1, c1), fma(c, x2, c2), fma(c, x3, c3)
        d0, d1, d2, d3 = fma(d, x0, d0), fma(d, x1, d1), fma(d, x2, d2), fma(d, x3, d3)
    store(target, t, a0), store(target, t + WIDTH, a1), store(target, t + _2, a2), store(target, t + _3, a3)
    store(target, t1, b0), store(target, t1 + WIDTH, b1), store(target, t1 + _2, b2), store(target, t1 + _3, b3)
    store(target, t2, c0), store(target, t2 + WIDTH, c1), store(target, t2 + _2, c2), store(target, t2 + _3, c3)
    store(target, t3, d0), store(target, t3 + WIDTH, d1), store(target, t3 + _2, d2), store(target, t3 + _3, d3)


@njit(**INNER)
def _tile_1x64(weight, w, column, count, source, s, source_row, target, t):
    a0, a1, a2, a3 = load(target, t), load(target, t + WIDTH), load(target, t + _2), load(target, t + _3)
    for k in range(_ZERO, count):
        i, a = s + k * source_row, splat(weight[w + k * column])
        a0, a1 = fma(a, load(source, i), a0), fma(a, load(source, i + WIDTH), a1)
        a2, a3 = fma(a, load(source, i + _2), a2), fma(a, load(source, i + _3), a3)
    store(target, t, a0), store(target, t + WIDTH, a1), store(target, t + _2, a2), store(target, t + _3, a3)


@njit(**INNER)
def _tile_4x16(weight, w, row, column, count, source, s, source_row, target, t, target_row):
    w1, t1 = w + row, t + target_row
    w2, t2 = w1 + row, t1 + target_row
    w3, t3 = w2 + row, t2 + target_row
    a, b, c, d = load(target, t), load(target, t1), load(target, t2), load(target, t3)
    for k in range(_ZERO, count):
        x, j = load(source, s + k * source_row), k * column
        a, b = fma(splat(weight[w + j]), x, a), fma(splat(weight[w1 + j]), x, b)
        c, d = fma(splat(weight[w2 + j]), x, c), fma(splat(weight[w3 + j]), x, d)
    store(target, t, a), store(target, t1, b), store(target, t2, c), store(target, t3, d)


@njit(**INNER)
def _tile_8x16(weight, w, row, column, count, source, s, source_row, target, t, target_row):
    w1, w2, w3, w4 = w + row, w + row + row, w + row + row + row, w + _FOUR * row
    w5, w6, w7 = w4 + row, w4 + row + row, w4 + row + row + row
    t1, t2, t3 = t + target_row, t + target_row + target_row, t + target_row + target_row + target_row
    t4 = t + _FOUR * target_row
    t5, t6, t7 = t4 + target_row, t4 + target_row + target_row, t4 + target_row + target_row + target_row
    a, b, c, d = load(target, t), load(target, t1), load(target, t2), load(target, t3)
    e, f, g, h = load(target, t4), load(target, t5), load(target, t6), load(target, t7)
    for k in range(_ZERO, count):
        x, j = load(source, s + k * source_row), k * column
        a, b = fma(splat(weight[w + j]), x, a), fma(splat(weight[w1 + j]), x, b)
        c, d = fma(splat(weight[w2 + j]), x, c), fma(splat(weight[w3 + j]), x, d)
        e, f = fma(splat(weight[w4 + j]), x, e), fma(splat(weight[w5 + j]), x, f)
        g, h = fma(splat(weight[w6 + j]), x, g), fma(splat(weight[w7 + j]), x, h)
    store(target, t, a), store(target, t1, b), store(target, t2, c), store(target, t3, d)
    store(target, t4, e), store(target, t5, f), store(target, t6, g), store(target, t7, h)


@njit(**INNER)
def _tile_1x16(weight, w, column, count, source, s, source_row, target, t):
    a = load(target, t)
    for k in range(_ZERO, count):
        a = fma(splat(weight[w + k * column]), load(source, s + k * source_row), a)
    store(target, t, a)


@njit(**INNER)
def multiply(weight, w, row, column, rows, count, source, s, source_row, target, t, target_row, width):
    """target[r, e] += sum over k < count of weight[r, k] * source[k, e], for r < rows and e < width.

    w, s, t: where the matrices begin in their flat float32 arrays; row, column: weight's strides; source_row,
    target_row: strides of the other two, whose columns lie side by side. width: a multiple of 16. All uint64.
    """
    e = _ZERO
    while e < width:
        wide, x, r = _WIDE and e + BLOCK <= width, s + e, _ZERO
        while r < rows:
            f, y, left = w + r * row, t + r * target_row + e, rows - r
            if wide and left >= _SIX:
                _tile_6x64(weight, f, row, column, count, source, x, source_row, target, y, target_row)
                r += _SIX
            elif _WIDE and not wide and left >= _EIGHT:
                _tile_8x16(weight, f, row, column, count, source, x, source_row, target, y, target_row)
                r += _EIGHT
            elif left >= _FOUR:
                if wide:
                    _tile_4x64(weight, f, row, column, count, source, x, source_row, target, y, target_row)
                else:
                    _tile_4x16(weight, f, row, column, count, source, x, source_row, target, y, target_row)
                r += _FOUR
            else:
                if wide:
                    _tile_1x64(weight, f, column, count, source, x, source_row, target, y)
                else:
                    _tile_1x16(weight, f, column, count, source, x, source_row, target, y)
                r += _ONE
        e += BLOCK if wide else WIDTH


@njit(**INNER)
def fill(target, first, rows, bias, b):
    """Row r of the block at target[first] becomes bias[b + r]."""
    for r in range(_ZERO, rows):
        value = splat(bias[b + r])
        for i in range(first + r * BLOCK, first + (r + _ONE) * BLOCK, WIDTH):
            store(target, i, value)


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
def transpose(scratch, source, rows, target, stride):
    """scratch[target + e * stride + r] = scratch[source + r * BLOCK + e], sixteen rows at a time."""
    whole = rows - rows % WIDTH
    for r in range(_ZERO, whole, WIDTH):
        for e in range(_ZERO, BLOCK, WIDTH):
            turn(scratch, source + r * BLOCK + e, BLOCK, target + e * stride + r, stride)
    for r in range(whole, rows):
        for e in range(_ZERO, BLOCK):
            scratch[target + e * stride + r] = scratch[source + r * BLOCK + e]


@njit(**INNER)
def add_dots(scratch, first, rows, source, columns, target, t, target_row):
    """target[t + r * target_row + c] += row r of the block at scratch[first] times row c of the one at source."""
    for c in range(_ZERO, columns):
        i = source + c * BLOCK
        x0, x1, x2, x3 = load(scratch, i), load(scratch, i + WIDTH), load(scratch, i + _2), load(scratch, i + _3)
        for r in range(_ZERO, rows):
            j = first + r * BLOCK
            even = fma(load(scratch, j + _2), x2, load(scratch, j) * x0)
            odd = fma(load(scratch, j + _3), x3, load(scratch, j + WIDTH) * x1)
            target[t + r * target_row + c] += total(even + odd)


@njit(**INNER)
def add_row_sums(scratch, first, rows, target, t):
    """target[t + r] += sum of row r of the block at scratch[first]."""
    for r in range(_ZERO, rows):
        i = first + r * BLOCK
        pairs = (load(scratch, i) + load(scratch, i + WIDTH)) + (load(scratch, i + _2) + load(scratch, i + _3))
        target[t + r] += total(pairs)
