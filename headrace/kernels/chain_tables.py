"""Tables of chains of dense layers (headrace.kernels.chains), made in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.kernels.tables import BLOCK, CODES, rounded

CHUNK = np.uint64(24)  # rows of a layer at a time: of its weights, their gradient stays in the first cache
# Columns, uint64. Weight [o, i] lies at WEIGHT + o * ROW + i * COLUMN of the parameters, one of which is 1. The rest
# are places in a block's scratch: SOURCE (what a layer reads), OUTPUT, SLOPE (of its activation), DELTA (the loss's
# slope at its output, before the activation), BELOW (that of its source), TURNED (with samples as rows, STRIDE apart:
# the source where COLUMN is 1, else the delta).
INPUTS, OUTPUTS, WEIGHT, BIAS, ROW, COLUMN, SOURCE, OUTPUT, SLOPE, DELTA, BELOW, ACTIVATION, TURNED, STRIDE = (
    np.uint64(i) for i in range(14)
)


class Dense(NamedTuple):
    """A dense layer: its widths, where its weight and bias begin in the flat parameters, whether the weight lies as
    [inputs, outputs] there (else [outputs, inputs]), and its activation's name."""

    inputs: int
    outputs: int
    weight: int
    bias: int
    turned: bool
    activation: str = "identity"


def chain(layers: Sequence[Dense], inputs: int, place: int) -> tuple[np.ndarray, int]:
    """The table of layers one after another, and where what they need in a block's scratch ends. inputs: where the
    first reads; place: where what they need begins, the slope at the inputs first."""
    block, source = int(BLOCK), inputs
    below, place = place, place + layers[0].inputs * block
    table = np.zeros((len(layers), 14), np.uint64)
    for row, layer in zip(table, layers, strict=True):
        size = layer.outputs * block
        turned = layer.turned and layer.outputs > 1  # a single column is a row, too
        stride = rounded(layer.outputs if turned else layer.inputs)
        steps = (1, layer.outputs) if turned else (layer.inputs, 1)
        places = (source, place, place + size, place + 2 * size, below)
        row[:] = (
            *(layer.inputs, layer.outputs, layer.weight, layer.bias, *steps, *places),
            *(CODES[layer.activation], place + 3 * size, stride),
        )
        source, below = place, place + 2 * size
        place += 3 * size + stride * block
    return table, place


def pieces(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Chunks of all chains' weights: uint64 [*, 3], which chain's, which layer's, the first row. Chain after chain:
    threads that begin at either end then keep to one of two critics."""
    found = []
    for number, table in enumerate(tables):
        for n, row in enumerate(table):
            major = int(row[OUTPUTS] if row[COLUMN] == 1 else row[INPUTS])
            found += [(number, n, first) for first in range(0, major, int(CHUNK))]
    return np.array(found, np.uint64)
