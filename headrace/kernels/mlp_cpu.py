"""Forward and backward of a tree of dense layers on one block of 64 samples, widths given at run time.

A network is a table: one row per layer, in the order of computation, with widths and with the places of its weights,
inputs, outputs and gradients in flat arrays. Several layers may read the same source: actor and critic side by side,
or two heads on one trunk. One compilation serves every architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.kernels.activations import CODES, activate
from headrace.kernels.dense import BLOCK, add_row_sums, clear, fill, multiply, scale, transpose
from headrace.kernels.jit import INNER, MERGED, njit
from headrace.kernels.simd import WIDTH, load, select, splat, store

OBSERVATION = -1  # as a layer's source: the network's input
ACTOR, CRITIC = 1, 2  # what a tree of layers ends in: one, the other, or both

# Columns of the table, uint64. Places are in float32 steps: WEIGHT and BIAS in the parameters; SOURCE (what it reads),
# OUTPUT, SLOPE (of its activation), DELTA (the loss's gradient at its output, before the activation) and SOURCE_DELTA
# (where backward writes) in scratch; GRADIENT and BIAS_GRADIENT in the gradient, whose rows are STRIDE apart.
COLUMNS = (
    "inputs", "outputs", "weight", "bias", "source", "output", "slope", "delta", "source_delta", "first",
    "activation", "gradient", "bias_gradient", "stride",
)  # fmt: skip
_COLUMN = {name: np.uint64(i) for i, name in enumerate(COLUMNS)}
INPUTS, OUTPUTS, WEIGHT, BIAS = (_COLUMN[name] for name in COLUMNS[:4])
SOURCE, OUTPUT, SLOPE, DELTA, SOURCE_DELTA, FIRST = (_COLUMN[name] for name in COLUMNS[4:10])
ACTIVATION, GRADIENT, BIAS_GRADIENT, STRIDE = (_COLUMN[name] for name in COLUMNS[10:])
_NOWHERE = np.uint64(2**63)  # as a layer's SOURCE_DELTA: its source is the observation, which has no gradient
_ZERO, _ONE = np.uint64(0), np.uint64(1)


class Layer(NamedTuple):
    """A dense layer: which layer it reads (or OBSERVATION), its widths, where its weight [outputs, inputs] and bias
    [outputs] begin in the flat parameters, and its activation's name."""

    source: int
    inputs: int
    outputs: int
    weight: int
    bias: int
    activation: str = "identity"


class Network(NamedTuple):
    """A table of layers, and how many float32 one block needs beside it."""

    layers: np.ndarray  # uint64 [L, len(COLUMNS)]
    inputs: int  # rows of the observation's block, which lies at the start of scratch
    transposed: int  # place in scratch of a transposed source
    scratch: int  # float32 in scratch
    gradient: int  # float32 in a gradient


class Places(NamedTuple):
    """Where things lie in a block's scratch; uint64. logits, values: the outputs of the actor's and the critic's last
    layers; d_logits, d_values: their deltas."""

    inputs: np.uint64
    transposed: np.uint64
    logits: np.uint64
    d_logits: np.uint64
    values: np.uint64
    d_values: np.uint64
    actions: np.uint64
    entropies: np.uint64
    samples: np.uint64


