"""The whole learning calls of SAC, TQC, TD3 and DDPG compiled: TD targets, critics, actor, temperature, Adam and
target networks.

A gradient step is a few tasks whose parts threads share (kernels.runtime.work_queue): a part is a block of 64 samples
in a pass through the actor or one of the critics, or a weight chunk with its gradient and Adam step. Passes through
different critics are different parts, ordered by critic, as weight chunks are: of two threads each keeps to one critic,
whose weights then stay in its cache.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn import stepwise
from headrace.kernels.nn.adam_step import BETA2, load_scale, scales, store_scale
from headrace.kernels.nn.amx import processor_has_tiles
from headrace.kernels.nn.dense import copy
from headrace.kernels.nn.layout import BLOCK
from headrace.kernels.nn.split_bf16 import close_tiles, open_tiles
from headrace.kernels.off_policy import off_policy_arguments as slots
from headrace.kernels.off_policy.actor_losses import (
    act,
    actor_gradient,
    actor_loss,
    noise_of,
    place_of,
    smooth,
    temperature_step,
    total_of,
)
from headrace.kernels.off_policy.critic_losses import critic_loss, judges, outputs_of, truncated_targets, value_gradient
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import close, work_loop

F, U = np.float32, np.uint64
_0, _1, _2 = U(0), U(1), U(2)
_ZERO = F(0)
# tasks, in the order of a gradient step; TARGETS are TQC's
PACK, NEXT_ACTIONS, NEXT_VALUES, TARGETS, CRITICS, CRITICS_STEP = range(6)
ACTIONS, VALUES, VALUES_BACKWARD, ACTOR, ACTOR_STEP = range(6, 11)
_HAS_TILES = processor_has_tiles()


@njit(**INNER)
def _next_actions(arguments, b):
    """Next actions of a block, behind the next observations."""
    scratch, features, weights = arguments.scratch[b], arguments.features, arguments.actor_weights
    copy(scratch, _0, arguments.batches.next_observation, place_of(arguments, b) * features, features * BLOCK)
    if arguments.stochastic:
        stepwise.forward(arguments.actor, weights.parameters, weights.packed, scratch)
    else:
        stepwise.forward(arguments.actor, weights.target, weights.packed_target, scratch)
    act(arguments, scratch, noise_of(arguments, _0, b))
    if not arguments.stochastic:
        smooth(arguments, scratch, noise_of(arguments, _0, b))


@njit(**INNER)
def _actions(arguments, b):
    """The actor's actions of a block, behind the observations."""
    scratch, features, weights = arguments.scratch[b], arguments.features, arguments.actor_weights
    copy(scratch, _0, arguments.batches.observation, place_of(arguments, b) * features, features * BLOCK)
    stepwise.forward(arguments.actor, weights.parameters, weights.packed, scratch)
    act(arguments, scratch, noise_of(arguments, _1, b))


@njit(**INNER)
def _critic(arguments, part):
    """(number of the critic, number of the block, scratch of the block) of a part."""
    c, b = part // arguments.blocks, part % arguments.blocks
    return c, b, arguments.scratch[b]


@njit(**INNER)
def _values(arguments, part, parameters, packed):
    """What one critic makes of the actions of _next_actions() or _actions() in one block, into the extra rows."""
    c, _, scratch = _critic(arguments, part)
    layers = arguments.critics[c]
    copy(scratch, layers[_0, col.SOURCE], scratch, _0, (arguments.features + arguments.actions) * BLOCK)
    stepwise.forward(layers, parameters, packed, scratch)
    copy(scratch, outputs_of(arguments, c), scratch, layers[-1, col.OUTPUT], arguments.quantiles * BLOCK)


@njit(**INNER)
def _critic_forward_backward(arguments, part):
    """Forward and backward pass of one critic in one block, and its loss."""
    c, b, scratch = _critic(arguments, part)
    layers, weights, batches = arguments.critics[c], arguments.critic_weights, arguments.batches
    features, actions, at = arguments.features, arguments.actions, place_of(arguments, b)
    inputs = layers[_0, col.SOURCE]
    copy(scratch, inputs, batches.observation, at * features, features * BLOCK)
    copy(scratch, inputs + features * BLOCK, batches.action, at * actions, actions * BLOCK)
    stepwise.forward(layers, weights.parameters, weights.packed, scratch)
    arguments.sums[part, _0] = critic_loss(arguments, layers, scratch, at)
    stepwise.backward(layers, weights.parameters, weights.packed, scratch, _1)
    stepwise.prepare_gradient(layers, scratch, weights.packed, b, arguments.blocks)


@njit(**INNER)
def _values_backward(arguments, part):
    """Gradients, at the actor's actions in one block, of one critic's part in the value of the actor's loss."""
    c, b, scratch = _critic(arguments, part)
    weights = arguments.critic_weights
    value_gradient(arguments, c, scratch, place_of(arguments, b))
    stepwise.backward(arguments.critics[c], weights.parameters, weights.packed, scratch, _0)


