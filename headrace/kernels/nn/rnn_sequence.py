"""The steps of GRUs and LSTMs over whole sequences, forward and backward, compiled.

What torch's autograd does at every step, an outer product as large as the weights added to their gradient, is left to
one product over all steps afterwards: here only gradients go from step to step. The parts that threads share are
chunks of the sequences of each of K cells; a result does not depend on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.nn.dense import multiply
from headrace.kernels.nn.layout import WIDTH
from headrace.kernels.nn.rnn_arguments import PART_SEQUENCES, RNNArguments, RNNGradients
from headrace.kernels.nn.simd import fma, load, splat, store
from headrace.kernels.nn.vector_math import sigmoid, tanh
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import single_task

__all__ = ["RNNArguments", "RNNGradients", "backward", "forward"]

F, U = np.float32, np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_ZERO, _ONE = F(0), F(1)


class _Part(NamedTuple):
    """Sequences `first` to `end` of cell k, which a thread computes from the first step to the last."""

    k: np.uint64
    first: np.uint64
    end: np.uint64


@njit(**INNER)
def _part(cells, number):
    """Part `number`: each cell has a part for each chunk of sequences."""
    chunks = (cells.envs + PART_SEQUENCES - _1) // PART_SEQUENCES
    first = number % chunks * PART_SEQUENCES
    return _Part(number // chunks, first, min(first + PART_SEQUENCES, cells.envs))


@njit(**INNER)
def _gate_sums(cells, part, step):
    """The gates' sums: features' part plus recurrent part. A GRU's candidate is given the recurrent part alone."""
    size, wide = cells.size, cells.gates * cells.size
    direct = wide if cells.gates == U(4) else _2 * size
    row = (part.k * cells.steps + step) * cells.envs
    for n in range(part.first, part.end):
        at = (row + n) * wide
        for e in range(_0, direct, WIDTH):
            store(cells.gate, at + e, load(cells.projected, at + e) + load(cells.bias, part.k * wide + e))
        for e in range(direct, wide, WIDTH):
            store(cells.gate, at + e, load(cells.bias, part.k * wide + e))
    row += part.first
    multiply(
        cells.before, row * size, size, _1, part.end - part.first, size,
        cells.weight, part.k * size * wide, wide, cells.gate, row * wide, wide, wide,
    )  # fmt: skip


@njit(**INNER)
def _lstm(cells, row, at, e):
    """Sixteen components of a step: output h = o tanh(c) and cell c = f c_before + i g."""
    size, gate = cells.size, at + e
    input_gate, forget = sigmoid(load(cells.gate, gate)), sigmoid(load(cells.gate, gate + size))
    candidate, output_gate = tanh(load(cells.gate, gate + _2 * size)), sigmoid(load(cells.gate, gate + _3 * size))
    store(cells.gate, gate, input_gate), store(cells.gate, gate + size, forget)
    store(cells.gate, gate + _2 * size, candidate), store(cells.gate, gate + _3 * size, output_gate)
    cell = fma(forget, load(cells.cell, row * size + e), input_gate * candidate)
    squashed = tanh(cell)
    store(cells.extra, row * size + e, squashed)
    return output_gate * squashed, cell


@njit(**INNER)
def _gru(cells, row, at, e):
    """Sixteen components of a step's output h = (1 - z) n + z h_before, n = tanh(x_n + r recurrent_n)."""
    size, gate = cells.size, at + e
    reset, update = sigmoid(load(cells.gate, gate)), sigmoid(load(cells.gate, gate + size))
    recurrent = load(cells.gate, gate + _2 * size)
    candidate = tanh(fma(reset, recurrent, load(cells.projected, gate + _2 * size)))
    store(cells.gate, gate, reset), store(cells.gate, gate + size, update)
    store(cells.gate, gate + _2 * size, candidate), store(cells.extra, row * size + e, recurrent)
    return fma(update, load(cells.before, row * size + e) - candidate, candidate)


@njit(**INNER)
def _forward_part(number, worker, cells):
    part = _part(cells, number)
    size, wide, below = cells.size, cells.gates * cells.size, cells.envs * cells.size
    for step in range(_0, cells.steps):
        _gate_sums(cells, part, step)
        for n in range(part.first, part.end):
            row = (part.k * cells.steps + step) * cells.envs + n
            kept, last = cells.keep[step * cells.envs + n], step + _1 == cells.steps
            for e in range(_0, size, WIDTH):
                at = row * size + e
                if cells.gates == U(4):
                    output, cell = _lstm(cells, row, row * wide, e)
                    if not last:
                        store(cells.cell, at + below, cell * kept)
                else:
                    output = _gru(cells, row, row * wide, e)
                store(cells.output, at, output)
                if not last:
                    store(cells.before, at + below, output * kept)


