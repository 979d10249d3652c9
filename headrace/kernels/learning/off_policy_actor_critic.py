"""The whole learning calls of SAC, TD3 and DDPG compiled: TD targets, critics, actor, temperature, Adam and targets.

A gradient step is a few tasks whose parts threads share (kernels.runtime.work_queue): a part is a block of 64 samples
in the passes through several networks, or a weight chunk with its gradient and Adam step.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.learning import off_policy_arguments as slots
from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn import stepwise
from headrace.kernels.nn.adam_step import BETA2, load_scale, scales, store_scale
from headrace.kernels.nn.amx import processor_has_tiles
from headrace.kernels.nn.dense import copy
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, store, total
from headrace.kernels.nn.split_bf16 import close_tiles, open_tiles
from headrace.kernels.nn.vector_math import clamp, exp, log, minimum, tanh
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
def _rows(arguments):
    """Offsets of the extra rows in a block's scratch: noise, unclamped, log_prob, TD target."""
    noise = arguments.extra_rows
    unclamped = noise + arguments.actions * BLOCK
    return noise, unclamped, unclamped + arguments.actions * BLOCK, unclamped + (arguments.actions + _1) * BLOCK


@njit(**INNER)
def _act(arguments, scratch, normal):
    """Actions of a block after the actor's forward pass, into the critics' inputs; what their gradients need, into the
    extra rows.

    SAC: u = mean + e^log_std * normal, action = tanh(u), log_prob = sum of -normal^2 / 2 - log_std - log(2 pi) / 2
    - log(1 - tanh(u)^2), the last as 2 log 2 - 2 log(e^u + e^-u).
    """
    output, (noises, unclamped, log_prob, _) = arguments.actor[-1, col.OUTPUT], _rows(arguments)
    for i in range(_0, BLOCK, WIDTH):
        density = splat(_ZERO)
        for k in range(_0, arguments.actions):
            row = k * BLOCK + i
            x = load(scratch, output + row)
            if arguments.stochastic:
                raw = load(scratch, output + (arguments.actions + k) * BLOCK + i)
                draw = load(arguments.batches.normal, normal + row)
                log_std = clamp(raw, _LOG_STD_MIN, _LOG_STD_MAX)
                noise = exp(log_std) * draw
                x = x + noise
                store(scratch, noises + row, noise)
                store(scratch, unclamped + row, select(raw == log_std, splat(_ONE), splat(_ZERO)))
                size = select(x < _ZERO, _ZERO - x, x)
                log_sum = size + log(exp(size * F(-2)) + _ONE)  # log(e^x + e^-x); 1 - tanh(x)^2 = 4 / (e^x + e^-x)^2
                density = density + (log_sum * _TWO - log_std - draw * draw * F(0.5) - _CONSTANT)
            store(scratch, arguments.features * BLOCK + row, tanh(x))
        store(scratch, log_prob + i, density)


@njit(**INNER)
def _smooth(arguments, scratch, normal):
    """Add target policy smoothing noise to a block's actions, clipped to the bounds. Fujimoto et al. 2018, eq. 14."""
    for i in range(_0, arguments.actions * BLOCK, WIDTH):
        at = arguments.features * BLOCK + i
        store(scratch, at, clamp(load(scratch, at) + load(arguments.batches.normal, normal + i), -_ONE, _ONE))


@njit(**INNER)
def _values(arguments, scratch, parameters, packed, critics):
    """Forward passes of the first critics; the outputs of their last layers are the values."""
    for c in range(_0, critics):
        stepwise.forward(arguments.critics[c], parameters, packed, scratch)


@njit(**INNER)
def _lowest(arguments, scratch, critics, i):
    value = load(scratch, arguments.critics[_0, -1, col.OUTPUT] + i)
    for c in range(_1, critics):
        value = minimum(value, load(scratch, arguments.critics[c, -1, col.OUTPUT] + i))
    return value


