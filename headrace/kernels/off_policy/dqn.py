"""The whole learning call of DQN compiled: TD targets, loss, backward pass, clipping, Adam and target updates.

A gradient step is three tasks whose parts threads share (kernels.runtime.work_queue): the passes through the networks,
whose parts are samples, of which a minibatch often has 64 alone; the gradient, and Adam's step, whose parts are chunks
of the weights.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn import stepwise
from headrace.kernels.nn.adam_step import BETA2, load_scale, scales, store_scale
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, store
from headrace.kernels.nn.vector_math import clamp, maximum
from headrace.kernels.off_policy import dqn_arguments as slots
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import close, work_loop

F, U = np.float32, np.uint64
_0, _1 = U(0), U(1)
_ZERO, _ONE = F(0), F(1)
PASSES, GRADIENT, ADAM = range(3)  # tasks
_TASK, _BATCH = _0, _1  # indices in DQNArguments.task


@njit(**INNER)
def _block_rows(arguments):
    """Rows of scratch that the minibatch's blocks take; those of the workers follow."""
    return arguments.blocks * (BLOCK // arguments.lanes)


@njit(**INNER)
def take_inputs(arguments, scratch, column, block, lane):
    """The inputs of a part: the samples from `lane` on of a block of observations, of which `column` has all."""
    for f in range(_0, arguments.features):
        start = (block * arguments.features + f) * BLOCK + lane
        for i in range(_0, arguments.lanes, WIDTH):
            store(scratch, f * arguments.lanes + i, load(column, start + i))


@njit(**INNER)
def _forward(arguments, parameters, packed, scratch):
    """The values of all actions at the observations in scratch, at the last layer's outputs."""
    stepwise.forward(arguments.layers, parameters, packed, scratch)
    if arguments.state_value != col.NOWHERE:
        _add_state_value(arguments, scratch)


@njit(**INNER)
def _add_state_value(arguments, scratch):
    """Values of actions from that of the state and from advantages, Q = V + A - mean(A): Wang et al. 2016, eq. 9."""
    lanes, output = arguments.lanes, arguments.layers[-1, col.OUTPUT]
    value, weight = arguments.layers[arguments.state_value, col.OUTPUT], _ONE / F(arguments.actions)
    for i in range(_0, lanes, WIDTH):
        summed = splat(_ZERO)
        for k in range(_0, arguments.actions):
            summed = summed + load(scratch, output + k * lanes + i)
        offset = load(scratch, value + i) - summed * weight
        for k in range(_0, arguments.actions):
            at = output + k * lanes + i
            store(scratch, at, load(scratch, at) + offset)


@njit(**INNER)
def best_value(arguments, own, scratch, i):
    """The value of the next actions: the target network's largest, or (double DQN, van Hasselt et al. 2016) its value
    of the action that the network prefers. Ties: the first. NaN counts as the largest, as in torch. scratch: after the
    target network's forward pass; own: after the network's."""
    lanes, output = arguments.lanes, arguments.layers[-1, col.OUTPUT]
    value, top = load(scratch, output + i), load(own, output + i)
    for k in range(_1, arguments.actions):
        other = load(scratch, output + k * lanes + i)
        if arguments.double:
            preferred = load(own, output + k * lanes + i)
            value = select(preferred == preferred, select(preferred > top, other, value), other)
            top = maximum(top, preferred)
        else:
            value = maximum(value, other)
    return value


@njit(**INNER)
def _td_targets(arguments, own, scratch, block, lane):
    """TD targets of a part, into the rows of arguments.error."""
    weights, row = arguments.weights, block * BLOCK + lane
    take_inputs(arguments, scratch, arguments.next_observation, block, lane)
    _forward(arguments, weights.target, weights.packed_target, scratch)
    if arguments.double:
        take_inputs(arguments, own, arguments.next_observation, block, lane)
        _forward(arguments, weights.parameters, weights.packed, own)
    for i in range(_0, arguments.lanes, WIDTH):
        best, reward = best_value(arguments, own, scratch, i), load(arguments.reward, row + i)
        store(arguments.error, row + i, fma(load(arguments.discount, row + i), best, reward))


@njit(**INNER)
def loss(arguments, scratch, row):
    """TD errors of a part, and the gradient of their Huber loss: g = -weight * error, error clipped to +-1, at the
    value of the action taken. Of a dueling network -g / A at each of its A advantages, g more at that of the action
    taken, and g at the state's value."""
    lanes, state_value = arguments.lanes, arguments.state_value
    dueling = state_value != col.NOWHERE
    share = _ONE / F(arguments.actions) if dueling else _ZERO
    output, grad_output = arguments.layers[-1, col.OUTPUT], arguments.layers[-1, col.OUTPUT_GRAD]
    for i in range(_0, lanes, WIDTH):
        at, action, value = row + i, load(arguments.action, row + i), splat(_ZERO)
        for k in range(_0, arguments.actions):
            value = select(action == F(k), load(scratch, output + k * lanes + i), value)
        error = load(arguments.error, at) - value
        store(arguments.value, at, value), store(arguments.error, at, error)
        grad = clamp(error, -_ONE, _ONE) * load(arguments.loss_weight, at) * F(-1)
        for k in range(_0, arguments.actions):
            store(scratch, grad_output + k * lanes + i, select(action == F(k), grad, splat(_ZERO)) - grad * share)
        if dueling:
            store(scratch, arguments.layers[state_value, col.OUTPUT_GRAD] + i, grad)


@njit(**INNER)
def _passes(arguments, part, worker):
    """TD targets, forward and backward pass of a part of a minibatch, and the factors of its gradient."""
    shares = BLOCK // arguments.lanes
    block = U(arguments.task[_BATCH]) * arguments.blocks + part // shares
    lane, weights, own = part % shares * arguments.lanes, arguments.weights, arguments.scratch[part]
    scratch = arguments.scratch[_block_rows(arguments) + worker]
    _td_targets(arguments, own, scratch, block, lane)
    take_inputs(arguments, own, arguments.observation, block, lane)
    _forward(arguments, weights.parameters, weights.packed, own)
    loss(arguments, own, block * BLOCK + lane)
    stepwise.backward(arguments.layers, weights.parameters, weights.packed, own, _1)
    stepwise.prepare_gradient(arguments.layers, own, weights.packed, _0, _1)


@njit(**INNER)
def _work(part, worker, arguments):
    """Do a part of the current task."""
    task = arguments.task[_TASK]
    if task == PASSES:
        _passes(arguments, part, worker)
        return
    layers, weights, gradient, (_, layer, first) = (
        arguments.layers, arguments.weights, arguments.gradient, arguments.chunks[part],
    )  # fmt: skip
    if task == GRADIENT:
        blocks, buffer = arguments.scratch[: _block_rows(arguments)], arguments.gradient_scratch[worker]
        arguments.sums[part] = stepwise.chunk_gradient(layers, layer, first, blocks, arguments.parts, buffer, gradient)
    else:
        scale, numbers = load_scale(arguments.numbers, slots.SCALE), arguments.numbers
        stepwise.chunk_step(layers, layer, first, gradient, weights, scale, numbers[slots.EPS], numbers[slots.TAU])


_run_task, _serve = work_loop(_work)


@njit(**INNER)
def _run(arguments, state, task, parts):
    """Run a task to its end. Main thread only."""
    arguments.task[_TASK] = task
    _run_task(state, parts, arguments)


@njit(**INNER)
def prepare_adam(arguments, g, settings, tau, parts):
    """What Adam's step on minibatch g needs. parts: of the gradient, whose sums of squares are in arguments.sums."""
    squares = _ZERO
    for part in range(_0, parts):
        squares += arguments.sums[part]
    step = settings.steps + np.float64(g) + 1.0
    scale = scales(math.sqrt(squares), step, settings.learning_rate, settings.max_norm, BETA2)
    store_scale(arguments.numbers, slots.SCALE, scale)
    arguments.numbers[slots.TAU] = tau


@njit(**INNER)
def _step(arguments, state, g, settings, tau):
    """A gradient step on minibatch g. Main thread only."""
    arguments.task[_BATCH], chunks = np.int64(g), U(len(arguments.chunks))
    _run(arguments, state, PASSES, arguments.parts)
    _run(arguments, state, GRADIENT, chunks)
    prepare_adam(arguments, g, settings, tau, chunks)
    _run(arguments, state, ADAM, chunks)


@njit(**ENTRY)
def learn(worker, state, arguments, settings, update):
    """A gradient step on each minibatch. update: float32 [G], the tau of the target update after each, or 0.

    worker, state: see kernels.runtime.thread_pool.
    """
    if worker != 0:
        _serve(worker, state, arguments)
        return
    for g in range(_0, U(len(update))):
        _step(arguments, state, g, settings, update[g])
    close(state)
