"""The whole learning calls of SAC, TD3 and DDPG compiled: TD targets, critics, actor, temperature, Adam and targets.

A gradient step is a handful of tasks whose parts threads weight (kernels.runtime.work_queue): a part is a block of 64
samples in the passes grad_log_std several networks, or a weight chunk with its gradient and Adam step.
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
from headrace.kernels.nn.dense import copy
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, store, total
from headrace.kernels.nn.split_bf16 import close_tiles, open_tiles
from headrace.kernels.nn.stepwise import (
    adam_with_target,
    backward,
    backward_and_step,
    forward,
    pack_chunk,
    prepare_gradient,
)
from headrace.kernels.nn.vector_math import exp, log, tanh
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import close, work_loop

F, U = np.float32, np.uint64
_0, _1, _2 = U(0), U(1), U(2)
_ZERO, _ONE, _TWO = F(0), F(1), F(2)
_CONSTANT = F(0.5 * math.log(2 * math.pi) + 2 * math.log(2))
_LOG_STD_MIN, _LOG_STD_MAX = F(-20), F(2)
PACK, TD_TARGETS, CRITICS, CRITICS_STEP, ACTOR, ACTOR_STEP = range(6)  # tasks
_HAS_TILES = processor_has_tiles()
_TASK, _BATCH = _0, _1  # indices in OffPolicyArguments.task


@njit(**INNER)
def _rows(job):
    """Offsets of the extra rows in a block's scratch: spread, unclamped, log_prob, TD target."""
    spread = job.extra_rows
    unclamped = spread + job.actions * BLOCK
    return spread, unclamped, unclamped + job.actions * BLOCK, unclamped + (job.actions + _1) * BLOCK


@njit(**INNER)
def _act(job, scratch, normal):
    """Actions of a block after the actor's forward pass, into the critics' inputs; what their gradients need, into the
    extra rows.

    SAC: u = mean + e^log_std * normal, action = tanh(u), log_prob = sum of -normal^2 / 2 - log_std - log(2 pi) / 2
    - log(1 - tanh(u)^2), the last as 2 log 2 - 2 log(e^u + e^-u).
    """
    output, (spread, unclamped, log_prob, _) = job.actor[U(len(job.actor)) - _1, col.OUTPUT], _rows(job)
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
                spread_draw = exp(log_std) * draw
                x = x + spread_draw
                store(scratch, spread + row, spread_draw)
                store(scratch, unclamped + row, select(raw == log_std, splat(_ONE), splat(_ZERO)))
                size = select(x < _ZERO, _ZERO - x, x)
                grad = size + log(exp(size * F(-2)) + _ONE)  # log(e^x + e^-x); 1 - tanh(x)^2 = 4 / (e^x + e^-x)^2
                density = density + (grad * _TWO - log_std - draw * draw * F(0.5) - _CONSTANT)
            store(scratch, job.features * BLOCK + row, tanh(x))
        store(scratch, log_prob + i, density)


@njit(**INNER)
def _smooth(job, scratch, normal):
    """Add target policy smoothing noise to a block's actions, clipped to the bounds. Fujimoto et al. 2018, eq. 14."""
    for i in range(_0, job.actions * BLOCK, WIDTH):
        at = job.features * BLOCK + i
        x = load(scratch, at) + load(job.batches.normal, normal + i)
        x = select(x > _ONE, splat(_ONE), x)
        store(scratch, at, select(x < -_ONE, splat(-_ONE), x))


@njit(**INNER)
def _values(job, scratch, parameters, packed, critics):
    """Forward passes of the first critics; the outputs of their last layers are the values."""
    for c in range(_0, critics):
        forward(job.critics[c], parameters, packed, scratch)


@njit(**INNER)
def _lowest(job, scratch, critics, i):
    value = load(scratch, job.critics[_0, -1, col.OUTPUT] + i)
    for c in range(_1, critics):
        other = load(scratch, job.critics[c, -1, col.OUTPUT] + i)
        value = select(other < value, other, value)
    return value


