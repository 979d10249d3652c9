"""What the CPU's kernels are handed, made and named in plain Python: tables of layers, heads, places, and buffers.

Nothing here needs Numba, so that kernels that were compiled before run without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

BLOCK = np.uint64(64)  # samples of a block
WIDTH = np.uint64(16)  # float32 of a vector
WORKERS = 16  # at most: each has scratch of its own
CODES = {"identity": 0, "tanh": 1, "relu": 2, "elu": 3, "silu": 4, "gelu": 5, "leaky_relu": 6}

OBSERVATION = -1  # as a layer's source: the network's input
ACTOR, CRITIC = 1, 2  # what a tree of layers ends in: one, the other, or both

# Columns of the table, uint64. Places are in float32 steps: WEIGHT, BIAS, NORM and NORM_BIAS in the parameters; SOURCE
# (what it reads), OUTPUT, SLOPE (of its activation), DELTA (the loss's gradient at its output, before the activation),
# SOURCE_DELTA (where backward writes) and NORMAL (what layer normalisation makes of its sums, then a row of 1 / their
# deviation) in scratch; GRADIENT, BIAS_GRADIENT and NORM_GRADIENT (of the norm's weight, then of its bias) in the
# gradient, whose rows are STRIDE apart.
COLUMNS = (
    "inputs", "outputs", "weight", "bias", "source", "output", "slope", "delta", "source_delta", "first",
    "activation", "gradient", "bias_gradient", "stride", "norm", "norm_bias", "normal", "norm_gradient",
)  # fmt: skip
_COLUMN = {name: np.uint64(i) for i, name in enumerate(COLUMNS)}
INPUTS, OUTPUTS, WEIGHT, BIAS = (_COLUMN[name] for name in COLUMNS[:4])
SOURCE, OUTPUT, SLOPE, DELTA, SOURCE_DELTA, FIRST = (_COLUMN[name] for name in COLUMNS[4:10])
ACTIVATION, GRADIENT, BIAS_GRADIENT, STRIDE = (_COLUMN[name] for name in COLUMNS[10:14])
NORM, NORM_BIAS, NORMAL, NORM_GRADIENT = (_COLUMN[name] for name in COLUMNS[14:])
# as a layer's SOURCE_DELTA: its source is the observation, which has no gradient; as its NORM: it is not normalised
NOWHERE = np.uint64(2**63)


class Layer(NamedTuple):
    """A dense layer: which layer it reads (or OBSERVATION), its widths, where its weight [outputs, inputs] and bias
    [outputs] begin in the flat parameters, its activation's name, and where weight and bias [outputs] of the layer
    normalisation before that begin, where it has one."""

    source: int
    inputs: int
    outputs: int
    weight: int
    bias: int
    activation: str = "identity"
    norm: tuple[int, int] | None = None


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


def network(layers: Sequence[Layer], reserved: int = 0, input_delta: bool = False) -> Network:
    """Places for layers, given in an order in which each comes after the one it reads. reserved: float32 left free at
    the start of a gradient. input_delta: the gradient at the observation is wanted too, as a block after it in scratch.

    Raises ValueError where a layer's inputs are not its source's outputs.
    """
    inputs = next(layer.inputs for layer in layers if layer.source == OBSERVATION)
    block, gradient = int(BLOCK), reserved
    scratch = inputs * block * (2 if input_delta else 1)
    table = np.zeros((len(layers), len(COLUMNS)), np.uint64)
    for row, layer in zip(table, layers, strict=True):
        if layer.inputs != (inputs if layer.source == OBSERVATION else layers[layer.source].outputs):
            raise ValueError(f"{layer} does not have as many inputs as its source has outputs")
        stride, size = rounded(layer.inputs), layer.outputs * block
        row[: int(SOURCE)] = layer.inputs, layer.outputs, layer.weight, layer.bias
        row[int(OUTPUT) : int(SOURCE_DELTA)] = scratch, scratch + size, scratch + 2 * size
        row[int(ACTIVATION) : int(NORM)] = CODES[layer.activation], gradient, gradient + layer.outputs * stride, stride
        row[int(NORM) :] = NOWHERE
        scratch += 3 * size
        gradient += layer.outputs * stride + rounded(layer.outputs)
        if layer.norm is not None:
            row[int(NORM) :] = *layer.norm, scratch, gradient
            scratch += size + block
            gradient += 2 * rounded(layer.outputs)
    _connect(table, layers, np.uint64(inputs * block) if input_delta else NOWHERE)
    widest = max(rounded(layer.inputs) for layer in layers)
    return Network(table, inputs, scratch, scratch + widest * block, gradient)


def _connect(table: np.ndarray, layers: Sequence[Layer], input_delta: np.uint64) -> None:
    """Fill in the columns that say where a layer reads, and where its backward pass writes."""
    written = set()
    for row, layer in reversed(list(zip(table, layers, strict=True))):
        inside = layer.source != OBSERVATION
        row[SOURCE] = table[layer.source, OUTPUT] if inside else 0
        row[SOURCE_DELTA] = table[layer.source, DELTA] if inside else input_delta
        row[FIRST] = layer.source not in written  # the first to write a source's delta need not add to it
        written.add(layer.source)


class Normalizer(NamedTuple):
    """What is done to an observation first: (x - center) * scale, clipped to +-limit. center, scale: float32 [inputs],
    or empty for nothing."""

    center: np.ndarray
    scale: np.ndarray
    limit: np.float32


# What a head is: numbers that stay, uint64
DISCRETE, GAUSSIAN, SQUASHED = np.uint64(0), np.uint64(1), np.uint64(2)


class Head(NamedTuple):
    """kind: DISCRETE, GAUSSIAN or SQUASHED. sizes: uint64, options of each choice; of the others, a 1 for each
    component. spread: float32 [3, K] of these: center, half, 1 / standard deviation (of a SQUASHED, before squashing).
    constants: float32 [2] of these: log-likelihood at the mean and entropy, but for what squashing adds in each sample.
    log_std: place in the parameters."""

    kind: np.uint64
    sizes: np.ndarray
    spread: np.ndarray
    constants: np.ndarray
    log_std: np.uint64


def ranges(layers: Sequence[Layer], trees: np.ndarray, head: Head) -> np.ndarray:
    """Runs of parameters that lie side by side: uint64 [*, 3], whose tree's, where they begin, how many."""
    runs = [] if head.kind == DISCRETE else [(0, int(head.log_std), len(head.sizes))]
    for tree, (first, end, *_) in enumerate(trees.tolist()):
        for layer in layers[first:end]:
            runs.append((tree, layer.weight, layer.inputs * layer.outputs))
            runs += [(tree, place, layer.outputs) for place in (layer.bias, *(layer.norm or ()))]
    merged: list[list[int]] = []
    for tree, place, count in sorted(runs):
        if merged and merged[-1][0] == tree and merged[-1][1] + merged[-1][2] == place:
            merged[-1][2] += count
        else:
            merged.append([tree, place, count])
    return np.array(merged, np.uint64)


class Stack(NamedTuple):
    """A stack of layers and a batch for it; all but layers uint64.

    output, delta: of the last layer; input_delta: of the samples, or NOWHERE. samples: how many; parts: among which
    threads share them; keep: whether scratch is to stay.
    """

    layers: np.ndarray
    inputs: np.uint64
    outputs: np.uint64
    output: np.uint64
    delta: np.uint64
    input_delta: np.uint64
    transposed: np.uint64
    samples: np.uint64
    parts: np.uint64
    keep: np.uint64


class Actor(NamedTuple):
    """A policy as the acting kernels take it. units: float32 [2], center and scale of values. start: int32 [K], the
    number of each choice's first option."""

    layers: np.ndarray
    head: Head
    places: Places
    parameters: np.ndarray
    units: np.ndarray
    normalizer: Normalizer
    start: np.ndarray


def aligned(*shape: int) -> np.ndarray:
    """Zeros, float32, beginning on a 64-byte boundary: a vector then never straddles two cache lines."""
    count = int(np.prod(shape))
    buffer = np.zeros(count + 16, np.float32)
    skip = (-buffer.ctypes.data // 4) % 16
    return buffer[skip : skip + count].reshape(shape)
