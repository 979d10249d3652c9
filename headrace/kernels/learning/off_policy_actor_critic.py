"""The whole learning calls of SAC, TD3 and DDPG compiled: aims, critics, actor, temperature, Adam and targets.

A gradient step is a handful of tasks, of whose parts threads claim one after another (kernels.runtime.work_queue): a
part is
a block of 64 samples on its way through several networks, or a chunk of weights that moves along its gradient.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.learning.off_policy_arguments import (
    ACTOR_EPS,
    ACTOR_SCALE,
    ACTOR_TAU,
    CRITICS_EPS,
    CRITICS_SCALE,
    METRICS,
    TAU,
    TEMPERATURE,
)
from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.adam_step import scales
from headrace.kernels.nn.amx import processor_has_tiles
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, store, total
from headrace.kernels.nn.split_bf16 import close_tiles, open_tiles
from headrace.kernels.nn.stepwise import backward, forward, lay_piece, learn_piece, move, turn
from headrace.kernels.nn.vector_math import exp, log, tanh
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import claim, dismiss, dismissed, finished, publish, rest, wait

F, U = np.float32, np.uint64
_0, _1, _2 = U(0), U(1), U(2)
_ZERO, _ONE, _TWO = F(0), F(1), F(2)
_CONSTANT = F(0.5 * math.log(2 * math.pi) + 2 * math.log(2))
_LOG_STD_MIN, _LOG_STD_MAX = F(-20), F(2)
LAY, LOOK, DIFFERENTIATE, MOVE_CRITICS, IMPROVE, MOVE_ACTOR = range(6)  # tasks
_HAS_TILES = processor_has_tiles()
_TASK, _BATCH = _0, _1  # places in Job.task


@njit(**INNER)
def _copy(target, t, source, s, count):
    for i in range(_0, count, WIDTH):
        store(target, t + i, load(source, s + i))


@njit(**INNER)
def _rows(job):
    """Places aside in a block's scratch: spread, free, log_prob, aim."""
    spread = job.extra_rows
    free = spread + job.actions * BLOCK
    return spread, free, free + job.actions * BLOCK, free + (job.actions + _1) * BLOCK


@njit(**INNER)
def _act(job, scratch, normal):
    """Actions of a block whose actor went forward: into its inputs, with what their slopes are made of aside."""
    output, (spread, free, log_prob, _) = job.actor[U(len(job.actor)) - _1, col.OUTPUT], _rows(job)
    for i in range(_0, BLOCK, WIDTH):
        density = splat(_ZERO)
        for k in range(_0, job.actions):
            row = k * BLOCK + i
            x = load(scratch, output + row)
            if job.stochastic:
                raw, draw = (
                    load(scratch, output + (job.actions + k) * BLOCK + i),
                    load(job.batches.normal, normal + row),
                )
                log_std = select(raw > _LOG_STD_MAX, splat(_LOG_STD_MAX), raw)
                log_std = select(log_std < _LOG_STD_MIN, splat(_LOG_STD_MIN), log_std)
                moved = exp(log_std) * draw
                x = x + moved
                store(scratch, spread + row, moved)
                store(scratch, free + row, select(raw == log_std, splat(_ONE), splat(_ZERO)))
                size = select(x < _ZERO, _ZERO - x, x)
                slope = size + log(exp(size * F(-2)) + _ONE)  # log(e^x + e^-x); tanh's slope is 4 / its square
                density = density + (slope * _TWO - log_std - draw * draw * F(0.5) - _CONSTANT)
            store(scratch, job.features * BLOCK + row, tanh(x))
        store(scratch, log_prob + i, density)


@njit(**INNER)
def _smooth(job, scratch, normal):
    """Noise on the actions of a block, within the bounds."""
    for i in range(_0, job.actions * BLOCK, WIDTH):
        at = job.features * BLOCK + i
        x = load(scratch, at) + load(job.batches.normal, normal + i)
        x = select(x > _ONE, splat(_ONE), x)
        store(scratch, at, select(x < -_ONE, splat(-_ONE), x))


