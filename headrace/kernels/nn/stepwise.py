"""The stepwise MLP: dense layers on blocks of samples, forward and backward, weights stored either way round. A block
has 64 samples, or 32 or 16, for more threads to have one: that changes no bit. Several layers may read the same source,
as a dueling network's two branches do.

Its layer table is made by headrace.kernels.nn.stepwise_layout. Unlike in headrace.kernels.nn.mlp, gradients are not
kept: the work is shared by weight chunks, and Adam's step follows a chunk's gradient over all blocks while that is in
the first cache. So no sums are exchanged between threads, and the number of threads changes no bit.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.activations import activate, activation_backward, layer_norm, layer_norm_backward
from headrace.kernels.nn.adam_step import BETA1, BETA2, squares
from headrace.kernels.nn.amx import TILE_SPAN, processor_has_tiles
from headrace.kernels.nn.dense import TARGET, ZERO, affine, clear, combine, copy, transpose, whole_vectors
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import load, sqrt, store, total
from headrace.kernels.nn.stepwise_amx import (
    backward_tiles,
    differentiate_tiles,
    forward_tiles,
    pack_gradient,
    pack_weights,
)
from headrace.kernels.nn.stepwise_layout import CHUNK_ROWS
from headrace.kernels.runtime.jit import INNER, njit

F, U = np.float32, np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_BETAS1 = (F(BETA1), F(1.0 - BETA1))
_HAS_TILES = processor_has_tiles()  # where it is False, the branches with tiles are not compiled


@njit(**INNER)
def forward_rows(layers, n, parameters, scratch, r):
    """CHUNK_ROWS outputs of layer n of a block, from output r on; before the normalisation, where there is one."""
    forward_some(layers, n, parameters, scratch, r, min(CHUNK_ROWS, layers[n, col.OUTPUTS] - r))


@njit(**INNER)
def forward_some(layers, n, parameters, scratch, r, rows):
    """forward_rows() of so many rows."""
    inputs, row, column = layers[n, col.INPUTS], layers[n, col.ROW_STRIDE], layers[n, col.COLUMN_STRIDE]
    lanes = layers[n, col.LANES]
    start = layers[n, col.OUTPUT] + r * lanes
    affine(
        layers[n, col.BIAS] + r, parameters, layers[n, col.WEIGHT] + r * row, row, column, rows, inputs,
        scratch, layers[n, col.SOURCE], lanes, scratch, start, lanes, lanes,
    )  # fmt: skip
    if layers[n, col.NORM] == col.NOWHERE:
        activate(layers[n, col.ACTIVATION], scratch, start, layers[n, col.ACTIVATION_GRAD] + r * lanes, rows * lanes)


@njit(**INNER)
def _normalize(layers, n, parameters, scratch):
    """Layer normalisation of layer n's outputs in a block, and its activation."""
    output, outputs, lanes = layers[n, col.OUTPUT], layers[n, col.OUTPUTS], layers[n, col.LANES]
    norm, bias, normalized = layers[n, col.NORM], layers[n, col.NORM_BIAS], layers[n, col.NORMALIZED]
    layer_norm(scratch, output, outputs, normalized, parameters, norm, bias, lanes)
    activate(layers[n, col.ACTIVATION], scratch, output, layers[n, col.ACTIVATION_GRAD], outputs * lanes)


@njit(**INNER)
def forward(layers, parameters, packed, scratch):
    """Outputs of all layers of a block, from its inputs. packed: factors of these parameters, see pack_chunk()."""
    for n in range(_0, U(len(layers))):
        if _HAS_TILES and layers[n, col.PACKED] != col.NOWHERE:
            forward_tiles(layers, n, parameters, packed, scratch)
        else:
            for r in range(_0, layers[n, col.OUTPUTS], CHUNK_ROWS):
                forward_rows(layers, n, parameters, scratch, r)
            if layers[n, col.NORM] != col.NOWHERE:
                _normalize(layers, n, parameters, scratch)


