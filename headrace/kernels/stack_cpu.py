"""A stack of dense layers on a whole batch, forward and backward, for torch's autograd.

Both calls share their blocks of 64 samples among threads in a number of parts that the batch's size alone decides, each
part with a gradient of its own: results do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.dense import add, clear
from headrace.kernels.jit import ENTRY, MERGED, njit
from headrace.kernels.mlp_cpu import backward, flatten_gradient, forward
from headrace.kernels.tables import BLOCK, NOWHERE, WIDTH
from headrace.kernels.team import claim, dismiss, dismissed, finished, publish, rest, wait

F, U = np.float32, np.uint64
_0, _1 = U(0), U(1)


@njit(**MERGED)
def _read(rows, first, count, features, scratch, at):
    """Samples first ... first + count - 1 of a batch to the block at scratch[at]; lanes left over are 0."""
    values, sample, feature = rows
    for f in range(_0, features):
        for e in range(_0, BLOCK):
            scratch[at + f * BLOCK + e] = values[(first + e) * sample + f * feature] if e < count else F(0)


@njit(**MERGED)
def _write(scratch, at, first, count, features, rows):
    """A block to samples first ... first + count - 1 of a batch [B, features]."""
    for e in range(_0, count):
        for f in range(_0, features):
            rows[(first + e) * features + f] = scratch[at + f * BLOCK + e]


@njit(**MERGED)
def _forward(stack, parameters, samples, outputs, scratch, worker, part):
    count, keep, parts = stack.count, stack.keep, stack.parts
    blocks = (count + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        first, mine = block * BLOCK, scratch[block if keep else worker]
        size = min(BLOCK, count - first)
        lanes = BLOCK if keep else (size + WIDTH - _1) // WIDTH * WIDTH
        _read(samples, first, size, stack.inputs, mine, _0)
        forward(stack.layers, parameters, mine, lanes)
        _write(mine, stack.output, first, size, stack.outputs, outputs)


@njit(**MERGED)
def _backward(stack, parameters, deltas, scratch, gradient, d_samples, part):
    count, parts, mine = stack.count, stack.parts, gradient[part]
    blocks = (count + BLOCK - _1) // BLOCK
    clear(mine, _0, U(len(mine)))
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        first = block * BLOCK
        size = min(BLOCK, count - first)
        _read(deltas, first, size, stack.outputs, scratch[block], stack.delta)
        backward(stack.layers, stack.transposed, parameters, scratch[block], mine)
        if stack.input_delta != NOWHERE:
            _write(scratch[block], stack.input_delta, first, size, stack.inputs, d_samples)


@njit(**ENTRY)
def evaluate(worker, state, stack, parameters, samples, outputs, scratch):
    """Outputs float32 [B * outputs] of a batch.

    worker, state: as in headrace.kernels.ppo_cpu.learn. stack: tables.Stack. parameters: float32 [P]. samples:
    (float32, stride from a sample to the next, from a feature to the next). scratch: float32, a row for each block to
    keep for differentiate(), or, where stack.keep is 0, one a worker.
    """
    if worker == 0:
        publish(state, stack.parts)
    while True:
        part = claim(state, worker)
        while part >= 0:
            _forward(stack, parameters, samples, outputs, scratch, U(worker), U(part))
            finished(state)
            part = claim(state, worker)
        if worker == 0 or dismissed(state):
            break
        rest()
    if worker == 0:
        wait(state)
        dismiss(state)


@njit(**ENTRY)
def differentiate(worker, state, stack, parameters, deltas, scratch, gradient, flat, d_samples):
    """Gradients of a loss, from those at the outputs of evaluate(): of the parameters, float32 [P], and of the samples,
    float32 [B * inputs], where stack.input_delta says that they are wanted.

    deltas: as samples in evaluate(). scratch: as evaluate() left it. gradient: float32, room for one a part.
    """
    if worker == 0:
        publish(state, stack.parts)
    while True:
        part = claim(state, worker)
        while part >= 0:
            _backward(stack, parameters, deltas, scratch, gradient, d_samples, U(part))
            finished(state)
            part = claim(state, worker)
        if worker == 0 or dismissed(state):
            break
        rest()
    if worker == 0:
        wait(state)
        dismiss(state)
        for p in range(_1, stack.parts):
            add(gradient[_0], gradient[p], _0, U(len(gradient[_0])))
        flatten_gradient(stack.layers, gradient[_0], flat)
