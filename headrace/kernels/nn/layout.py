"""Arguments of the CPU's neural-network kernels, made in plain Python: layer tables and buffers.

Nothing here needs Numba, so that kernels that were compiled before run without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.kernels.nn.activation_table import CODES
from headrace.kernels.nn.layer_table import (
    CLEARS_SOURCE_GRAD,
    COLUMNS,
    NOWHERE,
    OUTPUT,
    OUTPUT_GRAD,
    SOURCE,
    SOURCE_GRAD,
    fill_row,
)

BLOCK = np.uint64(64)  # samples of a block
WIDTH = np.uint64(16)  # float32 of a vector
WORKERS = 16  # threads at most: each has scratch of its own

OBSERVATION = -1  # as a layer's source: the network's input


class Layer(NamedTuple):
    """A dense layer. source: index of the layer it reads, or OBSERVATION. weight, bias: offsets in the flat parameters
    of weight [outputs, inputs] and bias [outputs]. norm: offsets of weight and bias [outputs] of the layer
    normalisation before the activation, or None."""

    source: int
    inputs: int
    outputs: int
    weight: int
    bias: int
    activation: str = "identity"
    norm: tuple[int, int] | None = None


class Network(NamedTuple):
    """A layer table, and the sizes and offsets of the buffers that one block needs."""

    layers: np.ndarray  # uint64 [L, len(COLUMNS)]
    inputs: int  # rows of the observation's block, which lies at the start of scratch
    transposed: int  # offset in scratch of a transposed source
    scratch: int  # float32 in scratch
    gradient: int  # float32 in a gradient


def rounded(count: int) -> int:
    """`count` rounded up to whole vectors."""
    return -(-count // int(WIDTH)) * int(WIDTH)


def network(layers: Sequence[Layer], input_grad: bool = False) -> Network:
    """The table of layers, each given after the one it reads. input_grad: compute the gradient at the observation too,
    as a block after it in scratch.

    Raises ValueError where a layer's inputs are not its source's outputs.
    """
    inputs = next(layer.inputs for layer in layers if layer.source == OBSERVATION)
    block, gradient = int(BLOCK), 0
    scratch = inputs * block * (2 if input_grad else 1)
    table = np.zeros((len(layers), len(COLUMNS)), np.uint64)
    for row, layer in zip(table, layers, strict=True):
        if layer.inputs != (inputs if layer.source == OBSERVATION else layers[layer.source].outputs):
            raise ValueError(f"{layer} does not have as many inputs as its source has outputs")
        stride, size = rounded(layer.inputs), layer.outputs * block
        fill_row(row, inputs=layer.inputs, outputs=layer.outputs, weight=layer.weight, bias=layer.bias)
        fill_row(row, output=scratch, activation_grad=scratch + size, output_grad=scratch + 2 * size, stride=stride)
        fill_row(row, activation=CODES[layer.activation], weight_grad=gradient, norm=NOWHERE)
        fill_row(row, bias_grad=gradient + layer.outputs * stride)
        scratch += 3 * size
        gradient += layer.outputs * stride + rounded(layer.outputs)
        if layer.norm is not None:
            fill_row(row, norm=layer.norm[0], norm_bias=layer.norm[1], normalized=scratch, norm_grad=gradient)
            scratch += size + block
            gradient += 2 * rounded(layer.outputs)
    _connect(table, layers, np.uint64(inputs * block) if input_grad else NOWHERE)
    widest = max(rounded(layer.inputs) for layer in layers)
    return Network(table, inputs, scratch, scratch + widest * block, gradient)


def _connect(table: np.ndarray, layers: Sequence[Layer], input_grad: np.uint64) -> None:
    """Fill in the columns about each layer's source. input_grad: offset in scratch of the gradient at the
    observation."""
    written = set()
    for row, layer in reversed(list(zip(table, layers, strict=True))):
        hidden = layer.source != OBSERVATION
        row[SOURCE] = table[layer.source, OUTPUT] if hidden else 0
        row[SOURCE_GRAD] = table[layer.source, OUTPUT_GRAD] if hidden else input_grad
        row[CLEARS_SOURCE_GRAD] = layer.source not in written
        written.add(layer.source)


class StackArguments(NamedTuple):
    """A stack of layers and the shape of a batch for it; all but layers uint64.

    output, output_grad: offsets in scratch, of the last layer. input_grad: offset of the samples' gradient, or NOWHERE.
    samples: their number. parts: of the batch, shared among threads. keep: 1 where backward() is to follow.
    """

    layers: np.ndarray
    inputs: np.uint64
    outputs: np.uint64
    output: np.uint64
    output_grad: np.uint64
    input_grad: np.uint64
    transposed: np.uint64
    samples: np.uint64
    parts: np.uint64
    keep: np.uint64


def aligned(*shape: int) -> np.ndarray:
    """Zeros, float32, that begin on a 64-byte boundary: no vector straddles two cache lines."""
    count = int(np.prod(shape))
    buffer = np.zeros(count + 16, np.float32)
    skip = (-buffer.ctypes.data // 4) % 16
    return buffer[skip : skip + count].reshape(shape)
