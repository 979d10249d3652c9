"""A chain's layers whose products tiles compute (kernels.nn.split_bf16): those that have PACKED in the chain's table.

Factors that all blocks share, the weights and what a gradient is made of, are laid once, among `words`; what a block
multiplies them with, in its scratch.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.activations import activate
from headrace.kernels.nn.amx import TILE, TILE_SPAN
from headrace.kernels.nn.dense import clear, fill
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.split_bf16 import lay, multiply_tiles
from headrace.kernels.runtime.jit import INNER, njit

U = np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_BLOCK_TILES = BLOCK // WIDTH * TILE  # words of a block's samples, for 32 numbers of each


@njit(**INNER)
def forward_tiles(chain, n, parameters, words, scratch):
    """Outputs of layer n of a block."""
    inputs, outputs, factor = chain[n, col.INPUTS], chain[n, col.OUTPUTS], chain[n, col.PACKED_SAMPLES]
    tiles = inputs // TILE_SPAN
    lay(scratch, chain[n, col.SOURCE], BLOCK, BLOCK, inputs, False, False, scratch, factor, tiles * _BLOCK_TILES, tiles)
    for r in range(_0, outputs, TILE_SPAN):
        place = chain[n, col.OUTPUT] + r * BLOCK
        fill(scratch, place, TILE_SPAN, parameters, chain[n, col.BIAS] + r)
        multiply_tiles(
            words, chain[n, col.PACKED] + r // WIDTH * tiles * TILE, inputs * outputs // _2,
            scratch, factor, tiles * _BLOCK_TILES, tiles, BLOCK, scratch, place, BLOCK,
        )  # fmt: skip
        activate(chain[n, col.ACTIVATION], scratch, place, chain[n, col.ACTIVATION_GRAD] + r * BLOCK, TILE_SPAN * BLOCK)


@njit(**INNER)
def backward_tiles(chain, n, words, scratch):
    """Slopes at the inputs of layer n of a block."""
    inputs, outputs, factor = chain[n, col.INPUTS], chain[n, col.OUTPUTS], chain[n, col.PACKED_SAMPLES]
    tiles, size = outputs // TILE_SPAN, inputs * outputs // _2
    lay(
        scratch,
        chain[n, col.OUTPUT_GRAD],
        BLOCK,
        BLOCK,
        outputs,
        False,
        False,
        scratch,
        factor,
        tiles * _BLOCK_TILES,
        tiles,
    )
    for i in range(_0, inputs, TILE_SPAN):
        place = chain[n, col.SOURCE_GRAD] + i * BLOCK
        clear(scratch, place, TILE_SPAN * BLOCK)
        multiply_tiles(
            words, chain[n, col.PACKED] + _3 * size + i // WIDTH * tiles * TILE, size,
            scratch, factor, tiles * _BLOCK_TILES, tiles, BLOCK, scratch, place, BLOCK,
        )  # fmt: skip


@njit(**INNER)
def _gradient_words(chain, n, blocks):
    """Of a layer's gradient: where its left factor begins among words, its right one, and their planes' sizes."""
    size, minor, samples = chain[n, col.INPUTS] * chain[n, col.OUTPUTS], chain[n, col.STRIDE], blocks * BLOCK // _2
    left_plane, place = samples * (size // minor), chain[n, col.PACKED] + _3 * size
    return place, place + _3 * left_plane, left_plane, samples * minor


@njit(**INNER)
def lay_gradient(chain, n, scratch, words, b, blocks):
    """Lay what the gradient of layer n is made of: the b-th of all blocks' samples."""
    left, right, left_plane, right_plane = _gradient_words(chain, n, blocks)
    major, minor = (col.OUTPUT_GRAD, col.SOURCE) if chain[n, col.COLUMN_STRIDE] == _1 else (col.SOURCE, col.OUTPUT_GRAD)
    columns, tiles = chain[n, col.STRIDE], blocks * BLOCK // TILE_SPAN
    rows, at = chain[n, col.INPUTS] * chain[n, col.OUTPUTS] // columns, b * (BLOCK // TILE_SPAN) * TILE
    lay(scratch, chain[n, major], BLOCK, rows, BLOCK, True, True, words, left + at, left_plane, tiles)
    lay(scratch, chain[n, minor], BLOCK, columns, BLOCK, True, False, words, right + at, right_plane, tiles)


@njit(**INNER)
def differentiate_tiles(chain, n, first, blocks, words, room):
    """The gradient of 32 rows of layer n's weights, from row `first` on, over all blocks."""
    minor = chain[n, col.STRIDE]
    left, right, left_plane, right_plane = _gradient_words(chain, n, blocks)
    tiles = blocks * BLOCK // TILE_SPAN
    clear(room, _0, TILE_SPAN * minor)
    multiply_tiles(
        words, left + first // WIDTH * tiles * TILE, left_plane,
        words, right, right_plane, tiles, minor, room, _0, minor,
    )  # fmt: skip


@njit(**INNER)
def lay_weights(chain, n, first, parameters, words, both):
    """Lay 32 rows of layer n's weights, from row `first` on, as factors for forward() and, where `both`, backward()."""
    straight, size = chain[n, col.COLUMN_STRIDE] == _1, chain[n, col.INPUTS] * chain[n, col.OUTPUTS] // _2
    minor, along, across = chain[n, col.STRIDE], chain[n, col.PACKED], chain[n, col.PACKED]
    if straight:
        across += _3 * size
    else:
        along += _3 * size
    place = chain[n, col.WEIGHT] + first * minor
    if both or straight:
        tiles = minor // TILE_SPAN
        at = along + first // WIDTH * tiles * TILE
        lay(parameters, place, minor, TILE_SPAN, minor, True, True, words, at, size, tiles)
    if both or not straight:
        at = across + first // TILE_SPAN * TILE
        lay(parameters, place, minor, minor, TILE_SPAN, False, True, words, at, size, _2 * size // minor // TILE_SPAN)