def rounded(count: int) -> int:
    """`count` rounded up to whole vectors."""
    return -(-count // int(WIDTH)) * int(WIDTH)


def network(layers: Sequence[Layer], reserved: int = 0) -> Network:
    """Places for layers, given in an order in which each comes after the one it reads. reserved: float32 left free at
    the start of a gradient.

    Raises ValueError where a layer's inputs are not its source's outputs.
    """
    inputs = next(layer.inputs for layer in layers if layer.source == OBSERVATION)
    block, scratch, gradient = int(BLOCK), inputs * int(BLOCK), reserved
    table = np.zeros((len(layers), len(COLUMNS)), np.uint64)
    for row, layer in zip(table, layers, strict=True):
        if layer.inputs != (inputs if layer.source == OBSERVATION else layers[layer.source].outputs):
            raise ValueError(f"{layer} does not have as many inputs as its source has outputs")
        stride, size = rounded(layer.inputs), layer.outputs * block
        row[: int(SOURCE)] = layer.inputs, layer.outputs, layer.weight, layer.bias
        row[int(OUTPUT) : int(SOURCE_DELTA)] = scratch, scratch + size, scratch + 2 * size
        row[int(ACTIVATION) :] = CODES[layer.activation], gradient, gradient + layer.outputs * stride, stride
        scratch += 3 * size
        gradient += layer.outputs * stride + rounded(layer.outputs)
    _connect(table, layers)
    widest = max(rounded(layer.inputs) for layer in layers)
    return Network(table, inputs, scratch, scratch + widest * block, gradient)


def _connect(table: np.ndarray, layers: Sequence[Layer]) -> None:
    """Fill in the columns that say where a layer reads, and where its backward pass writes."""
    written = set()
    for row, layer in reversed(list(zip(table, layers, strict=True))):
        inside = layer.source != OBSERVATION
        row[SOURCE] = table[layer.source, OUTPUT] if inside else 0
        row[SOURCE_DELTA] = table[layer.source, DELTA] if inside else _NOWHERE
        row[FIRST] = layer.source not in written  # the first to write a source's delta need not add to it
        written.add(layer.source)


class Normalizer(NamedTuple):
    """What is done to an observation first: (x - center) * scale, clipped to +-limit. center, scale: float32 [inputs],
    or empty for nothing."""

    center: np.ndarray
    scale: np.ndarray
    limit: np.float32


@njit(**INNER)
def normalize(normalizer, scratch):
    """Normalise the observation's block at scratch[0], in place. NaN stays."""
    low, high = splat(-normalizer.limit), splat(normalizer.limit)
    for f in range(_ZERO, np.uint64(len(normalizer.center))):
        center, scale = normalizer.center[f], normalizer.scale[f]
        for i in range(f * BLOCK, (f + _ONE) * BLOCK, WIDTH):
            x = (load(scratch, i) - center) * scale
            x = select(x > high, high, x)
            store(scratch, i, select(x < low, low, x))


@njit(**MERGED)
def forward(layers, parameters, scratch):
    """Outputs and slopes of all layers, from the observation's block at scratch[0]."""
    for n in range(_ZERO, np.uint64(len(layers))):
        inputs, outputs, output = layers[n, INPUTS], layers[n, OUTPUTS], layers[n, OUTPUT]
        fill(scratch, output, outputs, parameters, layers[n, BIAS])
        multiply(
            parameters, layers[n, WEIGHT], inputs, _ONE, outputs, inputs,
            scratch, layers[n, SOURCE], BLOCK, scratch, output, BLOCK, BLOCK,
        )  # fmt: skip
        activate(layers[n, ACTIVATION], scratch, output, layers[n, SLOPE], outputs * BLOCK)


@njit(**MERGED)
def backward(layers, transposed, parameters, scratch, gradient):
    """Add a block's gradient to `gradient`, from the deltas of the layers that nothing reads, after forward()."""
    for back in range(_ZERO, np.uint64(len(layers))):
        n = np.uint64(len(layers)) - _ONE - back
        inputs, outputs, stride = layers[n, INPUTS], layers[n, OUTPUTS], layers[n, STRIDE]
        source, delta, upstream = layers[n, SOURCE], layers[n, DELTA], layers[n, SOURCE_DELTA]
        if layers[n, ACTIVATION] != _ZERO:
            scale(scratch, delta, layers[n, SLOPE], outputs * BLOCK)
        transpose(scratch, source, inputs, transposed, stride)
        multiply(
            scratch, delta, BLOCK, _ONE, outputs, BLOCK,
            scratch, transposed, stride, gradient, layers[n, GRADIENT], stride, stride,
        )  # fmt: skip
        add_row_sums(scratch, delta, outputs, gradient, layers[n, BIAS_GRADIENT])
        if upstream != _NOWHERE:
            if layers[n, FIRST] != _ZERO:
                clear(scratch, upstream, inputs * BLOCK)
            multiply(
                parameters, layers[n, WEIGHT], _ONE, inputs, inputs, outputs,
                scratch, delta, BLOCK, scratch, upstream, BLOCK, BLOCK,
            )  # fmt: skip


@njit(**MERGED)
def flatten_gradient(layers, gradient, flat):
    """From a gradient's padded rows to the parameters' own order."""
    for n in range(_ZERO, np.uint64(len(layers))):
        inputs, outputs, stride = layers[n, INPUTS], layers[n, OUTPUTS], layers[n, STRIDE]
        for o in range(_ZERO, outputs):
            source, target = layers[n, GRADIENT] + o * stride, layers[n, WEIGHT] + o * inputs
            for i in range(_ZERO, inputs):
                flat[target + i] = gradient[source + i]
            flat[layers[n, BIAS] + o] = gradient[layers[n, BIAS_GRADIENT] + o]


def aligned(*shape: int) -> np.ndarray:
    """Zeros, float32, beginning on a 64-byte boundary: a vector then never straddles two cache lines."""
    count = int(np.prod(shape))
    buffer = np.zeros(count + 16, np.float32)
    skip = (-buffer.ctypes.data // 4) % 16
    return buffer[skip : skip + count].reshape(shape)