@njit(**INNER)
def _pull_back(layers, n, parameters, scratch):
    """Layer n's output_grad in a block: from the gradient after the activation to that before it, and before the
    normalisation."""
    output, grad, derivative = layers[n, col.OUTPUT], layers[n, col.OUTPUT_GRAD], layers[n, col.ACTIVATION_GRAD]
    count = layers[n, col.OUTPUTS] * layers[n, col.LANES]
    activation_backward(layers[n, col.ACTIVATION], scratch, grad, output, derivative, count)
    if layers[n, col.NORM] != col.NOWHERE:
        _normalize_backward(layers, n, parameters, scratch, count)


@njit(**INNER)
def _normalize_backward(layers, n, parameters, scratch, count):
    """_pull_back() through layer normalisation. Keeps what _vector_gradient() adds up: the gradient after the
    normalisation in activation_grad, and its product with the normalised sums in normalized."""
    kept, normalized, grad = layers[n, col.ACTIVATION_GRAD], layers[n, col.NORMALIZED], layers[n, col.OUTPUT_GRAD]
    copy(scratch, kept, scratch, grad, count)
    norm, outputs, lanes = layers[n, col.NORM], layers[n, col.OUTPUTS], layers[n, col.LANES]
    layer_norm_backward(scratch, grad, outputs, normalized, parameters, norm, lanes)
    for i in range(_0, count, WIDTH):
        store(scratch, normalized + i, load(scratch, normalized + i) * load(scratch, kept + i))


@njit(**INNER)
def backward_rows(layers, n, parameters, scratch, i):
    """Gradients at CHUNK_ROWS inputs of layer n of a block, from input i on."""
    outputs, row, column = layers[n, col.OUTPUTS], layers[n, col.ROW_STRIDE], layers[n, col.COLUMN_STRIDE]
    lanes, rows = layers[n, col.LANES], min(CHUNK_ROWS, layers[n, col.INPUTS] - i)
    start = layers[n, col.SOURCE_GRAD] + i * lanes
    combine(
        ZERO if layers[n, col.CLEARS_SOURCE_GRAD] else TARGET, _0,
        parameters, layers[n, col.WEIGHT] + i * column, column, row, rows, outputs,
        scratch, layers[n, col.OUTPUT_GRAD], lanes, scratch, start, lanes, lanes,
    )  # fmt: skip


@njit(**INNER)
def backward(layers, parameters, packed, scratch, first):
    """Gradients at all layers' outputs in a block, given the last one's; and at its inputs for first = 0, else 1."""
    for back in range(_0, U(len(layers))):
        n = U(len(layers)) - _1 - back
        _pull_back(layers, n, parameters, scratch)
        if n >= first:
            if _HAS_TILES and layers[n, col.PACKED] != col.NOWHERE:
                backward_tiles(layers, n, packed, scratch)
            else:
                for i in range(_0, layers[n, col.INPUTS], CHUNK_ROWS):
                    backward_rows(layers, n, parameters, scratch, i)


@njit(**INNER)
def _transpose_factor(layers, n, scratch):
    """Transpose one factor of a layer's gradient in a block, after backward(): samples become rows."""
    straight = layers[n, col.COLUMN_STRIDE] == _1
    factor, rows = (col.SOURCE, col.INPUTS) if straight else (col.OUTPUT_GRAD, col.OUTPUTS)
    target, stride = layers[n, col.TRANSPOSED], layers[n, col.STRIDE]
    transpose(scratch, layers[n, factor], layers[n, rows], target, stride, layers[n, col.LANES])


@njit(**INNER)
def prepare_gradient(layers, scratch, packed, b, blocks):
    """Transpose or pack the factors of all layers' gradients, of the b-th block, after backward()."""
    for n in range(_0, U(len(layers))):
        if _HAS_TILES and layers[n, col.PACKED] != col.NOWHERE:
            pack_gradient(layers, n, scratch, packed, b, blocks)
        else:
            _transpose_factor(layers, n, scratch)


