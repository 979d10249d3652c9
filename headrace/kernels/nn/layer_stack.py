"""A stack of dense layers on a whole batch, forward and backward, for torch's autograd.

Both calls share their blocks of 64 samples among threads in a number of parts that the batch's size alone decides, each
part with a gradient of its own: results do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.activations import keeps_derivative
from headrace.kernels.nn.dense import add, clear, whole_vectors
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.mlp import backward, flatten_gradient, forward
from headrace.kernels.nn.simd import load, store
from headrace.kernels.runtime.jit import ENTRY, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import single_task

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


@njit(**INNER)
def _copy(scratch, start, kept, at, count, saving):
    """Between scratch[start] and kept[at] on; returns where the next ones are kept. count: a multiple of 16."""
    for i in range(_0, count, WIDTH):
        if saving:
            store(kept, at + i, load(scratch, start + i))
        else:
            store(scratch, start + i, load(kept, at + i))
    return at + count


@njit(**INNER)
def _keep(stack, scratch, kept, saving):
    """Copy what backward() reads of forward() from a worker's scratch, which stays in its core's cache, to a block's
    own memory, a third as large, or back."""
    at = _copy(scratch, _0, kept, _0, stack.inputs * BLOCK, saving)
    for n in range(_0, U(len(stack.layers))):
        size = stack.layers[n, col.OUTPUTS] * BLOCK
        at = _copy(scratch, stack.layers[n, col.OUTPUT], kept, at, size, saving)
        if keeps_derivative(stack.layers[n, col.ACTIVATION]):
            at = _copy(scratch, stack.layers[n, col.ACTIVATION_GRAD], kept, at, size, saving)
        if stack.layers[n, col.NORM] != col.NOWHERE:
            at = _copy(scratch, stack.layers[n, col.NORMALIZED], kept, at, size + BLOCK, saving)


@njit(**INNER)
def _forward(part, worker, arguments):
    """The outputs of a part of the batch."""
    stack, parameters, samples, outputs, scratch, kept = arguments
    mine = scratch[worker]
    count, keep, parts = stack.samples, stack.keep, stack.parts
    blocks = (count + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        first = block * BLOCK
        size = min(BLOCK, count - first)
        lanes = BLOCK if keep else whole_vectors(size)
        _read(samples, first, size, stack.inputs, mine, _0)
        forward(stack.layers, parameters, mine, lanes)
        _write(mine, stack.output, first, size, stack.outputs, outputs)
        if keep:
            _keep(stack, mine, kept[block], True)


@njit(**INNER)
def _backward(part, worker, arguments):
    """The gradient of a part of the batch."""
    stack, parameters, grads, scratch, kept, gradients, grad_samples = arguments
    mine, gradient = scratch[worker], gradients[part]
    count, parts = stack.samples, stack.parts
    blocks = (count + BLOCK - _1) // BLOCK
    clear(gradient, _0, U(len(gradient)))
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        first = block * BLOCK
        size = min(BLOCK, count - first)
        _keep(stack, mine, kept[block], False)
        _read(grads, first, size, stack.outputs, mine, stack.output_grad)
        backward(stack.layers, stack.transposed, parameters, mine, gradient)
        if stack.input_grad != col.NOWHERE:
            _write(mine, stack.input_grad, first, size, stack.inputs, grad_samples)


_run_forward, _run_backward = single_task(_forward), single_task(_backward)


@njit(**ENTRY)
def evaluate(worker, state, stack, parameters, samples, outputs, scratch, kept):
    """Outputs float32 [B * outputs] of a batch.

    worker, state: see kernels.runtime.thread_pool. stack: layout.StackArguments. parameters: float32
    [P]. samples: (float32, stride from a sample to the next, from a feature to the next). scratch: float32, a row for
    each worker. kept: float32, where stack.keep a row for each block, which differentiate() reads.
    """
    _run_forward(worker, state, stack.parts, (stack, parameters, samples, outputs, scratch, kept))


@njit(**ENTRY)
def differentiate(worker, state, stack, parameters, grads, scratch, kept, gradient, flat, grad_samples):
    """Gradients of a loss, from those at the outputs of evaluate(): of the parameters, float32 [P], and of the samples,
    float32 [B * inputs], where stack.input_grad is not NOWHERE.

    grads: as samples in evaluate(). kept: as evaluate() left it. gradient: float32, a row for each part.
    """
    _run_backward(worker, state, stack.parts, (stack, parameters, grads, scratch, kept, gradient, grad_samples))
    if worker == 0:
        for p in range(_1, stack.parts):
            add(gradient[_0], gradient[p], _0, U(len(gradient[_0])))
        flatten_gradient(stack.layers, gradient[_0], flat)