@njit(**INNER)
def _td_targets(job, b, worker):
    """TD targets of a block: reward + discount * (lowest target critic, for SAC - temperature * log_prob)."""
    critics, scratch = U(len(job.critics)), job.scratch[job.blocks + worker]
    at = U(job.task[_BATCH]) * job.blocks + b
    copy(scratch, _0, job.batches.next_observation, at * job.features * BLOCK, job.features * BLOCK)
    if job.stochastic:
        forward(job.actor, job.actor_weights.parameters, job.actor_weights.packed, scratch)
    else:
        forward(job.actor, job.actor_weights.target, job.actor_weights.packed_target, scratch)
    normal = (U(job.task[_BATCH]) * _2 * job.blocks + b) * job.actions * BLOCK
    _act(job, scratch, normal)
    if not job.stochastic:
        _smooth(job, scratch, normal)
    _values(job, scratch, job.critic_weights.target, job.critic_weights.packed_target, critics)
    _, _, log_prob, target = _rows(job)
    for i in range(_0, BLOCK, WIDTH):
        value, row = _lowest(job, scratch, critics, i), at * BLOCK + i
        if job.stochastic:
            value = value - load(scratch, log_prob + i) * job.numbers[TEMPERATURE]
        store(job.scratch[b], target + i, fma(load(job.batches.discount, row), value, load(job.batches.reward, row)))
    own = job.scratch[b]  # the inputs of critics and actor
    copy(own, _0, job.batches.observation, at * job.features * BLOCK, job.features * BLOCK)
    copy(own, job.features * BLOCK, job.batches.action, at * job.actions * BLOCK, job.actions * BLOCK)


@njit(**INNER)
def _critic_forward_backward(job, part):
    """Forward and backward pass of one critic in one block, and its loss, the mean of error^2 (SAC: / 2)."""
    c, b = part // job.blocks, part % job.blocks
    scratch, layers, weights = job.scratch[b], job.critics[c], job.critic_weights
    forward(layers, weights.parameters, weights.packed, scratch)
    output, grad_output, target = layers[-1, col.OUTPUT], layers[-1, col.OUTPUT_GRAD], _rows(job)[3]
    loss, row = splat(_ZERO), (U(job.task[_BATCH]) * job.blocks + b) * BLOCK
    for i in range(_0, BLOCK, WIDTH):
        error = load(scratch, output + i) - load(scratch, target + i)
        grad = error * load(job.batches.loss_weight, row + i)
        loss = fma(error, grad, loss)
        store(scratch, grad_output + i, grad if job.stochastic else grad * _TWO)
    job.sums[part, _0] = total(loss)
    backward(layers, weights.parameters, weights.packed, scratch, _1)
    prepare_gradient(layers, scratch, weights.packed, b, job.blocks)


@njit(**INNER)
def _critic_gradient(job, b, own, scratch):
    """Gradients of the lowest critic at the actor's actions in a block, and the actor's loss, the mean of temperature *
    log_prob - value. Critics with equal values weight the gradient.

    own: the block's scratch, after the actor's forward pass; scratch: for the critics."""
    batch, critics = U(job.task[_BATCH]), U(len(job.critics)) if job.stochastic else _1
    copy(scratch, _0, own, _0, (job.features + job.actions) * BLOCK)
    _values(job, scratch, job.critic_weights.parameters, job.critic_weights.packed, critics)
    log_prob = _rows(job)[2]
    loss, entropy, weights_sum, row = splat(_ZERO), splat(_ZERO), splat(_ZERO), (batch * job.blocks + b) * BLOCK
    for i in range(_0, BLOCK, WIDTH):
        weight, value, number = load(job.batches.loss_weight, row + i), _lowest(job, scratch, critics, i), splat(_ZERO)
        for c in range(_0, critics):
            number = number + select(
                load(scratch, job.critics[c, -1, col.OUTPUT] + i) == value, splat(_ONE), splat(_ZERO)
            )
        for c in range(_0, critics):
            mine = load(scratch, job.critics[c, -1, col.OUTPUT] + i) == value
            store(scratch, job.critics[c, -1, col.OUTPUT_GRAD] + i, select(mine, weight / number, splat(_ZERO)))
        density = load(own, log_prob + i)
        loss = fma(density * job.numbers[TEMPERATURE] - value, weight, loss)
        entropy, weights_sum = fma(density, weight, entropy), weights_sum + weight
    sums = job.sums[U(len(job.critics)) * job.blocks + b]
    sums[_0], sums[_1], sums[_2] = total(loss), total(entropy), total(weights_sum)
    for c in range(_0, critics):
        backward(job.critics[c], job.critic_weights.parameters, job.critic_weights.packed, scratch, _0)
    return critics, row