@njit(**INNER)
def adam_with_target(weights, start, gradient, g, count, scale, eps, tau, beta1=_BETAS1):
    """Adam's step of `count` parameters from `start` on, with gradient[g] on; then, where tau is not 0, the target's
    update target += tau (parameters - target), which is an exact copy for tau = 1.

    weights: off_policy_arguments.Weights. scale: adam_step.scales(). beta1: Adam's, and 1 - beta1. Unlike
    adam_step.adam, products and sums are rounded apart, so the two give different bits."""
    parameters, mean, square, target = weights.parameters, weights.mean, weights.square, weights.target
    factor, rate, correction = scale
    (keep1, take1), keep2, take2, left = beta1, F(BETA2), F(1.0 - BETA2), F(1) - tau
    whole = count - count % WIDTH
    for i in range(_0, whole, WIDTH):
        at, grad = start + i, load(gradient, g + i) * factor
        m = load(mean, at) * keep1 + grad * take1
        v = load(square, at) * keep2 + grad * take2 * grad
        store(mean, at, m), store(square, at, v)
        x = load(parameters, at) - m * rate / (sqrt(v) * correction + eps)
        store(parameters, at, x)
        if tau != F(0):
            store(target, at, x - (x - load(target, at)) * left)
    for i in range(whole, count):
        at, grad = start + i, gradient[g + i] * factor
        mean[at] = mean[at] * keep1 + grad * take1
        square[at] = square[at] * keep2 + grad * take2 * grad
        parameters[at] -= mean[at] * rate / (F(math.sqrt(square[at])) * correction + eps)
        if tau != F(0):
            target[at] = parameters[at] - (parameters[at] - target[at]) * left


@njit(**INNER)
def _sizes(layers, n, first):
    """Of a weight chunk: its rows, their length, the distance of two rows of its gradient, and its offset in the
    parameters."""
    straight = layers[n, col.COLUMN_STRIDE] == _1
    inputs, outputs = layers[n, col.INPUTS], layers[n, col.OUTPUTS]
    chunk = CHUNK_ROWS if layers[n, col.PACKED] == col.NOWHERE else TILE_SPAN
    major, minor = (outputs, inputs) if straight else (inputs, outputs)
    return min(chunk, major - first), minor, layers[n, col.STRIDE], layers[n, col.WEIGHT] + first * minor


@njit(**INNER)
def _weight_gradient(layers, n, first, scratch, buffer):
    """The gradient of a chunk of layer n's weights, from row `first` on, over blocks, the rows of scratch."""
    (rows, _, stride, _), lanes = _sizes(layers, n, first), layers[n, col.LANES]
    source = layers[n, col.OUTPUT_GRAD] if layers[n, col.COLUMN_STRIDE] == _1 else layers[n, col.SOURCE]
    for b in range(_0, U(len(scratch))):
        block = scratch[b]
        combine(
            TARGET if b > _0 else ZERO, _0, block, source + first * lanes, lanes, _1, rows, lanes,
            block, layers[n, col.TRANSPOSED], stride, buffer, _0, stride, stride,
        )  # fmt: skip


@njit(**INNER)
def _vectors(layers, n):
    """How many vectors of parameters layer n has: its biases, and the weights and biases of a normalisation."""
    return _1 if layers[n, col.NORM] == col.NOWHERE else _3


@njit(**INNER)
def _vector(layers, n, v):
    """Where vector v of layer n begins in the parameters, and in scratch the rows whose sums are its gradient."""
    if v == _0:
        return layers[n, col.BIAS], layers[n, col.OUTPUT_GRAD]
    if v == _1:
        return layers[n, col.NORM], layers[n, col.NORMALIZED]
    return layers[n, col.NORM_BIAS], layers[n, col.ACTIVATION_GRAD]