@njit(**INNER)
def _values(job, scratch, parameters, words, critics):
    """Let the first critics go forward; their last layer's outputs are its values."""
    for c in range(_0, critics):
        forward(job.critics[c], parameters, words, scratch)


@njit(**INNER)
def _lowest(job, scratch, critics, i):
    value = load(scratch, job.critics[_0, -1, col.OUTPUT] + i)
    for c in range(_1, critics):
        other = load(scratch, job.critics[c, -1, col.OUTPUT] + i)
        value = select(other < value, other, value)
    return value


@njit(**INNER)
def _look(job, b, worker):
    """The aims of a block."""
    critics, scratch = U(len(job.critics)), job.scratch[job.blocks + worker]
    at = U(job.task[_BATCH]) * job.blocks + b
    _copy(scratch, _0, job.batches.next_observation, at * job.features * BLOCK, job.features * BLOCK)
    if job.stochastic:
        forward(job.actor, job.actor_weights.parameters, job.actor_weights.packed, scratch)
    else:
        forward(job.actor, job.actor_weights.target, job.actor_weights.packed_target, scratch)
    normal = (U(job.task[_BATCH]) * _2 * job.blocks + b) * job.actions * BLOCK
    _act(job, scratch, normal)
    if not job.stochastic:
        _smooth(job, scratch, normal)
    _values(job, scratch, job.critic_weights.target, job.critic_weights.packed_target, critics)
    _, _, log_prob, aim = _rows(job)
    for i in range(_0, BLOCK, WIDTH):
        value, row = _lowest(job, scratch, critics, i), at * BLOCK + i
        if job.stochastic:
            value = value - load(scratch, log_prob + i) * job.numbers[TEMPERATURE]
        store(job.scratch[b], aim + i, fma(load(job.batches.discount, row), value, load(job.batches.reward, row)))
    own = job.scratch[b]  # what critics and actor are to learn from
    _copy(own, _0, job.batches.observation, at * job.features * BLOCK, job.features * BLOCK)
    _copy(own, job.features * BLOCK, job.batches.action, at * job.actions * BLOCK, job.actions * BLOCK)


@njit(**INNER)
def _differentiate(job, part):
    """Deltas of one critic in one block, and its loss."""
    c, b = part // job.blocks, part % job.blocks
    scratch, chain, weights = job.scratch[b], job.critics[c], job.critic_weights
    forward(chain, weights.parameters, weights.packed, scratch)
    output, delta, aim = chain[-1, col.OUTPUT], chain[-1, col.OUTPUT_GRAD], _rows(job)[3]
    loss, row = splat(_ZERO), (U(job.task[_BATCH]) * job.blocks + b) * BLOCK
    for i in range(_0, BLOCK, WIDTH):
        error = load(scratch, output + i) - load(scratch, aim + i)
        slope = error * load(job.batches.loss_weight, row + i)
        loss = fma(error, slope, loss)
        store(scratch, delta + i, slope if job.stochastic else slope * _TWO)
    job.sums[part, _0] = total(loss)
    backward(chain, weights.parameters, weights.packed, scratch, _1)
    turn(chain, scratch, weights.packed, b, job.blocks)


@njit(**INNER)
def _judge(job, b, own, scratch):
    """What critics say of the actor's actions in a block: deltas at the actions, and the loss.

    own: the block's scratch, whose actor went forward; scratch: room for the critics."""
    batch, critics = U(job.task[_BATCH]), U(len(job.critics)) if job.stochastic else _1
    _copy(scratch, _0, own, _0, (job.features + job.actions) * BLOCK)
    _values(job, scratch, job.critic_weights.parameters, job.critic_weights.packed, critics)
    log_prob = _rows(job)[2]
    loss, entropy, shares, row = splat(_ZERO), splat(_ZERO), splat(_ZERO), (batch * job.blocks + b) * BLOCK
    for i in range(_0, BLOCK, WIDTH):
        share, value, number = load(job.batches.loss_weight, row + i), _lowest(job, scratch, critics, i), splat(_ZERO)
        for c in range(_0, critics):
            number = number + select(
                load(scratch, job.critics[c, -1, col.OUTPUT] + i) == value, splat(_ONE), splat(_ZERO)
            )
        for c in range(_0, critics):
            mine = load(scratch, job.critics[c, -1, col.OUTPUT] + i) == value
            store(scratch, job.critics[c, -1, col.OUTPUT_GRAD] + i, select(mine, share / number, splat(_ZERO)))
        density = load(own, log_prob + i)
        loss = fma(density * job.numbers[TEMPERATURE] - value, share, loss)
        entropy, shares = fma(density, share, entropy), shares + share
    sums = job.sums[U(len(job.critics)) * job.blocks + b]
    sums[_0], sums[_1], sums[_2] = total(loss), total(entropy), total(shares)
    for c in range(_0, critics):
        backward(job.critics[c], job.critic_weights.parameters, job.critic_weights.packed, scratch, _0)
    return critics, row


