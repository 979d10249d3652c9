"""Forward and backward of a network of dense layers on one block of 64 samples, widths given at run time.

A network is a layer table (headrace.kernels.nn.layer_table). Several layers may read the same source: actor and critic
side by side, or two heads on one trunk. One compilation serves every architecture.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.activations import activate, activation_backward, layer_norm, layer_norm_backward
from headrace.kernels.nn.dense import (
    TARGET,
    ZERO,
    add_dots,
    add_row_sums,
    affine,
    combine,
    multiply,
    transpose,
    whole_vectors,
)
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import load, total
from headrace.kernels.runtime.jit import INNER, MERGED, njit

ROWS = np.uint64(24)  # rows of a layer at a time: they are still in the first cache when they are needed again
FEW = np.uint64(512)  # weights of a layer up to which add_dots is faster than a transposed source
_ZERO, _ONE = np.uint64(0), np.uint64(1)


@njit(**MERGED)
def forward(layers, parameters, scratch, lanes):
    """Outputs of all layers, and derivatives of activations, from the observation's block at scratch[0]; of its first
    `lanes` samples, a multiple of 16."""
    for n in range(_ZERO, np.uint64(len(layers))):
        inputs, outputs, output = layers[n, col.INPUTS], layers[n, col.OUTPUTS], layers[n, col.OUTPUT]
        code, derivative, norm = layers[n, col.ACTIVATION], layers[n, col.ACTIVATION_GRAD], layers[n, col.NORM]
        for r in range(_ZERO, outputs, ROWS):
            rows, start = min(ROWS, outputs - r), output + r * BLOCK
            affine(
                layers[n, col.BIAS] + r, parameters, layers[n, col.WEIGHT] + r * inputs, inputs, _ONE, rows, inputs,
                scratch, layers[n, col.SOURCE], BLOCK, scratch, start, BLOCK, lanes,
            )  # fmt: skip
            if norm == col.NOWHERE:
                _activate(code, scratch, start, derivative + r * BLOCK, rows, lanes)
        if norm != col.NOWHERE:
            normalized, bias = layers[n, col.NORMALIZED], layers[n, col.NORM_BIAS]
            layer_norm(scratch, output, outputs, normalized, parameters, norm, bias, BLOCK)
            _activate(code, scratch, output, derivative, outputs, lanes)


@njit(**INNER)
def _activate(code, scratch, first, derivative, rows, lanes):
    if lanes == BLOCK:
        activate(code, scratch, first, derivative, rows * BLOCK)
    else:
        for row in range(_ZERO, rows * BLOCK, BLOCK):
            activate(code, scratch, first + row, derivative + row, lanes)


@njit(**INNER)
def _add_norm_gradient(scratch, grad, rows, normalized, gradient, start):
    """Add the gradient of layer normalisation's weight to gradient[start] on, and that of its bias after it."""
    bias = start + whole_vectors(rows)
    for i in range(_ZERO, BLOCK, WIDTH):
        for r in range(_ZERO, rows):
            z, d = load(scratch, normalized + r * BLOCK + i), load(scratch, grad + r * BLOCK + i)
            gradient[start + r] += total(d * z)
            gradient[bias + r] += total(d)


@njit(**MERGED)
def backward(layers, transposed, parameters, scratch, gradient):
    """Add a block's gradient to `gradient`, from the gradients at the outputs of the network, after forward()."""
    for back in range(_ZERO, np.uint64(len(layers))):
        n = np.uint64(len(layers)) - _ONE - back
        inputs, outputs, stride = layers[n, col.INPUTS], layers[n, col.OUTPUTS], layers[n, col.STRIDE]
        source, grad, source_grad = layers[n, col.SOURCE], layers[n, col.OUTPUT_GRAD], layers[n, col.SOURCE_GRAD]
        output, derivative = layers[n, col.OUTPUT], layers[n, col.ACTIVATION_GRAD]
        activation_backward(layers[n, col.ACTIVATION], scratch, grad, output, derivative, outputs * BLOCK)
        norm, start = layers[n, col.NORM], layers[n, col.NORM_GRAD]
        if norm != col.NOWHERE:
            normalized = layers[n, col.NORMALIZED]
            _add_norm_gradient(scratch, grad, outputs, normalized, gradient, start)
            layer_norm_backward(scratch, grad, outputs, normalized, parameters, norm, BLOCK)
        if inputs * outputs <= FEW:
            add_dots(scratch, grad, outputs, source, inputs, gradient, layers[n, col.WEIGHT_GRAD], stride)
        else:
            transpose(scratch, source, inputs, transposed, stride, BLOCK)
            multiply(
                scratch, grad, BLOCK, _ONE, outputs, BLOCK,
                scratch, transposed, stride, gradient, layers[n, col.WEIGHT_GRAD], stride, stride,
            )  # fmt: skip
        add_row_sums(scratch, grad, outputs, gradient, layers[n, col.BIAS_GRAD])
        if source_grad != col.NOWHERE:
            for i in range(_ZERO, inputs, ROWS):
                rows, start = min(ROWS, inputs - i), source_grad + i * BLOCK
                begin = ZERO if layers[n, col.CLEARS_SOURCE_GRAD] != _ZERO else TARGET
                combine(
                    begin, _ZERO, parameters, layers[n, col.WEIGHT] + i, _ONE, inputs, rows, outputs,
                    scratch, grad, BLOCK, scratch, start, BLOCK, BLOCK,
                )  # fmt: skip


@njit(**MERGED)
def flatten_gradient(layers, gradient, flat):
    """Copy a gradient's padded rows to `flat`, in the order of the parameters."""
    for n in range(_ZERO, np.uint64(len(layers))):
        inputs, outputs, stride = layers[n, col.INPUTS], layers[n, col.OUTPUTS], layers[n, col.STRIDE]
        for o in range(_ZERO, outputs):
            source, target = layers[n, col.WEIGHT_GRAD] + o * stride, layers[n, col.WEIGHT] + o * inputs
            for i in range(_ZERO, inputs):
                flat[target + i] = gradient[source + i]
            flat[layers[n, col.BIAS] + o] = gradient[layers[n, col.BIAS_GRAD] + o]
            if layers[n, col.NORM] != col.NOWHERE:
                start = layers[n, col.NORM_GRAD] + o
                flat[layers[n, col.NORM] + o] = gradient[start]
                flat[layers[n, col.NORM_BIAS] + o] = gradient[start + whole_vectors(outputs)]
