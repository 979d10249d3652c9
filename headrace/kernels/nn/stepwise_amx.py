"""A chain's layers whose products tiles compute (kernels.nn.split_bf16): those that have WORDS in the chain's table.

Factors that all blocks share, the weights and what a gradient is made of, are laid once, among `words`; what a block
multiplies them with, in its scratch.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn.activations import activate
from headrace.kernels.nn.amx import HALF, TILE
from headrace.kernels.nn.dense import clear, fill
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.split_bf16 import lay, multiply_tiles
from headrace.kernels.nn.stepwise_layout import (
    ACTIVATION,
    BELOW,
    BIAS,
    COLUMN,
    DELTA,
    FACTOR,
    INPUTS,
    OUTPUT,
    OUTPUTS,
    SLOPE,
    SOURCE,
    STRIDE,
    WEIGHT,
    WORDS,
)
from headrace.kernels.runtime.jit import INNER, njit

U = np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_BLOCK_TILES = BLOCK // WIDTH * TILE  # words of a block's samples, for 32 numbers of each


@njit(**INNER)
def forward_tiles(chain, n, parameters, words, scratch):
    """Outputs of layer n of a block."""
    inputs, outputs, factor = chain[n, INPUTS], chain[n, OUTPUTS], chain[n, FACTOR]
    tiles = inputs // HALF
    lay(scratch, chain[n, SOURCE], BLOCK, BLOCK, inputs, False, False, scratch, factor, tiles * _BLOCK_TILES, tiles)
    for r in range(_0, outputs, HALF):
        place = chain[n, OUTPUT] + r * BLOCK
        fill(scratch, place, HALF, parameters, chain[n, BIAS] + r)
        multiply_tiles(
            words, chain[n, WORDS] + r // WIDTH * tiles * TILE, inputs * outputs // _2,
            scratch, factor, tiles * _BLOCK_TILES, tiles, BLOCK, scratch, place, BLOCK,
        )  # fmt: skip
        activate(chain[n, ACTIVATION], scratch, place, chain[n, SLOPE] + r * BLOCK, HALF * BLOCK)


@njit(**INNER)
def backward_tiles(chain, n, words, scratch):
    """Slopes at the inputs of layer n of a block."""
    inputs, outputs, factor = chain[n, INPUTS], chain[n, OUTPUTS], chain[n, FACTOR]
    tiles, size = outputs // HALF, inputs * outputs // _2
    lay(scratch, chain[n, DELTA], BLOCK, BLOCK, outputs, False, False, scratch, factor, tiles * _BLOCK_TILES, tiles)
    for i in range(_0, inputs, HALF):
        place = chain[n, BELOW] + i * BLOCK
        clear(scratch, place, HALF * BLOCK)
        multiply_tiles(
            words, chain[n, WORDS] + _3 * size + i // WIDTH * tiles * TILE, size,
            scratch, factor, tiles * _BLOCK_TILES, tiles, BLOCK, scratch, place, BLOCK,
        )  # fmt: skip


@njit(**INNER)
def _gradient_words(chain, n, blocks):
    """Of a layer's gradient: where its left factor begins among words, its right one, and their planes' sizes."""
    size, minor, samples = chain[n, INPUTS] * chain[n, OUTPUTS], chain[n, STRIDE], blocks * BLOCK // _2
    left_plane, place = samples * (size // minor), chain[n, WORDS] + _3 * size
    return place, place + _3 * left_plane, left_plane, samples * minor


@njit(**INNER)
def lay_gradient(chain, n, scratch, words, b, blocks):
    """Lay what the gradient of layer n is made of: the b-th of all blocks' samples."""
    left, right, left_plane, right_plane = _gradient_words(chain, n, blocks)
    major, minor = (DELTA, SOURCE) if chain[n, COLUMN] == _1 else (SOURCE, DELTA)
    columns, tiles = chain[n, STRIDE], blocks * BLOCK // HALF
    rows, at = chain[n, INPUTS] * chain[n, OUTPUTS] // columns, b * (BLOCK // HALF) * TILE
    lay(scratch, chain[n, major], BLOCK, rows, BLOCK, True, True, words, left + at, left_plane, tiles)
    lay(scratch, chain[n, minor], BLOCK, columns, BLOCK, True, False, words, right + at, right_plane, tiles)


@njit(**INNER)
def differentiate_tiles(chain, n, first, blocks, words, room):
    """The gradient of 32 rows of layer n's weights, from row `first` on, over all blocks."""
    minor = chain[n, STRIDE]
    left, right, left_plane, right_plane = _gradient_words(chain, n, blocks)
    tiles = blocks * BLOCK // HALF
    clear(room, _0, HALF * minor)
    multiply_tiles(
        words, left + first // WIDTH * tiles * TILE, left_plane,
        words, right, right_plane, tiles, minor, room, _0, minor,
    )  # fmt: skip


@njit(**INNER)
def lay_weights(chain, n, first, parameters, words, both):
    """Lay 32 rows of layer n's weights, from row `first` on, as factors for forward() and, where `both`, backward()."""
    straight, size = chain[n, COLUMN] == _1, chain[n, INPUTS] * chain[n, OUTPUTS] // _2
    minor, along, across = chain[n, STRIDE], chain[n, WORDS], chain[n, WORDS]
    if straight:
        across += _3 * size
    else:
        along += _3 * size
    place = chain[n, WEIGHT] + first * minor
    if both or straight:
        tiles = minor // HALF
        at = along + first // WIDTH * tiles * TILE
        lay(parameters, place, minor, HALF, minor, True, True, words, at, size, tiles)
    if both or not straight:
        at = across + first // HALF * TILE
        lay(parameters, place, minor, minor, HALF, False, True, words, at, size, _2 * size // minor // HALF)