@njit(**INNER)
def _lstm_backward(cells, grads, row, at, e, grad_output, grad_cell):
    """Gradients at sixteen components' gates, before their activations; returns the gradient at the cell before.

    grad_c += grad_h o (1 - tanh(c)^2); i: grad_c g i (1 - i); f: grad_c c_before f (1 - f); g: grad_c i (1 - g^2);
    o: grad_h tanh(c) o (1 - o); cell before: grad_c f.
    """
    size, gate = cells.size, at + e
    input_gate, forget = load(cells.gate, gate), load(cells.gate, gate + size)
    candidate, output_gate = load(cells.gate, gate + _2 * size), load(cells.gate, gate + _3 * size)
    squashed = load(cells.extra, row * size + e)
    grad_cell = fma(grad_output * output_gate, _ONE - squashed * squashed, grad_cell)
    store(grads.gate, gate, grad_cell * candidate * input_gate * (_ONE - input_gate))
    store(grads.gate, gate + size, grad_cell * load(cells.cell, row * size + e) * forget * (_ONE - forget))
    store(grads.gate, gate + _2 * size, grad_cell * input_gate * (_ONE - candidate * candidate))
    store(grads.gate, gate + _3 * size, grad_output * squashed * output_gate * (_ONE - output_gate))
    return grad_cell * forget


@njit(**INNER)
def _gru_backward(cells, grads, row, at, e, grad_output):
    """Gradients at sixteen components' gates, before their activations, and at their recurrent parts; returns the
    direct one at the output before.

    n: grad_h (1 - z) (1 - n^2); r: grad_n recurrent_n r (1 - r); z: grad_h (h_before - n) z (1 - z); recurrent_n:
    grad_n r; output before: grad_h z.
    """
    size, gate = cells.size, at + e
    reset, update, candidate = load(cells.gate, gate), load(cells.gate, gate + size), load(cells.gate, gate + _2 * size)
    grad_candidate = grad_output * (_ONE - update) * (_ONE - candidate * candidate)
    grad_reset = grad_candidate * load(cells.extra, row * size + e) * reset * (_ONE - reset)
    grad_update = grad_output * (load(cells.before, row * size + e) - candidate) * update * (_ONE - update)
    store(grads.gate, gate, grad_reset), store(grads.recurrent, gate, grad_reset)
    store(grads.gate, gate + size, grad_update), store(grads.recurrent, gate + size, grad_update)
    store(grads.gate, gate + _2 * size, grad_candidate)
    store(grads.recurrent, gate + _2 * size, grad_candidate * reset)
    return grad_output * update


@njit(**INNER)
def _backward_part(number, worker, arguments):
    cells, grads = arguments
    part = _part(cells, number)
    size, wide, zero = cells.size, cells.gates * cells.size, splat(_ZERO)
    lstm = cells.gates == U(4)
    for back in range(_0, cells.steps):
        step = cells.steps - _1 - back
        row = (part.k * cells.steps + step) * cells.envs
        for n in range(part.first, part.end):
            kept, carried = cells.keep[step * cells.envs + n], (part.k * cells.envs + n) * size
            for e in range(_0, size, WIDTH):
                given = load(grads.output, (row + n) * size + e)
                grad_output = fma(load(grads.before, carried + e), splat(kept), given)
                if lstm:
                    grad_cell = load(grads.cell, carried + e) * kept
                    grad_cell = _lstm_backward(cells, grads, row + n, (row + n) * wide, e, grad_output, grad_cell)
                    store(grads.cell, carried + e, zero if step == grads.burn_in else grad_cell)
                    direct = zero
                else:
                    direct = _gru_backward(cells, grads, row + n, (row + n) * wide, e, grad_output)
                store(grads.before, carried + e, zero if step == grads.burn_in else direct)
        if step != grads.burn_in and step:
            multiply(
                grads.gate if lstm else grads.recurrent, (row + part.first) * wide, wide, _1,
                part.end - part.first, wide, grads.weight, part.k * wide * size, size,
                grads.before, (part.k * cells.envs + part.first) * size, size, size,
            )  # fmt: skip


_run_forward, _run_backward = single_task(_forward_part), single_task(_backward_part)


@njit(**INNER)
def _parts(cells):
    return cells.copies * ((cells.envs + PART_SEQUENCES - _1) // PART_SEQUENCES)


@njit(**ENTRY)
def forward(worker, state, cells):
    """Fill gate, extra, before, cell and output of RNNArguments; of before and cell the first step is given.

    worker, state: see kernels.runtime.thread_pool."""
    _run_forward(worker, state, _parts(cells), cells)


@njit(**ENTRY)
def backward(worker, state, cells, grads):
    """Fill gate and recurrent of RNNGradients, after forward()."""
    _run_backward(worker, state, _parts(cells), (cells, grads))
