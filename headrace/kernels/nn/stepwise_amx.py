"""Layers of the stepwise MLP whose products AMX tiles compute (kernels.nn.split_bf16): those with an offset in PACKED.

Factors that all blocks share, the weights and the factors of the gradient, are packed once, in `packed`; what a block
multiplies them with is packed in its scratch.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.activations import activate
from headrace.kernels.nn.amx import TILE, TILE_SPAN
from headrace.kernels.nn.dense import clear, fill
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.split_bf16 import multiply_tiles, pack
from headrace.kernels.runtime.jit import INNER, njit

U = np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_BLOCK_TILES = BLOCK // WIDTH * TILE  # words of a block's samples, for 32 numbers of each


@njit(**INNER)
def forward_tiles(layers, n, parameters, packed, scratch):
    """Outputs of layer n of a block."""
    inputs, outputs, factor = layers[n, col.INPUTS], layers[n, col.OUTPUTS], layers[n, col.PACKED_SAMPLES]
    tiles = inputs // TILE_SPAN
    plane, source = tiles * _BLOCK_TILES, layers[n, col.SOURCE]
    pack(scratch, source, BLOCK, BLOCK, inputs, False, False, scratch, factor, plane, tiles)
    for r in range(_0, outputs, TILE_SPAN):
        start = layers[n, col.OUTPUT] + r * BLOCK
        fill(scratch, start, TILE_SPAN, parameters, layers[n, col.BIAS] + r)
        multiply_tiles(
            packed, layers[n, col.PACKED] + r // WIDTH * tiles * TILE, inputs * outputs // _2,
            scratch, factor, plane, tiles, BLOCK, scratch, start, BLOCK,
        )  # fmt: skip
        derivative = layers[n, col.ACTIVATION_GRAD] + r * BLOCK
        activate(layers[n, col.ACTIVATION], scratch, start, derivative, TILE_SPAN * BLOCK)


@njit(**INNER)
def backward_tiles(layers, n, packed, scratch):
    """Gradients at the inputs of layer n of a block."""
    inputs, outputs, factor = layers[n, col.INPUTS], layers[n, col.OUTPUTS], layers[n, col.PACKED_SAMPLES]
    tiles, size = outputs // TILE_SPAN, inputs * outputs // _2
    plane, grad = tiles * _BLOCK_TILES, layers[n, col.OUTPUT_GRAD]
    pack(scratch, grad, BLOCK, BLOCK, outputs, False, False, scratch, factor, plane, tiles)
    for i in range(_0, inputs, TILE_SPAN):
        start = layers[n, col.SOURCE_GRAD] + i * BLOCK
        clear(scratch, start, TILE_SPAN * BLOCK)
        multiply_tiles(
            packed, layers[n, col.PACKED] + _3 * size + i // WIDTH * tiles * TILE, size,
            scratch, factor, plane, tiles, BLOCK, scratch, start, BLOCK,
        )  # fmt: skip


@njit(**INNER)
def _gradient_offsets(layers, n, blocks):
    """Of a layer's gradient: offsets of its left and right packed factors, and their planes' sizes."""
    size, minor, samples = layers[n, col.INPUTS] * layers[n, col.OUTPUTS], layers[n, col.STRIDE], blocks * BLOCK // _2
    left_plane, start = samples * (size // minor), layers[n, col.PACKED] + _3 * size
    return start, start + _3 * left_plane, left_plane, samples * minor


@njit(**INNER)
def pack_gradient(layers, n, scratch, packed, b, blocks):
    """Pack the factors of layer n's gradient: the samples of the b-th block."""
    left, right, left_plane, right_plane = _gradient_offsets(layers, n, blocks)
    straight = layers[n, col.COLUMN_STRIDE] == _1
    major, minor = (col.OUTPUT_GRAD, col.SOURCE) if straight else (col.SOURCE, col.OUTPUT_GRAD)
    columns, tiles = layers[n, col.STRIDE], blocks * BLOCK // TILE_SPAN
    rows, at = layers[n, col.INPUTS] * layers[n, col.OUTPUTS] // columns, b * (BLOCK // TILE_SPAN) * TILE
    pack(scratch, layers[n, major], BLOCK, rows, BLOCK, True, True, packed, left + at, left_plane, tiles)
    pack(scratch, layers[n, minor], BLOCK, columns, BLOCK, True, False, packed, right + at, right_plane, tiles)


@njit(**INNER)
def differentiate_tiles(layers, n, first, blocks, packed, buffer):
    """The gradient of 32 rows of layer n's weights, from row `first` on, over all blocks."""
    minor = layers[n, col.STRIDE]
    left, right, left_plane, right_plane = _gradient_offsets(layers, n, blocks)
    tiles = blocks * BLOCK // TILE_SPAN
    clear(buffer, _0, TILE_SPAN * minor)
    multiply_tiles(
        packed, left + first // WIDTH * tiles * TILE, left_plane,
        packed, right, right_plane, tiles, minor, buffer, _0, minor,
    )  # fmt: skip


@njit(**INNER)
def pack_weights(layers, n, first, parameters, packed, both):
    """Pack 32 rows of layer n's weights, from row `first` on, for forward() and, where `both`, for backward()."""
    straight, size = layers[n, col.COLUMN_STRIDE] == _1, layers[n, col.INPUTS] * layers[n, col.OUTPUTS] // _2
    minor, along, across = layers[n, col.STRIDE], layers[n, col.PACKED], layers[n, col.PACKED]
    if straight:
        across += _3 * size
    else:
        along += _3 * size
    start = layers[n, col.WEIGHT] + first * minor
    if both or straight:
        tiles = minor // TILE_SPAN
        at = along + first // WIDTH * tiles * TILE
        pack(parameters, start, minor, TILE_SPAN, minor, True, True, packed, at, size, tiles)
    if both or not straight:
        at = across + first // TILE_SPAN * TILE
        pack(parameters, start, minor, minor, TILE_SPAN, False, True, packed, at, size, _2 * size // minor // TILE_SPAN)
