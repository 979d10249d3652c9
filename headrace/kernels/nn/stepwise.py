"""Chains of dense layers on blocks of 64 samples, forward and backward, with weights that lie either way round.

A chain's table has a row for each layer (headrace.kernels.nn.stepwise_layout). Unlike those of headrace.kernels.nn.mlp,
gradients are not kept: a chunk of a layer's weights is a piece of work, whose gradient over all blocks moves the
parameters at once (Adam), while it lies in the first cache. So nothing is added up between threads, and the number of
threads changes no bit.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.activations import activate, pull_back
from headrace.kernels.nn.adam_step import BETA1, BETA2, squares
from headrace.kernels.nn.amx import TILE_SPAN, processor_has_tiles
from headrace.kernels.nn.dense import add_row_sums, clear, fill, multiply, transpose
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import load, sqrt, store
from headrace.kernels.nn.stepwise_amx import (
    backward_tiles,
    differentiate_tiles,
    forward_tiles,
    lay_gradient,
    lay_weights,
)
from headrace.kernels.nn.stepwise_layout import CHUNK_ROWS
from headrace.kernels.runtime.jit import INNER, njit

F, U = np.float32, np.uint64
_0, _1 = U(0), U(1)
_HAS_TILES = processor_has_tiles()  # where it is false, what tiles do is not compiled


@njit(**INNER)
def forward_rows(chain, n, parameters, scratch, r):
    """CHUNK_ROWS outputs of layer n of a block, from output r on."""
    inputs, row, column = chain[n, col.INPUTS], chain[n, col.ROW_STRIDE], chain[n, col.COLUMN_STRIDE]
    rows, place = min(CHUNK_ROWS, chain[n, col.OUTPUTS] - r), chain[n, col.OUTPUT] + r * BLOCK
    fill(scratch, place, rows, parameters, chain[n, col.BIAS] + r)
    multiply(
        parameters, chain[n, col.WEIGHT] + r * row, row, column, rows, inputs,
        scratch, chain[n, col.SOURCE], BLOCK, scratch, place, BLOCK, BLOCK,
    )  # fmt: skip
    activate(chain[n, col.ACTIVATION], scratch, place, chain[n, col.ACTIVATION_GRAD] + r * BLOCK, rows * BLOCK)


@njit(**INNER)
def forward(chain, parameters, words, scratch):
    """Outputs of all layers of a block, from its inputs. words: of these parameters, see lay_piece()."""
    for n in range(_0, U(len(chain))):
        if _HAS_TILES and chain[n, col.PACKED] != col.NOWHERE:
            forward_tiles(chain, n, parameters, words, scratch)
        else:
            for r in range(_0, chain[n, col.OUTPUTS], CHUNK_ROWS):
                forward_rows(chain, n, parameters, scratch, r)


@njit(**INNER)
def pull(chain, n, scratch):
    """Layer n's delta in a block: from the slope at its activation to that before it."""
    size = chain[n, col.OUTPUTS] * BLOCK
    pull_back(
        chain[n, col.ACTIVATION],
        scratch,
        chain[n, col.OUTPUT_GRAD],
        chain[n, col.OUTPUT],
        chain[n, col.ACTIVATION_GRAD],
        size,
    )


@njit(**INNER)
def backward_rows(chain, n, parameters, scratch, i):
    """Slopes at CHUNK_ROWS inputs of layer n of a block, from input i on."""
    outputs, row, column = chain[n, col.OUTPUTS], chain[n, col.ROW_STRIDE], chain[n, col.COLUMN_STRIDE]
    rows, place = min(CHUNK_ROWS, chain[n, col.INPUTS] - i), chain[n, col.SOURCE_GRAD] + i * BLOCK
    clear(scratch, place, rows * BLOCK)
    multiply(
        parameters, chain[n, col.WEIGHT] + i * column, column, row, rows, outputs,
        scratch, chain[n, col.OUTPUT_GRAD], BLOCK, scratch, place, BLOCK, BLOCK,
    )  # fmt: skip