@njit(**INNER)
def _td_targets(arguments, b, worker):
    """TD targets of a block: reward + discount * (lowest target critic, for SAC - temperature * log_prob)."""
    critics, scratch = U(len(arguments.critics)), arguments.scratch[arguments.blocks + worker]
    at = U(arguments.task[_BATCH]) * arguments.blocks + b
    batches, size, action_size = arguments.batches, arguments.features * BLOCK, arguments.actions * BLOCK
    copy(scratch, _0, batches.next_observation, at * size, size)
    weights = arguments.actor_weights
    if arguments.stochastic:
        stepwise.forward(arguments.actor, weights.parameters, weights.packed, scratch)
    else:
        stepwise.forward(arguments.actor, weights.target, weights.packed_target, scratch)
    normal = (U(arguments.task[_BATCH]) * _2 * arguments.blocks + b) * action_size
    _act(arguments, scratch, normal)
    if not arguments.stochastic:
        _smooth(arguments, scratch, normal)
    _values(arguments, scratch, arguments.critic_weights.target, arguments.critic_weights.packed_target, critics)
    own, (_, _, log_prob, target) = arguments.scratch[b], _rows(arguments)
    for i in range(_0, BLOCK, WIDTH):
        value, row = _lowest(arguments, scratch, critics, i), at * BLOCK + i
        if arguments.stochastic:
            value = value - load(scratch, log_prob + i) * arguments.numbers[slots.TEMPERATURE]
        store(own, target + i, fma(load(batches.discount, row), value, load(batches.reward, row)))
    copy(own, _0, batches.observation, at * size, size)  # the inputs of critics and actor
    copy(own, size, batches.action, at * action_size, action_size)


@njit(**INNER)
def _critic_forward_backward(arguments, part):
    """Forward and backward pass of one critic in one block, and its loss, the mean of error^2 (SAC: / 2)."""
    c, b = part // arguments.blocks, part % arguments.blocks
    scratch, layers, weights = arguments.scratch[b], arguments.critics[c], arguments.critic_weights
    stepwise.forward(layers, weights.parameters, weights.packed, scratch)
    output, grad_output, target = layers[-1, col.OUTPUT], layers[-1, col.OUTPUT_GRAD], _rows(arguments)[3]
    loss, row = splat(_ZERO), (U(arguments.task[_BATCH]) * arguments.blocks + b) * BLOCK
    for i in range(_0, BLOCK, WIDTH):
        error = load(scratch, output + i) - load(scratch, target + i)
        grad = error * load(arguments.batches.loss_weight, row + i)
        loss = fma(error, grad, loss)
        store(scratch, grad_output + i, grad if arguments.stochastic else grad * _TWO)
    arguments.sums[part, _0] = total(loss)
    stepwise.backward(layers, weights.parameters, weights.packed, scratch, _1)
    stepwise.prepare_gradient(layers, scratch, weights.packed, b, arguments.blocks)


@njit(**INNER)
def _critic_gradient(arguments, b, own, scratch):
    """Gradients of the lowest critic at the actor's actions in a block, and the actor's loss, the mean of temperature *
    log_prob - value. Critics with equal values share the gradient.

    own: the block's scratch, after the actor's forward pass; scratch: for the critics."""
    batch, critics = U(arguments.task[_BATCH]), U(len(arguments.critics)) if arguments.stochastic else _1
    copy(scratch, _0, own, _0, (arguments.features + arguments.actions) * BLOCK)
    weights = arguments.critic_weights
    _values(arguments, scratch, weights.parameters, weights.packed, critics)
    log_prob = _rows(arguments)[2]
    loss, entropy, weights_sum, row = splat(_ZERO), splat(_ZERO), splat(_ZERO), (batch * arguments.blocks + b) * BLOCK
    for i in range(_0, BLOCK, WIDTH):
        weight, number = load(arguments.batches.loss_weight, row + i), splat(_ZERO)
        value = _lowest(arguments, scratch, critics, i)
        for c in range(_0, critics):
            mine = load(scratch, arguments.critics[c, -1, col.OUTPUT] + i) == value
            number = number + select(mine, splat(_ONE), splat(_ZERO))
        for c in range(_0, critics):
            mine = load(scratch, arguments.critics[c, -1, col.OUTPUT] + i) == value
            store(scratch, arguments.critics[c, -1, col.OUTPUT_GRAD] + i, select(mine, weight / number, splat(_ZERO)))
        density = load(own, log_prob + i)
        loss = fma(density * arguments.numbers[slots.TEMPERATURE] - value, weight, loss)
        entropy, weights_sum = fma(density, weight, entropy), weights_sum + weight
    sums = arguments.sums[U(len(arguments.critics)) * arguments.blocks + b]
    sums[_0], sums[_1], sums[_2] = total(loss), total(entropy), total(weights_sum)
    for c in range(_0, critics):
        stepwise.backward(arguments.critics[c], weights.parameters, weights.packed, scratch, _0)
    return critics, row