@njit(**INNER)
def _improve(job, b, worker):
    """The actor's deltas in a block, and its loss."""
    own, scratch, last = job.scratch[b], job.scratch[job.blocks + worker], U(len(job.actor)) - _1
    normal = (U(job.task[_BATCH]) * _2 * job.blocks + job.blocks + b) * job.actions * BLOCK
    weights = job.actor_weights
    forward(job.actor, weights.parameters, weights.packed, own)
    _act(job, own, normal)
    critics, row = _judge(job, b, own, scratch)
    delta, (spread, free, _, _) = job.actor[last, col.OUTPUT_GRAD], _rows(job)
    for k in range(_0, job.actions):
        for i in range(_0, BLOCK, WIDTH):
            at, slope = k * BLOCK + i, splat(_ZERO)
            for c in range(_0, critics):
                slope = slope + load(scratch, job.critics[c, _0, col.SOURCE_GRAD] + job.features * BLOCK + at)
            action = load(own, job.features * BLOCK + at)
            slope = slope * (action * action - _ONE)
            if job.stochastic:
                weight = load(job.batches.loss_weight, row + i) * job.numbers[TEMPERATURE]
                slope = fma(weight * _TWO, action, slope)
                through = (slope * load(own, spread + at) - weight) * load(own, free + at)
                store(own, delta + (job.actions + k) * BLOCK + i, through)
            store(own, delta + at, slope)
    backward(job.actor, weights.parameters, weights.packed, own, _1)
    turn(job.actor, own, weights.packed, b, job.blocks)


@njit(**INNER)
def _scale(numbers, place):
    return numbers[place], numbers[place + _1], numbers[place + _2]


@njit(**INNER)
def _move(job, critics, part, room):
    """Move a piece of the critics' or the actor's weights."""
    number, n, first = job.critic_chunks[part] if critics else job.actor_chunks[part]
    chain = job.critics[number] if critics else job.actor
    weights = job.critic_weights if critics else job.actor_weights
    scale = _scale(job.numbers, CRITICS_SCALE if critics else ACTOR_SCALE)
    eps, tau = job.numbers[CRITICS_EPS if critics else ACTOR_EPS], job.numbers[TAU if critics else ACTOR_TAU]
    learn_piece(chain, n, first, job.scratch[: job.blocks], room, weights, scale, eps, tau)


@njit(**INNER)
def _lay(job, part):
    """Lay a piece of the weights, the critics' first, and the target's."""
    critics = part < U(len(job.critic_chunks))
    number, n, first = job.critic_chunks[part] if critics else job.actor_chunks[part - U(len(job.critic_chunks))]
    chain = job.critics[number] if critics else job.actor
    weights = job.critic_weights if critics else job.actor_weights
    lay_piece(chain, n, first, weights.parameters, weights.packed, True)
    if critics or not job.stochastic:  # SAC's actor has no target
        lay_piece(chain, n, first, weights.target, weights.packed_target, False)


@njit(**INNER)
def _work(job, state, worker):
    """Do parts of the task that is on, until none is left."""
    mine = claim(state, worker)
    while mine >= 0:
        part, task = U(mine), job.task[_TASK]
        if task == LOOK:
            _look(job, part, U(worker))
        elif task == DIFFERENTIATE:
            _differentiate(job, part)
        elif task == IMPROVE:
            _improve(job, part, U(worker))
        elif task == LAY:
            _lay(job, part)
        else:
            _move(job, task == MOVE_CRITICS, part, job.gradient_scratch[U(worker)])
        finished(state)
        mine = claim(state, worker)