@njit(**INNER)
def backward(chain, parameters, words, scratch, first):
    """Deltas of all layers of a block, given the last one's; and of its inputs, for first = 0, else 1."""
    for back in range(_0, U(len(chain))):
        n = U(len(chain)) - _1 - back
        pull(chain, n, scratch)
        if n >= first:
            if _HAS_TILES and chain[n, col.PACKED] != col.NOWHERE:
                backward_tiles(chain, n, words, scratch)
            else:
                for i in range(_0, chain[n, col.INPUTS], CHUNK_ROWS):
                    backward_rows(chain, n, parameters, scratch, i)


@njit(**INNER)
def turn_layer(chain, n, scratch):
    """Of a layer of a block that went forward and backward: what its gradient needs with samples as rows."""
    if chain[n, col.COLUMN_STRIDE] == _1:
        transpose(scratch, chain[n, col.SOURCE], chain[n, col.INPUTS], chain[n, col.TRANSPOSED], chain[n, col.STRIDE])
    else:
        transpose(
            scratch, chain[n, col.OUTPUT_GRAD], chain[n, col.OUTPUTS], chain[n, col.TRANSPOSED], chain[n, col.STRIDE]
        )


@njit(**INNER)
def turn(chain, scratch, words, b, blocks):
    """Of all layers of the b-th of all blocks, which went forward and backward: what their gradients need."""
    for n in range(_0, U(len(chain))):
        if _HAS_TILES and chain[n, col.PACKED] != col.NOWHERE:
            lay_gradient(chain, n, scratch, words, b, blocks)
        else:
            turn_layer(chain, n, scratch)


@njit(**INNER)
def move(weights, place, gradient, g, count, scale, eps, tau):
    """Adam's step of `count` parameters from `place` on, along gradient[g] on; and (tau not 0) the target's after it.

    weights: an actor_q_job.Weights. scale: adam_cpu.scales()."""
    parameters, mean, square, target = weights.parameters, weights.mean, weights.square, weights.target
    factor, rate, correction = scale
    keep1, keep2, take1, take2 = F(BETA1), F(BETA2), F(1.0 - BETA1), F(1.0 - BETA2)
    whole = count - count % WIDTH
    for i in range(_0, whole, WIDTH):
        at, slope = place + i, load(gradient, g + i) * factor
        m = load(mean, at) * keep1 + slope * take1
        v = load(square, at) * keep2 + slope * take2 * slope
        store(mean, at, m), store(square, at, v)
        x = load(parameters, at) - m * rate / (sqrt(v) * correction + eps)
        store(parameters, at, x)
        if tau != F(0):
            slow = load(target, at)
            store(target, at, slow + (x - slow) * tau)
    for i in range(whole, count):
        at, slope = place + i, gradient[g + i] * factor
        mean[at] = mean[at] * keep1 + slope * take1
        square[at] = square[at] * keep2 + slope * take2 * slope
        parameters[at] -= mean[at] * rate / (F(math.sqrt(square[at])) * correction + eps)
        if tau != F(0):
            target[at] += (parameters[at] - target[at]) * tau


@njit(**INNER)
def _sizes(chain, n, first):
    """Of a piece: how many rows, how long each of them is, and how far apart their gradients."""
    straight = chain[n, col.COLUMN_STRIDE] == _1
    inputs, outputs = chain[n, col.INPUTS], chain[n, col.OUTPUTS]
    chunk = CHUNK_ROWS if chain[n, col.PACKED] == col.NOWHERE else TILE_SPAN
    return min(chunk, (outputs if straight else inputs) - first), inputs if straight else outputs, chain[n, col.STRIDE]