@njit(**INNER)
def _actor_backward(arguments, b, worker):
    """The actor's backward pass in a block, and its loss.

    With w the loss weight, a = tanh(u): grad_u = -dq/da (1 - a^2) + 2 w temperature a (SAC); grad_log_std = grad_u *
    (u - mean) - w temperature, 0 where log_std is clamped. With INVERT grad_u = -dq/da where that leads away from the
    bounds, as in headrace.policies.actor_q.InvertedTanh.
    """
    own, scratch = arguments.scratch[b], arguments.scratch[arguments.blocks + worker]
    normal = (U(arguments.task[_BATCH]) * _2 * arguments.blocks + arguments.blocks + b) * arguments.actions * BLOCK
    weights = arguments.actor_weights
    stepwise.forward(arguments.actor, weights.parameters, weights.packed, own)
    _act(arguments, own, normal)
    critics, row = _critic_gradient(arguments, b, own, scratch)
    grad_output, (noises, unclamped, _, _) = arguments.actor[-1, col.OUTPUT_GRAD], _rows(arguments)
    for k in range(_0, arguments.actions):
        for i in range(_0, BLOCK, WIDTH):
            at, grad = k * BLOCK + i, splat(_ZERO)
            for c in range(_0, critics):
                grad = grad + load(scratch, arguments.critics[c, _0, col.SOURCE_GRAD] + arguments.features * BLOCK + at)
            action = load(own, arguments.features * BLOCK + at)
            slope = _ONE - action * action
            if arguments.numbers[slots.INVERT] > _ZERO:
                slope = select(grad * action < _ZERO, splat(_ONE), slope)
            grad = _ZERO - grad * slope
            if arguments.stochastic:
                weight = load(arguments.batches.loss_weight, row + i) * arguments.numbers[slots.TEMPERATURE]
                grad = fma(weight * _TWO, action, grad)
                grad_log_std = (grad * load(own, noises + at) - weight) * load(own, unclamped + at)
                store(own, grad_output + (arguments.actions + k) * BLOCK + i, grad_log_std)
            store(own, grad_output + at, grad)
    stepwise.backward(arguments.actor, weights.parameters, weights.packed, own, _1)
    stepwise.prepare_gradient(arguments.actor, own, weights.packed, b, arguments.blocks)


@njit(**INNER)
def _chunk(arguments, critics, part):
    """(layers, number of the layer, first row, weights) of a weight chunk of the critics or the actor."""
    number, n, first = arguments.critic_chunks[part] if critics else arguments.actor_chunks[part]
    layers = arguments.critics[number] if critics else arguments.actor
    return layers, n, first, arguments.critic_weights if critics else arguments.actor_weights


@njit(**INNER)
def _adam_step(arguments, critics, part, buffer):
    """Gradient and Adam step of a weight chunk of the critics or the actor."""
    layers, n, first, weights = _chunk(arguments, critics, part)
    numbers = arguments.numbers
    scale = load_scale(numbers, slots.CRITICS_SCALE if critics else slots.ACTOR_SCALE)
    eps = numbers[slots.CRITICS_EPS if critics else slots.ACTOR_EPS]
    tau, blocks = numbers[slots.TAU if critics else slots.ACTOR_TAU], arguments.scratch[: arguments.blocks]
    stepwise.backward_and_step(layers, n, first, blocks, buffer, weights, scale, eps, tau)


@njit(**INNER)
def _pack_weights(arguments, part):
    """Pack a chunk of the weights, the critics' first, and of the target's."""
    critics = part < U(len(arguments.critic_chunks))
    layers, n, first, weights = _chunk(arguments, critics, part if critics else part - U(len(arguments.critic_chunks)))
    stepwise.pack_chunk(layers, n, first, weights.parameters, weights.packed, True)
    if critics or not arguments.stochastic:  # SAC's actor has no target
        stepwise.pack_chunk(layers, n, first, weights.target, weights.packed_target, False)


@njit(**INNER)
def _work(part, worker, arguments):
    """Do a part of the current task."""
    task = arguments.task[_TASK]
    if task == TD_TARGETS:
        _td_targets(arguments, part, worker)
    elif task == CRITICS:
        _critic_forward_backward(arguments, part)
    elif task == ACTOR:
        _actor_backward(arguments, part, worker)
    elif task == PACK:
        _pack_weights(arguments, part)
    else:
        _adam_step(arguments, task == CRITICS_STEP, part, arguments.gradient_scratch[worker])