@njit(**INNER)
def _vector_gradient(layers, n, grad, scratch, buffer):
    """The sums of layer n's rows at `grad` over blocks, the rows of scratch. Of 64 samples at a time, whether they are
    one block, or two or four: sums are rounded alike."""
    outputs, lanes = layers[n, col.OUTPUTS], layers[n, col.LANES]
    clear(buffer, _0, whole_vectors(outputs))
    for b in range(_0, U(len(scratch)), BLOCK // lanes):
        at0, at1, at2, at3 = grad, grad + WIDTH % lanes, grad + _2 * WIDTH % lanes, grad + _3 * WIDTH % lanes
        block0, block1 = scratch[b], scratch[b + WIDTH // lanes]
        block2, block3 = scratch[b + _2 * WIDTH // lanes], scratch[b + _3 * WIDTH // lanes]
        for r in range(_0, outputs):
            i = r * lanes
            first, second = load(block0, at0 + i) + load(block1, at1 + i), load(block2, at2 + i) + load(block3, at3 + i)
            buffer[r] += total(first + second)


@njit(**INNER)
def pack_chunk(layers, n, first, parameters, packed, both):
    """Pack a chunk of layer n's weights for the tiles of forward() and, where `both`, of backward()."""
    if _HAS_TILES and layers[n, col.PACKED] != col.NOWHERE:
        pack_weights(layers, n, first, parameters, packed, both)


@njit(**INNER)
def backward_and_step(layers, n, first, scratch, buffer, weights, scale, eps, tau, beta1=_BETAS1):
    """Gradient, over blocks, the rows of scratch, and Adam's step of a chunk of layer n's weights, from row `first` on;
    with the first chunk of the layer's vectors too. buffer: float32 for a gradient."""
    rows, minor, stride, start = _sizes(layers, n, first)
    if _HAS_TILES and layers[n, col.PACKED] != col.NOWHERE:
        differentiate_tiles(layers, n, first, U(len(scratch)), weights.packed, buffer)
    else:
        _weight_gradient(layers, n, first, scratch, buffer)
    if stride == minor:
        adam_with_target(weights, start, buffer, _0, rows * minor, scale, eps, tau, beta1)
    else:
        for r in range(_0, rows):
            adam_with_target(weights, start + r * minor, buffer, r * stride, minor, scale, eps, tau, beta1)
    pack_chunk(layers, n, first, weights.parameters, weights.packed, True)
    if tau != F(0):
        pack_chunk(layers, n, first, weights.target, weights.packed_target, False)
    if first == _0:
        for v in range(_0, _vectors(layers, n)):
            vector, grad = _vector(layers, n, v)
            _vector_gradient(layers, n, grad, scratch, buffer)
            adam_with_target(weights, vector, buffer, _0, layers[n, col.OUTPUTS], scale, eps, tau, beta1)


@njit(**INNER)
def chunk_gradient(layers, n, first, scratch, used, buffer, gradient):
    """Write the gradient of a chunk, over the `used` first rows of scratch, in the parameters' order; returns the sum
    of its squares. What the other rows, up to 64 samples, have at the outputs is 0."""
    rows, minor, stride, start = _sizes(layers, n, first)
    _weight_gradient(layers, n, first, scratch[:used], buffer)
    for r in range(_0, rows):
        for i in range(_0, minor):
            gradient[start + r * minor + i] = buffer[r * stride + i]
    found = squares(gradient, start, rows * minor)
    if first == _0:
        for v in range(_0, _vectors(layers, n)):
            vector, grad = _vector(layers, n, v)
            _vector_gradient(layers, n, grad, scratch, buffer)
            for o in range(_0, layers[n, col.OUTPUTS]):
                gradient[vector + o] = buffer[o]
            found += squares(gradient, vector, layers[n, col.OUTPUTS])
    return found


@njit(**INNER)
def chunk_step(layers, n, first, gradient, weights, scale, eps, tau):
    """Adam's step of a chunk, from a gradient in the parameters' order; then, where tau is not 0, the target's
    update."""
    rows, minor, _, start = _sizes(layers, n, first)
    adam_with_target(weights, start, gradient, start, rows * minor, scale, eps, tau)
    if first == _0:
        for v in range(_0, _vectors(layers, n)):
            vector, _ = _vector(layers, n, v)
            adam_with_target(weights, vector, gradient, vector, layers[n, col.OUTPUTS], scale, eps, tau)
