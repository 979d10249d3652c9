"""The whole learning call of DQN compiled: aims, loss, backward pass, clipping, Adam and the target's moves.

A minibatch is often a single block of 64 samples: threads share the rows of each layer (kernels.runtime.work_queue).
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.adam_step import scales
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, store
from headrace.kernels.nn.stepwise import (
    backward_rows,
    differentiate_piece,
    forward,
    forward_rows,
    move_piece,
    pull,
    turn_layer,
)
from headrace.kernels.nn.stepwise_layout import CHUNK_ROWS
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import claim, dismiss, dismissed, finished, publish, rest, wait

F, U = np.float32, np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_ZERO, _ONE = F(0), F(1)
AIM, FORWARD, BACKWARD, GRADIENT, MOVE = range(5)  # tasks
_TASK, _BATCH, _LAYER, _FIRST = _0, _1, _2, _3  # places in Job.task


@njit(**INNER)
def _copy(target, t, source, s, count):
    for i in range(_0, count, WIDTH):
        store(target, t + i, load(source, s + i))


@njit(**INNER)
def _chunks(rows):
    return (rows + CHUNK_ROWS - _1) // CHUNK_ROWS


@njit(**INNER)
def _aim(job, part, worker):
    """What the target says of a block of next observations."""
    scratch, size = job.scratch[_2 * job.blocks + worker], job.features * BLOCK
    at = U(job.task[_FIRST]) * job.blocks + part
    _copy(scratch, _0, job.next_observation, at * size, size)
    forward(job.layers, job.weights.target, job.weights.packed_target, scratch)
    values = job.actions * BLOCK
    _copy(job.target_values, part * values, scratch, job.layers[-1, col.OUTPUT], values)


@njit(**INNER)
def _backward(job, part, n):
    """A chunk of the slopes below layer n in a block; or, as the parts after these, what turns a layer's source."""
    chunks = _chunks(job.layers[n, col.INPUTS])
    if part < chunks * job.blocks:
        backward_rows(job.layers, n, job.weights.parameters, job.scratch[part // chunks], part % chunks * CHUNK_ROWS)
    else:
        turn_layer(job.layers, n, job.scratch[part - chunks * job.blocks])


@njit(**INNER)
def _work(job, state, worker):
    """Do parts of the task that is on, until none is left."""
    mine = claim(state, worker)
    while mine >= 0:
        part, task, n = U(mine), job.task[_TASK], U(job.task[_LAYER])
        if task == AIM:
            _aim(job, part, U(worker))
        elif task == FORWARD:
            chunks = _chunks(job.layers[n, col.OUTPUTS])
            forward_rows(job.layers, n, job.weights.parameters, job.scratch[part // chunks], part % chunks * CHUNK_ROWS)
        elif task == BACKWARD:
            _backward(job, part, n)
        else:
            _, layer, first = job.chunks[part]
            if task == GRADIENT:
                scratch, room = job.scratch[: job.blocks], job.gradient_scratch[U(worker)]
                job.sums[part] = differentiate_piece(job.layers, layer, first, scratch, room, job.gradient)
            else:
                scale = job.numbers[_0], job.numbers[_1], job.numbers[_2]
                move_piece(job.layers, layer, first, job.gradient, job.weights, scale, job.numbers[_3])
        finished(state)
        mine = claim(state, worker)


@njit(**INNER)
def _do(job, state, task, layer, parts):
    """The leader's: a task from its beginning to its end."""
    job.task[_TASK], job.task[_LAYER] = task, np.int64(layer)
    publish(state, parts)
    _work(job, state, 0)
    wait(state)


@njit(**INNER)
def _best(job, coming, block, i):
    """The value of the next actions: the target's best, or what it says of the network's choice. Ties: the first."""
    value = load(job.target_values, coming + i)
    if job.double:
        output = job.layers[-1, col.OUTPUT]
        top = load(job.scratch[block], output + i)
        for k in range(_1, job.actions):
            own = load(job.scratch[block], output + k * BLOCK + i)
            value = select(own > top, load(job.target_values, coming + k * BLOCK + i), value)
            top = select(own > top, own, top)
        return value
    for k in range(_1, job.actions):
        other = load(job.target_values, coming + k * BLOCK + i)
        value = select(other > value, other, value)
    return value


@njit(**INNER)
def _loss(job, g):
    """Errors of a minibatch, and the slopes of their Huber loss in the values of the actions taken."""
    output, delta = job.layers[-1, col.OUTPUT], job.layers[-1, col.OUTPUT_GRAD]
    for b in range(_0, job.blocks):
        scratch, row = job.scratch[b], (g * job.blocks + b) * BLOCK
        coming = ((g - U(job.task[_FIRST])) * job.blocks + b) * job.actions * BLOCK
        for i in range(_0, BLOCK, WIDTH):
            at, action, value = row + i, load(job.action, row + i), splat(_ZERO)
            for k in range(_0, job.actions):
                value = select(action == F(k), load(scratch, output + k * BLOCK + i), value)
            aim = fma(load(job.discount, at), _best(job, coming, job.blocks + b, i), load(job.reward, at))
            error = aim - value
            store(job.value, at, value), store(job.error, at, error)
            slope = select(error > _ONE, splat(_ONE), error)
            slope = select(slope < -_ONE, splat(-_ONE), slope) * load(job.loss_weight, at) * F(-1)
            for k in range(_0, job.actions):
                store(scratch, delta + k * BLOCK + i, select(action == F(k), slope, splat(_ZERO)))


@njit(**INNER)
def _differentiate(job, state, g):
    """The gradient of a minibatch's loss; gives the sum of its squares."""
    layers, blocks = U(len(job.layers)), job.blocks * (_2 if job.double else _1)
    for b in range(_0, job.blocks):
        size, at = job.features * BLOCK, (g * job.blocks + b) * job.features * BLOCK
        _copy(job.scratch[b], _0, job.observation, at, size)
        if job.double:
            _copy(job.scratch[job.blocks + b], _0, job.next_observation, at, size)
    for n in range(_0, layers):
        _do(job, state, FORWARD, n, blocks * _chunks(job.layers[n, col.OUTPUTS]))
    _loss(job, g)
    for back in range(_0, layers):
        layer = layers - _1 - back
        for b in range(_0, job.blocks):
            pull(job.layers, layer, job.scratch[b])
            if layer == _0:
                turn_layer(job.layers, layer, job.scratch[b])
        if layer:
            _do(job, state, BACKWARD, layer, job.blocks * (_chunks(job.layers[layer, col.INPUTS]) + _1))
    _do(job, state, GRADIENT, _0, U(len(job.chunks)))
    found = _ZERO
    for part in range(_0, U(len(job.chunks))):
        found += job.sums[part]
    return found


@njit(**INNER)
def _follow(job, share):
    """Move the target the share of the way to the network: all the way exactly, for 1."""
    left = _ONE - share
    for i in range(len(job.weights.target)):
        x = job.weights.parameters[i]
        job.weights.target[i] = x - (x - job.weights.target[i]) * left


@njit(**ENTRY)
def learn(worker, state, job, settings, follow, together):
    """A gradient step on each minibatch. follow: float32 [G], the share of the way that the target goes after each.

    worker, state: as in kernels.learning.ppo.learn. together: minibatches of which the target is asked at once.
    """
    if worker != 0:
        while not dismissed(state):
            rest()
            _work(job, state, worker)
        return
    known, steps = _0, U(len(follow))
    for g in range(_0, steps):
        if g == known:
            job.task[_FIRST] = np.int64(g)
            while known < steps and known - g < U(together) and (known == g or follow[known - _1] == _ZERO):
                known += _1
            _do(job, state, AIM, _0, (known - g) * job.blocks)
        squares = _differentiate(job, state, g)
        norm, step = math.sqrt(squares), settings.steps + np.float64(g) + 1.0
        scale = scales(norm, step, settings.learning_rate, settings.max_norm)
        job.numbers[_0], job.numbers[_1], job.numbers[_2] = scale
        _do(job, state, MOVE, _0, U(len(job.chunks)))
        if follow[g] != _ZERO:
            _follow(job, follow[g])
    dismiss(state)
