"""Tables of chains of dense layers (headrace.kernels.nn.stepwise), made in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.kernels.nn.amx import HALF, serve
from headrace.kernels.nn.layout import BLOCK, CODES, NOWHERE, rounded

CHUNK = np.uint64(24)  # rows of a layer at a time: of its weights, their gradient stays in the first cache
# Columns, uint64. Weight [o, i] lies at WEIGHT + o * ROW + i * COLUMN of the parameters, one of which is 1. The rest
# are places in a block's scratch: SOURCE (what a layer reads), OUTPUT, SLOPE (of its activation), DELTA (the loss's
# slope at its output, before the activation), BELOW (that of its source), TURNED (with samples as rows, STRIDE apart:
# the source where COLUMN is 1, else the delta). Of layers that tiles multiply (kernels.nn.split_bf16): WORDS is where
# their factors begin in an array of words: the weights for forward(), those for backward(), then the two factors of the
# gradient; FACTOR is a place in scratch for the other factor of forward() and backward(). WORDS of others: NOWHERE.
INPUTS, OUTPUTS, WEIGHT, BIAS, ROW, COLUMN, SOURCE, OUTPUT, SLOPE, DELTA, BELOW, ACTIVATION, TURNED, STRIDE = (
    np.uint64(i) for i in range(14)
)
WORDS, FACTOR = np.uint64(14), np.uint64(15)


class Dense(NamedTuple):
    """A dense layer: its widths, where its weight and bias begin in the flat parameters, whether the weight lies as
    [inputs, outputs] there (else [outputs, inputs]), and its activation's name."""

    inputs: int
    outputs: int
    weight: int
    bias: int
    turned: bool
    activation: str = "identity"


class Chain(NamedTuple):
    """A chain's table, and where what it needs ends: in a block's scratch, and among words."""

    table: np.ndarray  # uint64 [L, 16]
    scratch: int
    words: int


def chain(layers: Sequence[Dense], inputs: int, place: int, words: int = 0, blocks: int = 0) -> Chain:
    """The table of layers one after another. inputs: where the first reads; place: where what they need in a block's
    scratch begins, the slope at the inputs first; words: likewise among words. blocks: of a batch; without, tiles
    multiply nothing."""
    block, source = int(BLOCK), inputs
    below, place = place, place + layers[0].inputs * block
    table = np.zeros((len(layers), 16), np.uint64)
    for row, layer in zip(table, layers, strict=True):
        size = layer.outputs * block
        turned = layer.turned and layer.outputs > 1  # a single column is a row, too
        stride = rounded(layer.outputs if turned else layer.inputs)
        steps = (1, layer.outputs) if turned else (layer.inputs, 1)
        places = (source, place, place + size, place + 2 * size, below)
        tiled = bool(blocks) and serve(layer.inputs, layer.outputs)
        row[:] = (
            *(layer.inputs, layer.outputs, layer.weight, layer.bias, *steps, *places),
            *(CODES[layer.activation], place + 3 * size, stride, words if tiled else NOWHERE, place + 3 * size),
        )
        source, below = place, place + 2 * size
        place += 3 * size + max(stride, 3 * max(layer.inputs, layer.outputs) // 2 if tiled else 0) * block
        if tiled:
            words += 3 * layer.inputs * layer.outputs + 3 * (layer.inputs + layer.outputs) * blocks * block // 2
    return Chain(table, place, words)


def pieces(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Chunks of all chains' weights: uint64 [*, 3], which chain's, which layer's, the first row. Chain after chain:
    threads that begin at either end then keep to one of two critics."""
    found = []
    for number, table in enumerate(tables):
        for n, row in enumerate(table):
            major = int(row[OUTPUTS] if row[COLUMN] == 1 else row[INPUTS])
            step = int(CHUNK if row[WORDS] == NOWHERE else HALF)
            found += [(number, n, first) for first in range(0, major, step)]
    return np.array(found, np.uint64)


def room(tables: Sequence[np.ndarray]) -> int:
    """Float32 that the gradient of a piece takes at most."""
    rows = np.concatenate(tables)
    biases = rounded(int(rows[:, int(OUTPUTS)].max()))
    return max(int(HALF) * int(rows[:, int(STRIDE)].max()), biases)
