"""Layer tables and weight chunks of the stepwise MLP (headrace.kernels.nn.stepwise), made in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.kernels.nn.activation_table import CODES
from headrace.kernels.nn.amx import TILE_SPAN, tiles_pay
from headrace.kernels.nn.layer_table import COLUMN_STRIDE, COLUMNS, INPUTS, NOWHERE, OUTPUTS, PACKED, STRIDE, fill_row
from headrace.kernels.nn.layout import BLOCK, Layer, connect, rounded

CHUNK_ROWS = np.uint64(24)  # rows of a weight chunk: their gradient stays in the first cache


class StepwiseTable(NamedTuple):
    """The layer table of an MLP, and where what it needs ends: in a block's scratch, and in the packed factors."""

    table: np.ndarray  # uint64 [L, len(COLUMNS)]
    scratch: int
    packed: int


def stepwise_table(
    layers: Sequence[Layer], inputs: int, offset: int, packed: int = 0, blocks: int = 0, lanes: int = int(BLOCK)
) -> StepwiseTable:
    """The table of layers, each given after the one it reads. inputs: offset in scratch of the observation. offset:
    where the MLP's part of a block's scratch begins, with the gradient at its inputs. packed: where its packed factors
    begin. blocks: of a batch; 0 for no AMX tiles, which are for layers one after another without normalisation. lanes:
    samples of a block; with AMX tiles those of BLOCK."""
    input_grad, offset = offset, offset + layers[0].inputs * lanes
    table = np.zeros((len(layers), len(COLUMNS)), np.uint64)
    for row, layer in zip(table, layers, strict=True):
        size = layer.outputs * lanes
        transposed = layer.transposed and layer.outputs > 1  # a single column is a row, too
        stride = rounded(layer.outputs if transposed else layer.inputs)
        tiled = bool(blocks) and tiles_pay(layer.inputs, layer.outputs)
        fill_row(row, inputs=layer.inputs, outputs=layer.outputs, weight=layer.weight, bias=layer.bias)
        fill_row(row, activation=CODES[layer.activation], stride=stride, norm=NOWHERE)
        fill_row(row, output=offset, activation_grad=offset + size, output_grad=offset + 2 * size)
        fill_row(row, row_stride=1 if transposed else layer.inputs, column_stride=layer.outputs if transposed else 1)
        fill_row(row, transposed=offset + 3 * size, packed=packed if tiled else NOWHERE)
        fill_row(row, packed_samples=offset + 3 * size, lanes=lanes)
        offset += 3 * size + max(stride, 3 * max(layer.inputs, layer.outputs) // 2 if tiled else 0) * lanes
        if tiled:
            packed += 3 * layer.inputs * layer.outputs + 3 * (layer.inputs + layer.outputs) * blocks * lanes // 2
        if layer.norm is not None:
            fill_row(row, norm=layer.norm[0], norm_bias=layer.norm[1], normalized=offset)
            offset += size + lanes
    connect(table, layers, inputs, input_grad)
    return StepwiseTable(table, offset, packed)


def weight_chunks(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Chunks of the weights of several MLPs: uint64 [*, 3], index of the MLP, of the layer, and first row. Chunks are
    ordered by MLP: two threads that begin at either end then keep to one of two critics."""
    found = []
    for number, table in enumerate(tables):
        for n, row in enumerate(table):
            major = int(row[OUTPUTS] if row[COLUMN_STRIDE] == 1 else row[INPUTS])
            step = int(CHUNK_ROWS if row[PACKED] == NOWHERE else TILE_SPAN)
            found += [(number, n, first) for first in range(0, major, step)]
    return np.array(found, np.uint64)


def gradient_scratch_size(tables: Sequence[np.ndarray]) -> int:
    """float32 that the gradient of a weight chunk takes at most."""
    rows = np.concatenate(tables)
    biases = rounded(int(rows[:, int(OUTPUTS)].max()))
    return max(int(TILE_SPAN) * int(rows[:, int(STRIDE)].max()), biases)
