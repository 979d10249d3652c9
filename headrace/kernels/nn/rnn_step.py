"""One step of GRUs and LSTMs, to act with, compiled: features and state in, outputs and the next state out.

The parts that threads share are chunks of the rows of each of K cells. A row's sums are taken in order, so that its
outputs depend neither on the number of threads nor on the other rows.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn.dense import multiply
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.rnn_arguments import PACKED, PACKED_ROWS, STEP_ROWS, RNNStepArguments
from headrace.kernels.nn.simd import fma, load, store
from headrace.kernels.nn.vector_math import sigmoid, tanh
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import single_task

__all__ = ["RNNStepArguments", "forward"]

U = np.uint64
_0, _1, _2, _3, _4 = U(0), U(1), U(2), U(3), U(4)
FEW_ROWS = U(12)  # two tiles


@njit(**INNER)
def _fill_biases(cells, k, rows, sums):
    """Begin the gates' sums of some rows, [rows, 4 * H] from `sums` on: of a GRU its candidate's features' and
    recurrent parts apart."""
    size, gates = cells.size, cells.gates * cells.size
    together, bias = _4 * size if cells.gates == _4 else _2 * size, k * gates
    for row in range(_0, rows):
        at = sums + row * _4 * size
        for e in range(_0, together, WIDTH):
            store(cells.scratch, at + e, load(cells.bias_input, bias + e) + load(cells.bias_hidden, bias + e))
        for e in range(together, gates, WIDTH):
            store(cells.scratch, at + e, load(cells.bias_input, bias + e))
            store(cells.scratch, at + size + e, load(cells.bias_hidden, bias + e))


@njit(**INNER)
def _multiply(cells, left, first, stride, rows, count, weight, w, sums, width, packed):
    """Add the product of [rows, count] of `left` and a weight's `width` columns from w on to the gates' sums.

    Tiles read 64 columns of a weight row after row. Rows are a power of two apart, so few fit into the first cache
    together: they are copied side by side where more than two tiles read them, PACKED_ROWS at a time.
    """
    gates, target_row = cells.gates * cells.size, _4 * cells.size
    if rows <= FEW_ROWS:
        multiply(left, first, stride, _1, rows, count, weight, w, gates, cells.scratch, sums, target_row, width)
        return
    for e in range(_0, width, BLOCK):
        columns = min(BLOCK, width - e)
        for k in range(_0, count, PACKED_ROWS):
            depth = min(PACKED_ROWS, count - k)
            for row in range(_0, depth):
                for c in range(_0, columns, WIDTH):
                    at = w + (k + row) * gates + e + c
                    store(cells.scratch, packed + row * columns + c, load(weight, at))
            multiply(
                left, first + k, stride, _1, rows, depth,
                cells.scratch, packed, columns, cells.scratch, sums + e, target_row, columns,
            )  # fmt: skip


@njit(**INNER)
def _gate_sums(cells, k, first, rows, sums, packed):
    """The gates' sums of `rows` rows from `first` on: biases, features' part, recurrent part."""
    size, gates, inputs = cells.size, cells.gates * cells.size, cells.inputs
    _fill_biases(cells, k, rows, sums)
    feature, weight = (k * cells.envs + first) * inputs, k * inputs * gates
    _multiply(cells, cells.features, feature, inputs, rows, inputs, cells.weight_input, weight, sums, gates, packed)
    row, weight, hidden = cells.state_row, k * size * gates, cells.weight_hidden
    state, direct = first * row + k * cells.state_cell, gates if cells.gates == _4 else _2 * size
    _multiply(cells, cells.state, state, row, rows, size, hidden, weight, sums, direct, packed)
    if direct < gates:
        sums, weight = sums + _3 * size, weight + direct
        _multiply(cells, cells.state, state, row, rows, size, hidden, weight, sums, size, packed)


@njit(**INNER)
def _step_part(number, worker, cells):
    chunks = (cells.envs + STEP_ROWS - _1) // STEP_ROWS
    k, first, size = number // chunks, number % chunks * STEP_ROWS, cells.size
    rows = min(STEP_ROWS, cells.envs - first)
    sums = worker * (STEP_ROWS * _4 * size + PACKED)
    _gate_sums(cells, k, first, rows, sums, sums + STEP_ROWS * _4 * size)
    for row in range(_0, rows):
        gate, at = sums + row * _4 * size, (first + row) * cells.state_row + k * cells.state_cell
        for e in range(_0, size, WIDTH):
            a, b = load(cells.scratch, gate + e), load(cells.scratch, gate + size + e)
            c, d = load(cells.scratch, gate + _2 * size + e), load(cells.scratch, gate + _3 * size + e)
            if cells.gates == _4:
                cell = fma(sigmoid(b), load(cells.state, at + size + e), sigmoid(a) * tanh(c))
                output = sigmoid(d) * tanh(cell)
                store(cells.after, at + size + e, cell)
            else:
                candidate = tanh(fma(sigmoid(a), d, c))
                output = fma(sigmoid(b), load(cells.state, at + e) - candidate, candidate)
            store(cells.after, at + e, output)
            store(cells.output, (k * cells.envs + first + row) * size + e, output)


_run_step = single_task(_step_part)


@njit(**ENTRY)
def forward(worker, state, cells):
    """Fill output and after of RNNStepArguments.

    worker, state: see kernels.runtime.thread_pool."""
    parts = cells.copies * ((cells.envs + STEP_ROWS - _1) // STEP_ROWS)
    _run_step(worker, state, parts, cells)
