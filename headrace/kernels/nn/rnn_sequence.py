"""The steps of GRUs and LSTMs over whole sequences, forward and backward, compiled.

What torch's autograd does at every step, an outer product as large as the weights added to their gradient, is left to
one product over all steps afterwards: here only slopes go from step to step. K cores and chunks of their sequences are
parts that threads share (headrace.kernels.runtime.work_queue); a result does not depend on how many there are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.nn.dense import multiply
from headrace.kernels.nn.layout import WIDTH
from headrace.kernels.nn.rnn_arguments import PART_SEQUENCES, RNNArguments, RNNGradients
from headrace.kernels.nn.simd import fma, load, splat, store
from headrace.kernels.nn.vector_math import sigmoid, tanh
from headrace.kernels.runtime.jit import ENTRY, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import claim, dismiss, dismissed, finished, publish, rest, wait

__all__ = ["RNNArguments", "RNNGradients", "backward", "forward"]

F, U = np.float32, np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_ZERO, _ONE = F(0), F(1)


class _Part(NamedTuple):
    """Sequences `first` to `end` of core k: what a thread does from the first step to the last."""

    k: np.uint64
    first: np.uint64
    end: np.uint64


@njit(**INNER)
def _part(job, number):
    """Part `number` of a job, of which each core has as many as it has chunks."""
    chunks = (job.envs + PART_SEQUENCES - _1) // PART_SEQUENCES
    first = number % chunks * PART_SEQUENCES
    return _Part(number // chunks, first, min(first + PART_SEQUENCES, job.envs))


@njit(**INNER)
def _remember(job, part, step):
    """What goes into the gates: what the features say and what memory does. A GRU's third part is memory's alone."""
    size, wide = job.size, job.gates * job.size
    direct = wide if job.gates == U(4) else _2 * size
    row = (part.k * job.steps + step) * job.envs
    for n in range(part.first, part.end):
        at = (row + n) * wide
        for e in range(_0, direct, WIDTH):
            store(job.gate, at + e, load(job.projected, at + e) + load(job.bias, part.k * wide + e))
        for e in range(direct, wide, WIDTH):
            store(job.gate, at + e, load(job.bias, part.k * wide + e))
    row += part.first
    multiply(
        job.before, row * size, size, _1, part.end - part.first, size,
        job.weight, part.k * size * wide, wide, job.gate, row * wide, wide, wide,
    )  # fmt: skip


@njit(**INNER)
def _lstm(job, row, at, e):
    """Sixteen components of a step: output and cell."""
    size, gate = job.size, at + e
    enter, keep = sigmoid(load(job.gate, gate)), sigmoid(load(job.gate, gate + size))
    fresh, leave = tanh(load(job.gate, gate + _2 * size)), sigmoid(load(job.gate, gate + _3 * size))
    store(job.gate, gate, enter), store(job.gate, gate + size, keep)
    store(job.gate, gate + _2 * size, fresh), store(job.gate, gate + _3 * size, leave)
    cell = fma(keep, load(job.cell, row * size + e), enter * fresh)
    squashed = tanh(cell)
    store(job.extra, row * size + e, squashed)
    return leave * squashed, cell


@njit(**INNER)
def _gru(job, row, at, e):
    """Sixteen components of a step's output."""
    size, gate = job.size, at + e
    reset, keep = sigmoid(load(job.gate, gate)), sigmoid(load(job.gate, gate + size))
    remembered = load(job.gate, gate + _2 * size)
    fresh = tanh(fma(reset, remembered, load(job.projected, gate + _2 * size)))
    store(job.gate, gate, reset), store(job.gate, gate + size, keep), store(job.gate, gate + _2 * size, fresh)
    store(job.extra, row * size + e, remembered)
    return fma(keep, load(job.before, row * size + e) - fresh, fresh)


@njit(**INNER)
def _forward_part(job, part):
    size, wide, below = job.size, job.gates * job.size, job.envs * job.size
    for step in range(_0, job.steps):
        _remember(job, part, step)
        for n in range(part.first, part.end):
            row = (part.k * job.steps + step) * job.envs + n
            kept, last = job.keep[step * job.envs + n], step + _1 == job.steps
            for e in range(_0, size, WIDTH):
                at = row * size + e
                if job.gates == U(4):
                    output, cell = _lstm(job, row, row * wide, e)
                    if not last:
                        store(job.cell, at + below, cell * kept)
                else:
                    output = _gru(job, row, row * wide, e)
                store(job.output, at, output)
                if not last:
                    store(job.before, at + below, output * kept)


