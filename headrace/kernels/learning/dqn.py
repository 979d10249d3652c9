"""The whole learning call of DQN compiled: TD targets, loss, backward pass, clipping, Adam and target updates.

A minibatch is often a single block of 64 samples: threads share the rows of each layer (kernels.runtime.work_queue).
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn import stepwise
from headrace.kernels.nn.adam_step import load_scale, scales, store_scale
from headrace.kernels.nn.dense import copy
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, store
from headrace.kernels.nn.stepwise_layout import CHUNK_ROWS
from headrace.kernels.nn.vector_math import clamp
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import close, work_loop

F, U = np.float32, np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_ZERO, _ONE = F(0), F(1)
TARGETS, FORWARD, BACKWARD, WEIGHT_GRADIENT, ADAM = range(5)  # tasks
_TASK, _BATCH, _LAYER, _FIRST = _0, _1, _2, _3  # indices in DQNArguments.task


@njit(**INNER)
def _chunks(rows):
    return (rows + CHUNK_ROWS - _1) // CHUNK_ROWS


@njit(**INNER)
def _target_values(arguments, part, worker):
    """The target network's values of a block of next observations."""
    scratch, size = arguments.scratch[_2 * arguments.blocks + worker], arguments.features * BLOCK
    at = U(arguments.task[_FIRST]) * arguments.blocks + part
    copy(scratch, _0, arguments.next_observation, at * size, size)
    stepwise.forward(arguments.layers, arguments.weights.target, arguments.weights.packed_target, scratch)
    values = arguments.actions * BLOCK
    copy(arguments.target_values, part * values, scratch, arguments.layers[-1, col.OUTPUT], values)