@njit(**INNER)
def _actor_backward(arguments, b):
    """The actor's loss and backward pass in a block."""
    scratch, weights = arguments.scratch[b], arguments.actor_weights
    actor_loss(arguments, b)
    actor_gradient(arguments, b)
    stepwise.backward(arguments.actor, weights.parameters, weights.packed, scratch, _1)
    stepwise.prepare_gradient(arguments.actor, scratch, weights.packed, b, arguments.blocks)


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
    task, weights = arguments.task[slots.TASK], arguments.critic_weights
    if task == NEXT_ACTIONS:
        _next_actions(arguments, part)
    elif task == NEXT_VALUES:
        _values(arguments, part, weights.target, weights.packed_target)
    elif task == TARGETS:
        truncated_targets(arguments, arguments.scratch[part], place_of(arguments, part))
    elif task == CRITICS:
        _critic_forward_backward(arguments, part)
    elif task == ACTIONS:
        _actions(arguments, part)
    elif task == VALUES:
        _values(arguments, part, weights.parameters, weights.packed)
    elif task == VALUES_BACKWARD:
        _values_backward(arguments, part)
    elif task == ACTOR:
        _actor_backward(arguments, part)
    elif task == PACK:
        _pack_weights(arguments, part)
    else:
        _adam_step(arguments, task == CRITICS_STEP, part, arguments.gradient_scratch[worker])


_run_task, _serve = work_loop(_work)


@njit(**INNER)
def _run(arguments, state, task, parts):
    """Run a task to its end. Main thread only."""
    arguments.task[slots.TASK] = task
    _run_task(state, parts, arguments)


@njit(**INNER)
def _gradient_steps(arguments, state, settings, temperature, metrics):
    """All gradient steps, one task after another. Main thread only."""
    numbers = arguments.numbers
    numbers[slots.INVERT] = F(settings.invert_gradients)
    arguments.task[slots.KEPT] = settings.kept
    critics, taken = U(len(arguments.critics)) * arguments.blocks, 0
    if arguments.tiled:  # others may have written the weights since the last call
        _run(arguments, state, PACK, U(len(arguments.critic_chunks) + len(arguments.actor_chunks)))
    for g in range(_0, U(len(metrics)) // U(slots.METRICS)):
        actor_too = (settings.since + np.int64(g) + 1) % settings.delay == 0
        arguments.task[slots.BATCH] = np.int64(g)
        numbers[slots.TEMPERATURE] = F(math.exp(temperature.parameters[_0])) if arguments.stochastic else _ZERO
        step = settings.critics_steps + np.float64(g) + 1.0
        store_scale(numbers, slots.CRITICS_SCALE, scales(0.0, step, settings.critics_rate, 1.0, BETA2))
        numbers[slots.TAU] = F(settings.tau) if actor_too else _ZERO
        _run(arguments, state, NEXT_ACTIONS, arguments.blocks)
        _run(arguments, state, NEXT_VALUES, critics)
        if arguments.quantiles > _1:
            _run(arguments, state, TARGETS, arguments.blocks)
        _run(arguments, state, CRITICS, critics)
        _run(arguments, state, CRITICS_STEP, U(len(arguments.critic_chunks)))
        metrics[g * U(slots.METRICS)] = _ZERO
        metrics[g * U(slots.METRICS) + _1] = total_of(arguments, _0, critics, _0)
        if actor_too:
            taken += 1
            store_scale(
                numbers, slots.ACTOR_SCALE, scales(0.0, settings.actor_steps + taken, settings.actor_rate, 1.0, BETA2)
            )
            numbers[slots.ACTOR_TAU] = _ZERO if arguments.stochastic else F(settings.tau)
            judging = judges(arguments) * arguments.blocks
            _run(arguments, state, ACTIONS, arguments.blocks)
            _run(arguments, state, VALUES, judging)
            _run(arguments, state, VALUES_BACKWARD, judging)
            _run(arguments, state, ACTOR, arguments.blocks)
            _run(arguments, state, ACTOR_STEP, U(len(arguments.actor_chunks)))
            metrics[g * U(slots.METRICS)] = total_of(arguments, critics, arguments.blocks, _0)
        if arguments.stochastic:
            temperature_step(arguments, g, g, settings, temperature, metrics, critics)


@njit(**ENTRY)
def learn(worker, state, arguments, settings, temperature, metrics):
    """A gradient step on each of the batches; metrics: float32 [G * METRICS], 0 where not measured.

    worker, state: see kernels.runtime.thread_pool. temperature: Weights of its logarithm."""
    if _HAS_TILES and arguments.tiled:
        open_tiles()
    if worker == 0:
        _gradient_steps(arguments, state, settings, temperature, metrics)
        close(state)
    else:
        _serve(worker, state, arguments)
    if _HAS_TILES and arguments.tiled:
        close_tiles()