@njit(**INNER)
def _differentiate(chain, n, first, scratch, room):
    """The gradient of a piece of layer n's weights, from row `first` on, over blocks, the rows of scratch."""
    rows, _, stride = _sizes(chain, n, first)
    source = chain[n, col.OUTPUT_GRAD] if chain[n, col.COLUMN_STRIDE] == _1 else chain[n, col.SOURCE]
    clear(room, _0, rows * stride)
    for b in range(_0, U(len(scratch))):
        block = scratch[b]
        multiply(
            block, source + first * BLOCK, BLOCK, _1, rows, BLOCK,
            block, chain[n, col.TRANSPOSED], stride, room, _0, stride, stride,
        )  # fmt: skip


@njit(**INNER)
def _differentiate_bias(chain, n, scratch, room):
    outputs = chain[n, col.OUTPUTS]
    clear(room, _0, (outputs + WIDTH - _1) // WIDTH * WIDTH)
    for b in range(_0, U(len(scratch))):
        add_row_sums(scratch[b], chain[n, col.OUTPUT_GRAD], outputs, room, _0)


@njit(**INNER)
def lay_piece(chain, n, first, parameters, words, both):
    """Of a piece of layer n's weights: what tiles read in forward() and, where `both`, in backward()."""
    if _HAS_TILES and chain[n, col.PACKED] != col.NOWHERE:
        lay_weights(chain, n, first, parameters, words, both)


@njit(**INNER)
def learn_piece(chain, n, first, scratch, room, weights, scale, eps, tau):
    """Move a piece of layer n's weights, from row `first` on, along their gradient over blocks, the rows of scratch;
    with the first rows the biases. room: float32 for a gradient."""
    rows, minor, stride = _sizes(chain, n, first)
    place = chain[n, col.WEIGHT] + first * minor
    if _HAS_TILES and chain[n, col.PACKED] != col.NOWHERE:
        differentiate_tiles(chain, n, first, U(len(scratch)), weights.packed, room)
    else:
        _differentiate(chain, n, first, scratch, room)
    if stride == minor:
        move(weights, place, room, _0, rows * minor, scale, eps, tau)
    else:
        for r in range(_0, rows):
            move(weights, place + r * minor, room, r * stride, minor, scale, eps, tau)
    lay_piece(chain, n, first, weights.parameters, weights.packed, True)
    if tau != F(0):
        lay_piece(chain, n, first, weights.target, weights.packed_target, False)
    if first == _0:
        _differentiate_bias(chain, n, scratch, room)
        move(weights, chain[n, col.BIAS], room, _0, chain[n, col.OUTPUTS], scale, eps, tau)


@njit(**INNER)
def differentiate_piece(chain, n, first, scratch, room, gradient):
    """Write the gradient of what learn_piece() would move in the parameters' order. Gives the sum of its squares."""
    rows, minor, stride = _sizes(chain, n, first)
    place = chain[n, col.WEIGHT] + first * minor
    _differentiate(chain, n, first, scratch, room)
    for r in range(_0, rows):
        for i in range(_0, minor):
            gradient[place + r * minor + i] = room[r * stride + i]
    found = squares(gradient, place, rows * minor)
    if first == _0:
        _differentiate_bias(chain, n, scratch, room)
        for o in range(_0, chain[n, col.OUTPUTS]):
            gradient[chain[n, col.BIAS] + o] = room[o]
        found += squares(gradient, chain[n, col.BIAS], chain[n, col.OUTPUTS])
    return found


@njit(**INNER)
def move_piece(chain, n, first, gradient, weights, scale, eps):
    """Move what learn_piece() would, along a gradient in the parameters' order."""
    rows, minor, _ = _sizes(chain, n, first)
    place = chain[n, col.WEIGHT] + first * minor
    move(weights, place, gradient, place, rows * minor, scale, eps, F(0))
    if first == _0:
        move(weights, chain[n, col.BIAS], gradient, chain[n, col.BIAS], chain[n, col.OUTPUTS], scale, eps, F(0))
