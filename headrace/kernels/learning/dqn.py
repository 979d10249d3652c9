"""The whole learning call of DQN compiled: TD targets, loss, backward pass, clipping, Adam and target updates.

A minibatch is often a single block of 64 samples: threads share the rows of each layer (kernels.runtime.work_queue).
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.adam_step import scales
from headrace.kernels.nn.dense import copy
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, store
from headrace.kernels.nn.stepwise import (
    backward_rows,
    chunk_gradient,
    chunk_step,
    forward,
    forward_rows,
    pull_back,
    transpose_factor,
)
from headrace.kernels.nn.stepwise_layout import CHUNK_ROWS
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
def _target_values(job, part, worker):
    """The target network's values of a block of next observations."""
    scratch, size = job.scratch[_2 * job.blocks + worker], job.features * BLOCK
    at = U(job.task[_FIRST]) * job.blocks + part
    copy(scratch, _0, job.next_observation, at * size, size)
    forward(job.layers, job.weights.target, job.weights.packed_target, scratch)
    values = job.actions * BLOCK
    copy(job.target_values, part * values, scratch, job.layers[-1, col.OUTPUT], values)


@njit(**INNER)
def _backward(job, part, n):
    """Rows of the gradient at layer n's source in a block; the parts after these transpose the layer's factor."""
    chunks = _chunks(job.layers[n, col.INPUTS])
    if part < chunks * job.blocks:
        backward_rows(job.layers, n, job.weights.parameters, job.scratch[part // chunks], part % chunks * CHUNK_ROWS)
    else:
        transpose_factor(job.layers, n, job.scratch[part - chunks * job.blocks])


@njit(**INNER)
def _work(part, worker, job):
    """Do a part of the current task."""
    task, n = job.task[_TASK], U(job.task[_LAYER])
    if task == TARGETS:
        _target_values(job, part, worker)
    elif task == FORWARD:
        chunks = _chunks(job.layers[n, col.OUTPUTS])
        forward_rows(job.layers, n, job.weights.parameters, job.scratch[part // chunks], part % chunks * CHUNK_ROWS)
    elif task == BACKWARD:
        _backward(job, part, n)
    else:
        _, layer, first = job.chunks[part]
        if task == WEIGHT_GRADIENT:
            scratch, buffer = job.scratch[: job.blocks], job.gradient_scratch[worker]
            job.sums[part] = chunk_gradient(job.layers, layer, first, scratch, buffer, job.gradient)
        else:
            scale = job.numbers[_0], job.numbers[_1], job.numbers[_2]
            chunk_step(job.layers, layer, first, job.gradient, job.weights, scale, job.numbers[_3])


_run_task, _serve = work_loop(_work)


@njit(**INNER)
def _run(job, state, task, layer, parts):
    """Run a task to its end. Main thread only."""
    job.task[_TASK], job.task[_LAYER] = task, np.int64(layer)
    _run_task(state, parts, job)


@njit(**INNER)
def _best(job, following, block, i):
    """The value of the next actions: the target network's largest, or (double DQN, van Hasselt et al. 2016) its value
    of the action that the network prefers. Ties: the first."""
    value = load(job.target_values, following + i)
    if job.double:
        output = job.layers[-1, col.OUTPUT]
        top = load(job.scratch[block], output + i)
        for k in range(_1, job.actions):
            own = load(job.scratch[block], output + k * BLOCK + i)
            value = select(own > top, load(job.target_values, following + k * BLOCK + i), value)
            top = select(own > top, own, top)
        return value
    for k in range(_1, job.actions):
        other = load(job.target_values, following + k * BLOCK + i)
        value = select(other > value, other, value)
    return value


@njit(**INNER)
def _loss(job, g):
    """TD errors of a minibatch, and the gradient of their Huber loss at the values of the actions taken: -weight *
    error, error clipped to +-1."""
    output, grad_output = job.layers[-1, col.OUTPUT], job.layers[-1, col.OUTPUT_GRAD]
    for b in range(_0, job.blocks):
        scratch, row = job.scratch[b], (g * job.blocks + b) * BLOCK
        following = ((g - U(job.task[_FIRST])) * job.blocks + b) * job.actions * BLOCK
        for i in range(_0, BLOCK, WIDTH):
            at, action, value = row + i, load(job.action, row + i), splat(_ZERO)
            for k in range(_0, job.actions):
                value = select(action == F(k), load(scratch, output + k * BLOCK + i), value)
            target = fma(load(job.discount, at), _best(job, following, job.blocks + b, i), load(job.reward, at))
            error = target - value
            store(job.value, at, value), store(job.error, at, error)
            grad = select(error > _ONE, splat(_ONE), error)
            grad = select(grad < -_ONE, splat(-_ONE), grad) * load(job.loss_weight, at) * F(-1)
            for k in range(_0, job.actions):
                store(scratch, grad_output + k * BLOCK + i, select(action == F(k), grad, splat(_ZERO)))


@njit(**INNER)
def _differentiate(job, state, g):
    """The gradient of a minibatch's loss; returns the sum of its squares."""
    layers, blocks = U(len(job.layers)), job.blocks * (_2 if job.double else _1)
    for b in range(_0, job.blocks):
        size, at = job.features * BLOCK, (g * job.blocks + b) * job.features * BLOCK
        copy(job.scratch[b], _0, job.observation, at, size)
        if job.double:
            copy(job.scratch[job.blocks + b], _0, job.next_observation, at, size)
    for n in range(_0, layers):
        _run(job, state, FORWARD, n, blocks * _chunks(job.layers[n, col.OUTPUTS]))
    _loss(job, g)
    for back in range(_0, layers):
        layer = layers - _1 - back
        for b in range(_0, job.blocks):
            pull_back(job.layers, layer, job.scratch[b])
            if layer == _0:
                transpose_factor(job.layers, layer, job.scratch[b])
        if layer:
            _run(job, state, BACKWARD, layer, job.blocks * (_chunks(job.layers[layer, col.INPUTS]) + _1))
    _run(job, state, WEIGHT_GRADIENT, _0, U(len(job.chunks)))
    found = _ZERO
    for part in range(_0, U(len(job.chunks))):
        found += job.sums[part]
    return found


@njit(**INNER)
def _update_target(job, tau):
    """target += tau * (parameters - target); an exact copy for tau = 1."""
    left = _ONE - tau
    for i in range(len(job.weights.target)):
        x = job.weights.parameters[i]
        job.weights.target[i] = x - (x - job.weights.target[i]) * left


@njit(**ENTRY)
def learn(worker, state, job, settings, update, lookahead):
    """A gradient step on each minibatch. update: float32 [G], the tau of the target update after each, or 0.

    worker, state: as in kernels.learning.ppo.learn. lookahead: minibatches whose target values are computed at once.
    """
    if worker != 0:
        _serve(worker, state, job)
        return
    known, steps = _0, U(len(update))
    for g in range(_0, steps):
        if g == known:
            job.task[_FIRST] = np.int64(g)
            while known < steps and known - g < U(lookahead) and (known == g or update[known - _1] == _ZERO):
                known += _1
            _run(job, state, TARGETS, _0, (known - g) * job.blocks)
        squares = _differentiate(job, state, g)
        norm, step = math.sqrt(squares), settings.steps + np.float64(g) + 1.0
        scale = scales(norm, step, settings.learning_rate, settings.max_norm)
        job.numbers[_0], job.numbers[_1], job.numbers[_2] = scale
        _run(job, state, ADAM, _0, U(len(job.chunks)))
        if update[g] != _ZERO:
            _update_target(job, update[g])
    close(state)