@njit(**INNER)
def _actor_backward(job, b, worker):
    """The actor's backward pass in a block, and its loss.

    With w the loss weight, a = tanh(u): grad_u = -dq/da (1 - a^2) + 2 w temperature a (SAC); grad_log_std = grad_u *
    (u - mean) - w temperature, 0 where log_std is clamped.
    """
    own, scratch, last = job.scratch[b], job.scratch[job.blocks + worker], U(len(job.actor)) - _1
    normal = (U(job.task[_BATCH]) * _2 * job.blocks + job.blocks + b) * job.actions * BLOCK
    weights = job.actor_weights
    forward(job.actor, weights.parameters, weights.packed, own)
    _act(job, own, normal)
    critics, row = _critic_gradient(job, b, own, scratch)
    grad_output, (spread, unclamped, _, _) = job.actor[last, col.OUTPUT_GRAD], _rows(job)
    for k in range(_0, job.actions):
        for i in range(_0, BLOCK, WIDTH):
            at, grad = k * BLOCK + i, splat(_ZERO)
            for c in range(_0, critics):
                grad = grad + load(scratch, job.critics[c, _0, col.SOURCE_GRAD] + job.features * BLOCK + at)
            action = load(own, job.features * BLOCK + at)
            grad = grad * (action * action - _ONE)
            if job.stochastic:
                weight = load(job.batches.loss_weight, row + i) * job.numbers[TEMPERATURE]
                grad = fma(weight * _TWO, action, grad)
                grad_log_std = (grad * load(own, spread + at) - weight) * load(own, unclamped + at)
                store(own, grad_output + (job.actions + k) * BLOCK + i, grad_log_std)
            store(own, grad_output + at, grad)
    backward(job.actor, weights.parameters, weights.packed, own, _1)
    prepare_gradient(job.actor, own, weights.packed, b, job.blocks)


@njit(**INNER)
def _scale(numbers, index):
    return numbers[index], numbers[index + _1], numbers[index + _2]


@njit(**INNER)
def _adam_step(job, critics, part, buffer):
    """Gradient and Adam step of a weight chunk of the critics or the actor."""
    number, n, first = job.critic_chunks[part] if critics else job.actor_chunks[part]
    layers = job.critics[number] if critics else job.actor
    weights = job.critic_weights if critics else job.actor_weights
    scale = _scale(job.numbers, CRITICS_SCALE if critics else ACTOR_SCALE)
    eps, tau = job.numbers[CRITICS_EPS if critics else ACTOR_EPS], job.numbers[TAU if critics else ACTOR_TAU]
    backward_and_step(layers, n, first, job.scratch[: job.blocks], buffer, weights, scale, eps, tau)


@njit(**INNER)
def _pack_weights(job, part):
    """Pack a chunk of the weights, the critics' first, and of the target's."""
    critics = part < U(len(job.critic_chunks))
    number, n, first = job.critic_chunks[part] if critics else job.actor_chunks[part - U(len(job.critic_chunks))]
    layers = job.critics[number] if critics else job.actor
    weights = job.critic_weights if critics else job.actor_weights
    pack_chunk(layers, n, first, weights.parameters, weights.packed, True)
    if critics or not job.stochastic:  # SAC's actor has no target
        pack_chunk(layers, n, first, weights.target, weights.packed_target, False)


@njit(**INNER)
def _work(part, worker, job):
    """Do a part of the current task."""
    task = job.task[_TASK]
    if task == TD_TARGETS:
        _td_targets(job, part, worker)
    elif task == CRITICS:
        _critic_forward_backward(job, part)
    elif task == ACTOR:
        _actor_backward(job, part, worker)
    elif task == PACK:
        _pack_weights(job, part)
    else:
        _adam_step(job, task == CRITICS_STEP, part, job.gradient_scratch[worker])


