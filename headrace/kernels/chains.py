"""Chains of dense layers on blocks of 64 samples, forward and backward, with weights that lie either way round.

A chain's table has a row for each layer (headrace.kernels.chain_tables). Unlike those of headrace.kernels.mlp_cpu,
gradients are not kept: a chunk of a layer's weights is a piece of work, whose gradient over all blocks moves the
parameters at once (Adam), while it lies in the first cache. So nothing is added up between threads, and the number of
threads changes no bit.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.activations import activate, pull_back
from headrace.kernels.adam_cpu import BETA1, BETA2
from headrace.kernels.chain_tables import (
    ACTIVATION,
    BELOW,
    BIAS,
    CHUNK,
    COLUMN,
    DELTA,
    INPUTS,
    OUTPUT,
    OUTPUTS,
    ROW,
    SLOPE,
    SOURCE,
    STRIDE,
    TURNED,
    WEIGHT,
)
from headrace.kernels.dense import add_row_sums, clear, fill, multiply, transpose
from headrace.kernels.jit import INNER, njit
from headrace.kernels.simd import load, sqrt, store
from headrace.kernels.tables import BLOCK, WIDTH

F, U = np.float32, np.uint64
_0, _1 = U(0), U(1)
_ONE = F(1)


@njit(**INNER)
def forward(chain, parameters, scratch):
    """Outputs of all layers of a block, from its inputs."""
    for n in range(_0, U(len(chain))):
        inputs, outputs, row, column = chain[n, INPUTS], chain[n, OUTPUTS], chain[n, ROW], chain[n, COLUMN]
        for r in range(_0, outputs, CHUNK):
            rows, place = min(CHUNK, outputs - r), chain[n, OUTPUT] + r * BLOCK
            fill(scratch, place, rows, parameters, chain[n, BIAS] + r)
            multiply(
                parameters, chain[n, WEIGHT] + r * row, row, column, rows, inputs,
                scratch, chain[n, SOURCE], BLOCK, scratch, place, BLOCK, BLOCK,
            )  # fmt: skip
            activate(chain[n, ACTIVATION], scratch, place, chain[n, SLOPE] + r * BLOCK, rows * BLOCK)


@njit(**INNER)
def backward(chain, parameters, scratch, first):
    """Deltas of all layers of a block, given the last one's; and of its inputs, for first = 0, else 1."""
    for back in range(_0, U(len(chain))):
        n = U(len(chain)) - _1 - back
        inputs, outputs, row, column = chain[n, INPUTS], chain[n, OUTPUTS], chain[n, ROW], chain[n, COLUMN]
        delta, below = chain[n, DELTA], chain[n, BELOW]
        pull_back(chain[n, ACTIVATION], scratch, delta, chain[n, OUTPUT], chain[n, SLOPE], outputs * BLOCK)
        if n >= first:
            for i in range(_0, inputs, CHUNK):
                rows, place = min(CHUNK, inputs - i), below + i * BLOCK
                clear(scratch, place, rows * BLOCK)
                multiply(
                    parameters, chain[n, WEIGHT] + i * column, column, row, rows, outputs,
                    scratch, delta, BLOCK, scratch, place, BLOCK, BLOCK,
                )  # fmt: skip


@njit(**INNER)
def turn(chain, scratch):
    """Of a block that went forward and backward: what gradients need with samples as rows."""
    for n in range(_0, U(len(chain))):
        if chain[n, COLUMN] == _1:
            transpose(scratch, chain[n, SOURCE], chain[n, INPUTS], chain[n, TURNED], chain[n, STRIDE])
        else:
            transpose(scratch, chain[n, DELTA], chain[n, OUTPUTS], chain[n, TURNED], chain[n, STRIDE])


@njit(**INNER)
def move(weights, place, gradient, g, count, scale, eps, tau):
    """Adam's step of `count` parameters from `place` on, along gradient[g] on; and (tau not 0) the target's after it.

    weights: (parameters, mean, square, target). scale: adam_cpu.scales()."""
    parameters, mean, square, target = weights
    _, rate, correction = scale
    keep1, keep2, take1, take2 = F(BETA1), F(BETA2), F(1.0 - BETA1), F(1.0 - BETA2)
    whole = count - count % WIDTH
    for i in range(_0, whole, WIDTH):
        at, slope = place + i, load(gradient, g + i)
        m = load(mean, at) * keep1 + slope * take1
        v = load(square, at) * keep2 + slope * take2 * slope
        store(mean, at, m), store(square, at, v)
        x = load(parameters, at) - m * rate / (sqrt(v) * correction + eps)
        store(parameters, at, x)
        if tau != F(0):
            slow = load(target, at)
            store(target, at, slow + (x - slow) * tau)
    for i in range(whole, count):
        at, slope = place + i, gradient[g + i]
        mean[at] = mean[at] * keep1 + slope * take1
        square[at] = square[at] * keep2 + slope * take2 * slope
        parameters[at] -= mean[at] * rate / (F(math.sqrt(square[at])) * correction + eps)
        if tau != F(0):
            target[at] += (parameters[at] - target[at]) * tau


@njit(**INNER)
def learn_piece(chain, n, first, scratch, room, weights, scale, eps, tau):
    """Move CHUNK rows of layer n's weights, from row `first` on, along their gradient over blocks, the rows of scratch;
    with the first rows the biases. room: float32 for a gradient."""
    straight = chain[n, COLUMN] == _1
    inputs, outputs, stride = chain[n, INPUTS], chain[n, OUTPUTS], chain[n, STRIDE]
    major, minor = (outputs, inputs) if straight else (inputs, outputs)
    rows, source = min(CHUNK, major - first), chain[n, DELTA] if straight else chain[n, SOURCE]
    clear(room, _0, rows * stride)
    for b in range(_0, U(len(scratch))):
        block = scratch[b]
        multiply(
            block, source + first * BLOCK, BLOCK, _1, rows, BLOCK,
            block, chain[n, TURNED], stride, room, _0, stride, stride,
        )  # fmt: skip
    place = chain[n, WEIGHT] + first * minor
    if stride == minor:
        move(weights, place, room, _0, rows * minor, scale, eps, tau)
    else:
        for r in range(_0, rows):
            move(weights, place + r * minor, room, r * stride, minor, scale, eps, tau)
    if first == _0:
        clear(room, _0, (outputs + WIDTH - _1) // WIDTH * WIDTH)
        for b in range(_0, U(len(scratch))):
            add_row_sums(scratch[b], chain[n, DELTA], outputs, room, _0)
        move(weights, chain[n, BIAS], room, _0, outputs, scale, eps, tau)