@njit(**INNER)
def _do(job, state, task, parts):
    """The leader's: a task from its beginning to its end."""
    job.task[_TASK] = task
    publish(state, parts)
    _work(job, state, 0)
    wait(state)


@njit(**INNER)
def _put(job, place, scale):
    job.numbers[place], job.numbers[place + _1], job.numbers[place + _2] = scale


@njit(**INNER)
def _sum(job, first, count, column):
    found = _ZERO
    for row in range(first, first + count):
        found += job.sums[row, column]
    return found


@njit(**INNER)
def _temper(job, g, settings, temperature, metrics, first):
    """Move the temperature's logarithm; eq. 18 of SAC's paper, with that in the temperature's place."""
    surplus = _sum(job, first, job.blocks, _1) + F(settings.target_entropy) * _sum(job, first, job.blocks, _2)
    metrics[g * U(METRICS) + _2] = job.numbers[TEMPERATURE]
    metrics[g * U(METRICS) + U(3)] = -temperature.parameters[_0] * surplus
    if settings.learn_temperature:
        slope = job.gradient_scratch[_0]
        slope[_0] = -surplus
        scale = scales(0.0, settings.temperature_steps + np.float64(g) + 1.0, settings.temperature_rate, 1.0)
        move(temperature, _0, slope, _0, _1, scale, F(settings.temperature_eps), _ZERO)


@njit(**INNER)
def _lead(job, state, settings, temperature, metrics):
    """All gradient steps, one task after another."""
    critics, loss, taken = U(len(job.critics)) * job.blocks, _ZERO, 0
    if job.tiled:  # others may have moved the weights since the last call
        _do(job, state, LAY, U(len(job.critic_chunks) + len(job.actor_chunks)))
    for g in range(_0, U(len(metrics)) // U(METRICS)):
        improves = (settings.since + np.int64(g) + 1) % settings.delay == 0
        job.task[_BATCH] = np.int64(g)
        job.numbers[TEMPERATURE] = F(math.exp(temperature.parameters[_0])) if job.stochastic else _ZERO
        _put(job, CRITICS_SCALE, scales(0.0, settings.critics_steps + np.float64(g) + 1.0, settings.critics_rate, 1.0))
        job.numbers[TAU] = F(settings.tau) if improves else _ZERO
        _do(job, state, LOOK, job.blocks)
        _do(job, state, DIFFERENTIATE, critics)
        _do(job, state, MOVE_CRITICS, U(len(job.critic_chunks)))
        metrics[g * U(METRICS) + _1] = _sum(job, _0, critics, _0) * (F(0.5) if job.stochastic else _ONE)
        if improves:
            taken += 1
            _put(job, ACTOR_SCALE, scales(0.0, settings.actor_steps + taken, settings.actor_rate, 1.0))
            job.numbers[ACTOR_TAU] = _ZERO if job.stochastic else F(settings.tau)
            _do(job, state, IMPROVE, job.blocks)
            _do(job, state, MOVE_ACTOR, U(len(job.actor_chunks)))
            loss = _sum(job, critics, job.blocks, _0)
        metrics[g * U(METRICS)] = loss
        if job.stochastic:
            _temper(job, g, settings, temperature, metrics, critics)


@njit(**ENTRY)
def learn(worker, state, job, settings, temperature, metrics):
    """A gradient step on each of the batches; metrics: float32 [G * METRICS].

    worker, state: as in headrace.kernels.learning.ppo.learn. temperature: Weights of its logarithm."""
    if _HAS_TILES and job.tiled:
        open_tiles()
    if worker == 0:
        _lead(job, state, settings, temperature, metrics)
        dismiss(state)
    else:
        while not dismissed(state):
            rest()
            _work(job, state, worker)
    if _HAS_TILES and job.tiled:
        close_tiles()