_run_task, _serve = work_loop(_work)


@njit(**INNER)
def _run(job, state, task, parts):
    """Run a task to its end. Main thread only."""
    job.task[_TASK] = task
    _run_task(state, parts, job)


@njit(**INNER)
def _put(job, index, scale):
    job.numbers[index], job.numbers[index + _1], job.numbers[index + _2] = scale


@njit(**INNER)
def _sum(job, first, count, column):
    found = _ZERO
    for row in range(first, first + count):
        found += job.sums[row, column]
    return found


@njit(**INNER)
def _temperature_step(job, g, settings, temperature, metrics, first):
    """Adam step of the temperature's logarithm: the gradient is -(mean log_prob + target_entropy). Haarnoja et al.
    2018, arXiv:1812.05905, eq. 18, with the logarithm in index of the temperature."""
    entropy_error = _sum(job, first, job.blocks, _1) + F(settings.target_entropy) * _sum(job, first, job.blocks, _2)
    metrics[g * U(METRICS) + _2] = job.numbers[TEMPERATURE]
    metrics[g * U(METRICS) + U(3)] = -temperature.parameters[_0] * entropy_error
    if settings.learn_temperature:
        grad = job.gradient_scratch[_0]
        grad[_0] = -entropy_error
        scale = scales(0.0, settings.temperature_steps + np.float64(g) + 1.0, settings.temperature_rate, 1.0)
        adam_with_target(temperature, _0, grad, _0, _1, scale, F(settings.temperature_eps), _ZERO)


@njit(**INNER)
def _gradient_steps(job, state, settings, temperature, metrics):
    """All gradient steps, one task after another. Main thread only."""
    critics, loss, taken = U(len(job.critics)) * job.blocks, _ZERO, 0
    if job.tiled:  # others may have spread_draw the weights since the last call
        _run(job, state, PACK, U(len(job.critic_chunks) + len(job.actor_chunks)))
    for g in range(_0, U(len(metrics)) // U(METRICS)):
        actor_too = (settings.since + np.int64(g) + 1) % settings.delay == 0
        job.task[_BATCH] = np.int64(g)
        job.numbers[TEMPERATURE] = F(math.exp(temperature.parameters[_0])) if job.stochastic else _ZERO
        _put(job, CRITICS_SCALE, scales(0.0, settings.critics_steps + np.float64(g) + 1.0, settings.critics_rate, 1.0))
        job.numbers[TAU] = F(settings.tau) if actor_too else _ZERO
        _run(job, state, TD_TARGETS, job.blocks)
        _run(job, state, CRITICS, critics)
        _run(job, state, CRITICS_STEP, U(len(job.critic_chunks)))
        metrics[g * U(METRICS) + _1] = _sum(job, _0, critics, _0) * (F(0.5) if job.stochastic else _ONE)
        if actor_too:
            taken += 1
            _put(job, ACTOR_SCALE, scales(0.0, settings.actor_steps + taken, settings.actor_rate, 1.0))
            job.numbers[ACTOR_TAU] = _ZERO if job.stochastic else F(settings.tau)
            _run(job, state, ACTOR, job.blocks)
            _run(job, state, ACTOR_STEP, U(len(job.actor_chunks)))
            loss = _sum(job, critics, job.blocks, _0)
        metrics[g * U(METRICS)] = loss
        if job.stochastic:
            _temperature_step(job, g, settings, temperature, metrics, critics)


@njit(**ENTRY)
def learn(worker, state, job, settings, temperature, metrics):
    """A gradient step on each of the batches; metrics: float32 [G * METRICS].

    worker, state: as in headrace.kernels.learning.ppo.learn. temperature: Weights of its logarithm."""
    if _HAS_TILES and job.tiled:
        open_tiles()
    if worker == 0:
        _gradient_steps(job, state, settings, temperature, metrics)
        close(state)
    else:
        _serve(worker, state, job)
    if _HAS_TILES and job.tiled:
        close_tiles()