@njit(**INNER)
def _backward(arguments, part, n):
    """Rows of the gradient at layer n's source in a block; the parts after these transpose the layer's factor."""
    chunks = _chunks(arguments.layers[n, col.INPUTS])
    if part < chunks * arguments.blocks:
        scratch, row = arguments.scratch[part // chunks], part % chunks * CHUNK_ROWS
        stepwise.backward_rows(arguments.layers, n, arguments.weights.parameters, scratch, row)
    else:
        stepwise.transpose_factor(arguments.layers, n, arguments.scratch[part - chunks * arguments.blocks])


@njit(**INNER)
def _work(part, worker, arguments):
    """Do a part of the current task."""
    task, n = arguments.task[_TASK], U(arguments.task[_LAYER])
    if task == TARGETS:
        _target_values(arguments, part, worker)
    elif task == FORWARD:
        chunks = _chunks(arguments.layers[n, col.OUTPUTS])
        scratch, row = arguments.scratch[part // chunks], part % chunks * CHUNK_ROWS
        stepwise.forward_rows(arguments.layers, n, arguments.weights.parameters, scratch, row)
    elif task == BACKWARD:
        _backward(arguments, part, n)
    else:
        _, layer, first = arguments.chunks[part]
        if task == WEIGHT_GRADIENT:
            blocks, buffer = arguments.scratch[: arguments.blocks], arguments.gradient_scratch[worker]
            arguments.sums[part] = stepwise.chunk_gradient(
                arguments.layers, layer, first, blocks, buffer, arguments.gradient
            )
        else:
            scale, eps = load_scale(arguments.numbers, _0), arguments.numbers[_3]
            stepwise.chunk_step(arguments.layers, layer, first, arguments.gradient, arguments.weights, scale, eps)


_run_task, _serve = work_loop(_work)


@njit(**INNER)
def _run(arguments, state, task, layer, parts):
    """Run a task to its end. Main thread only."""
    arguments.task[_TASK], arguments.task[_LAYER] = task, np.int64(layer)
    _run_task(state, parts, arguments)


@njit(**INNER)
def _best(arguments, next_values, block, i):
    """The value of the next actions: the target network's largest, or (double DQN, van Hasselt et al. 2016) its value
    of the action that the network prefers. Ties: the first."""
    value = load(arguments.target_values, next_values + i)
    if arguments.double:
        output = arguments.layers[-1, col.OUTPUT]
        top = load(arguments.scratch[block], output + i)
        for k in range(_1, arguments.actions):
            own = load(arguments.scratch[block], output + k * BLOCK + i)
            value = select(own > top, load(arguments.target_values, next_values + k * BLOCK + i), value)
            top = select(own > top, own, top)
        return value
    for k in range(_1, arguments.actions):
        other = load(arguments.target_values, next_values + k * BLOCK + i)
        value = select(other > value, other, value)
    return value


@njit(**INNER)
def _loss(arguments, g):
    """TD errors of a minibatch, and the gradient of their Huber loss at the values of the actions taken: -weight *
    error, error clipped to +-1."""
    output, grad_output = arguments.layers[-1, col.OUTPUT], arguments.layers[-1, col.OUTPUT_GRAD]
    for b in range(_0, arguments.blocks):
        scratch, row = arguments.scratch[b], (g * arguments.blocks + b) * BLOCK
        next_values = ((g - U(arguments.task[_FIRST])) * arguments.blocks + b) * arguments.actions * BLOCK
        for i in range(_0, BLOCK, WIDTH):
            at, action, value = row + i, load(arguments.action, row + i), splat(_ZERO)
            for k in range(_0, arguments.actions):
                value = select(action == F(k), load(scratch, output + k * BLOCK + i), value)
            best = _best(arguments, next_values, arguments.blocks + b, i)
            target = fma(load(arguments.discount, at), best, load(arguments.reward, at))
            error = target - value
            store(arguments.value, at, value), store(arguments.error, at, error)
            grad = clamp(error, -_ONE, _ONE) * load(arguments.loss_weight, at) * F(-1)
            for k in range(_0, arguments.actions):
                store(scratch, grad_output + k * BLOCK + i, select(action == F(k), grad, splat(_ZERO)))


@njit(**INNER)
def _differentiate(arguments, state, g):
    """The gradient of a minibatch's loss; returns the sum of its squares."""
    layers, blocks = U(len(arguments.layers)), arguments.blocks * (_2 if arguments.double else _1)
    for b in range(_0, arguments.blocks):
        size, at = arguments.features * BLOCK, (g * arguments.blocks + b) * arguments.features * BLOCK
        copy(arguments.scratch[b], _0, arguments.observation, at, size)
        if arguments.double:
            copy(arguments.scratch[arguments.blocks + b], _0, arguments.next_observation, at, size)
    for n in range(_0, layers):
        _run(arguments, state, FORWARD, n, blocks * _chunks(arguments.layers[n, col.OUTPUTS]))
    _loss(arguments, g)
    for back in range(_0, layers):
        layer = layers - _1 - back
        for b in range(_0, arguments.blocks):
            stepwise.pull_back(arguments.layers, layer, arguments.scratch[b])
            if layer == _0:
                stepwise.transpose_factor(arguments.layers, layer, arguments.scratch[b])
        if layer:
            chunks = _chunks(arguments.layers[layer, col.INPUTS])
            _run(arguments, state, BACKWARD, layer, arguments.blocks * (chunks + _1))
    _run(arguments, state, WEIGHT_GRADIENT, _0, U(len(arguments.chunks)))
    found = _ZERO
    for part in range(_0, U(len(arguments.chunks))):
        found += arguments.sums[part]
    return found


@njit(**INNER)
def _update_target(arguments, tau):
    """target += tau * (parameters - target); an exact copy for tau = 1."""
    left = _ONE - tau
    for i in range(len(arguments.weights.target)):
        x = arguments.weights.parameters[i]
        arguments.weights.target[i] = x - (x - arguments.weights.target[i]) * left


@njit(**ENTRY)
def learn(worker, state, arguments, settings, update, lookahead):
    """A gradient step on each minibatch. update: float32 [G], the tau of the target update after each, or 0.

    worker, state: as in kernels.learning.rollouts.learn. lookahead: minibatches whose target values are computed at
    once.
    """
    if worker != 0:
        _serve(worker, state, arguments)
        return
    known, steps = _0, U(len(update))
    for g in range(_0, steps):
        if g == known:
            arguments.task[_FIRST] = np.int64(g)
            while known < steps and known - g < U(lookahead) and (known == g or update[known - _1] == _ZERO):
                known += _1
            _run(arguments, state, TARGETS, _0, (known - g) * arguments.blocks)
        squares = _differentiate(arguments, state, g)
        norm, step = math.sqrt(squares), settings.steps + np.float64(g) + 1.0
        scale = scales(norm, step, settings.learning_rate, settings.max_norm)
        store_scale(arguments.numbers, _0, scale)
        _run(arguments, state, ADAM, _0, U(len(arguments.chunks)))
        if update[g] != _ZERO:
            _update_target(arguments, update[g])
    close(state)