_run_task, _serve = work_loop(_work)


@njit(**INNER)
def _run(arguments, state, task, parts):
    """Run a task to its end. Main thread only."""
    arguments.task[_TASK] = task
    _run_task(state, parts, arguments)


@njit(**INNER)
def _sum(arguments, first, count, column):
    found = _ZERO
    for row in range(first, first + count):
        found += arguments.sums[row, column]
    return found


@njit(**INNER)
def _temperature_step(arguments, g, settings, temperature, metrics, first):
    """Adam step of the temperature's logarithm: the gradient is -(mean log_prob + target_entropy). Haarnoja et al.
    2018, arXiv:1812.05905, eq. 18, with the logarithm in index of the temperature."""
    log_prob, weight = _sum(arguments, first, arguments.blocks, _1), _sum(arguments, first, arguments.blocks, _2)
    entropy_error = log_prob + F(settings.target_entropy) * weight
    metrics[g * U(slots.METRICS) + _2] = arguments.numbers[slots.TEMPERATURE]
    metrics[g * U(slots.METRICS) + U(3)] = -temperature.parameters[_0] * entropy_error
    if settings.learn_temperature:
        grad = arguments.gradient_scratch[_0]
        grad[_0] = -entropy_error
        scale = scales(0.0, settings.temperature_steps + np.float64(g) + 1.0, settings.temperature_rate, 1.0, BETA2)
        stepwise.adam_with_target(temperature, _0, grad, _0, _1, scale, F(settings.temperature_eps), _ZERO)


@njit(**INNER)
def _gradient_steps(arguments, state, settings, temperature, metrics):
    """All gradient steps, one task after another. Main thread only."""
    numbers = arguments.numbers
    numbers[slots.INVERT] = F(settings.invert_gradients)
    critics, loss, taken = U(len(arguments.critics)) * arguments.blocks, _ZERO, 0
    if arguments.tiled:  # others may have written the weights since the last call
        _run(arguments, state, PACK, U(len(arguments.critic_chunks) + len(arguments.actor_chunks)))
    for g in range(_0, U(len(metrics)) // U(slots.METRICS)):
        actor_too = (settings.since + np.int64(g) + 1) % settings.delay == 0
        arguments.task[_BATCH] = np.int64(g)
        numbers[slots.TEMPERATURE] = F(math.exp(temperature.parameters[_0])) if arguments.stochastic else _ZERO
        step = settings.critics_steps + np.float64(g) + 1.0
        store_scale(numbers, slots.CRITICS_SCALE, scales(0.0, step, settings.critics_rate, 1.0, BETA2))
        numbers[slots.TAU] = F(settings.tau) if actor_too else _ZERO
        _run(arguments, state, TD_TARGETS, arguments.blocks)
        _run(arguments, state, CRITICS, critics)
        _run(arguments, state, CRITICS_STEP, U(len(arguments.critic_chunks)))
        half = F(0.5) if arguments.stochastic else _ONE
        metrics[g * U(slots.METRICS) + _1] = _sum(arguments, _0, critics, _0) * half
        if actor_too:
            taken += 1
            store_scale(
                numbers, slots.ACTOR_SCALE, scales(0.0, settings.actor_steps + taken, settings.actor_rate, 1.0, BETA2)
            )
            numbers[slots.ACTOR_TAU] = _ZERO if arguments.stochastic else F(settings.tau)
            _run(arguments, state, ACTOR, arguments.blocks)
            _run(arguments, state, ACTOR_STEP, U(len(arguments.actor_chunks)))
            loss = _sum(arguments, critics, arguments.blocks, _0)
        metrics[g * U(slots.METRICS)] = loss
        if arguments.stochastic:
            _temperature_step(arguments, g, settings, temperature, metrics, critics)


@njit(**ENTRY)
def learn(worker, state, arguments, settings, temperature, metrics):
    """A gradient step on each of the batches; metrics: float32 [G * METRICS].

    worker, state: as in headrace.kernels.learning.rollouts.learn. temperature: Weights of its logarithm."""
    if _HAS_TILES and arguments.tiled:
        open_tiles()
    if worker == 0:
        _gradient_steps(arguments, state, settings, temperature, metrics)
        close(state)
    else:
        _serve(worker, state, arguments)
    if _HAS_TILES and arguments.tiled:
        close_tiles()