@njit(**INNER)
def _lstm_slopes(job, slopes, row, at, e, d_output, d_cell):
    """RNNGradients in sixteen components' gates; gives that in the cell before."""
    size, gate = job.size, at + e
    enter, keep = load(job.gate, gate), load(job.gate, gate + size)
    fresh, leave = load(job.gate, gate + _2 * size), load(job.gate, gate + _3 * size)
    squashed = load(job.extra, row * size + e)
    d_cell = fma(d_output * leave, _ONE - squashed * squashed, d_cell)
    store(slopes.gate, gate, d_cell * fresh * enter * (_ONE - enter))
    store(slopes.gate, gate + size, d_cell * load(job.cell, row * size + e) * keep * (_ONE - keep))
    store(slopes.gate, gate + _2 * size, d_cell * enter * (_ONE - fresh * fresh))
    store(slopes.gate, gate + _3 * size, d_output * squashed * leave * (_ONE - leave))
    return d_cell * keep


@njit(**INNER)
def _gru_slopes(job, slopes, row, at, e, d_output):
    """Gradients at sixteen components' gates and their recurrent parts; gives the direct one in the output
    before."""
    size, gate = job.size, at + e
    reset, keep, fresh = load(job.gate, gate), load(job.gate, gate + size), load(job.gate, gate + _2 * size)
    d_fresh = d_output * (_ONE - keep) * (_ONE - fresh * fresh)
    d_reset = d_fresh * load(job.extra, row * size + e) * reset * (_ONE - reset)
    d_keep = d_output * (load(job.before, row * size + e) - fresh) * keep * (_ONE - keep)
    store(slopes.gate, gate, d_reset), store(slopes.recurrent, gate, d_reset)
    store(slopes.gate, gate + size, d_keep), store(slopes.recurrent, gate + size, d_keep)
    store(slopes.gate, gate + _2 * size, d_fresh), store(slopes.recurrent, gate + _2 * size, d_fresh * reset)
    return d_output * keep


@njit(**INNER)
def _backward_part(job, slopes, part):
    size, wide, zero = job.size, job.gates * job.size, splat(_ZERO)
    lstm = job.gates == U(4)
    for back in range(_0, job.steps):
        step = job.steps - _1 - back
        row = (part.k * job.steps + step) * job.envs
        for n in range(part.first, part.end):
            kept, carried = job.keep[step * job.envs + n], (part.k * job.envs + n) * size
            for e in range(_0, size, WIDTH):
                d_output = fma(load(slopes.before, carried + e), splat(kept), load(slopes.output, (row + n) * size + e))
                if lstm:
                    d_cell = load(slopes.cell, carried + e) * kept
                    d_cell = _lstm_slopes(job, slopes, row + n, (row + n) * wide, e, d_output, d_cell)
                    store(slopes.cell, carried + e, zero if step == slopes.burn_in else d_cell)
                    direct = zero
                else:
                    direct = _gru_slopes(job, slopes, row + n, (row + n) * wide, e, d_output)
                store(slopes.before, carried + e, zero if step == slopes.burn_in else direct)
        if step != slopes.burn_in and step:
            multiply(
                slopes.gate if lstm else slopes.recurrent, (row + part.first) * wide, wide, _1,
                part.end - part.first, wide, slopes.weight, part.k * wide * size, size,
                slopes.before, (part.k * job.envs + part.first) * size, size, size,
            )  # fmt: skip


@njit(**MERGED)
def _begin(worker, state, job):
    if worker == 0:
        publish(state, job.copies * ((job.envs + PART_SEQUENCES - _1) // PART_SEQUENCES))


@njit(**MERGED)
def _end(worker, state):
    if worker == 0:
        wait(state)
        dismiss(state)


@njit(**ENTRY)
def forward(worker, state, job):
    """Fill job.gate, extra, before, cell and output; of before and cell the first step is given.

    worker, state: as in headrace.kernels.learning.ppo.learn."""
    _begin(worker, state, job)
    while True:
        part = claim(state, worker)
        while part >= 0:
            _forward_part(job, _part(job, U(part)))
            finished(state)
            part = claim(state, worker)
        if worker == 0 or dismissed(state):
            break
        rest()
    _end(worker, state)


@njit(**ENTRY)
def backward(worker, state, job, slopes):
    """Fill slopes.gate and remembered, after forward()."""
    _begin(worker, state, job)
    while True:
        part = claim(state, worker)
        while part >= 0:
            _backward_part(job, slopes, _part(job, U(part)))
            finished(state)
            part = claim(state, worker)
        if worker == 0 or dismissed(state):
            break
        rest()
    _end(worker, state)
