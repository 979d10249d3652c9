"""A whole learning call on a rollout compiled: gather, forward, loss, backward, clipping and Adam, for all minibatches.

PPO's, A2C's, REINFORCE's and PQN's, and that of TRPO's critic; the losses are in rollouts_losses. Each minibatch is cut
into blocks of 64 samples, and these into at most PARTS parts, each with a gradient of its own, added in order. So
results do not depend on the number of threads, which share the parts (kernels.runtime.work_queue). Actor and critic are
parts of their own where they share no layers: a thread then mostly computes one of them, whose weights stay in its
core's cache.

With several learners the call returns between a minibatch's gradient and its step, so that the gradients and sums of
all can be added, and is called again. Where a gradient alone is wanted, it is not.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.learning.rollouts_arguments import ADDED_BY_OTHERS, DONE, PART, PARTS, STEPS, SUMS, TASK
from headrace.kernels.learning.rollouts_losses import (
    ADVANTAGE,
    KL,
    OLD_LOG_PROB,
    OLD_VALUE,
    RETURNS,
    WEIGHT,
    action_value_loss,
    critic_loss,
    policy_loss,
)
from headrace.kernels.learning.rollouts_rows import prepare
from headrace.kernels.nn.adam_step import adam, load_scale, scales, squares, store_scale
from headrace.kernels.nn.dense import add, clear
from headrace.kernels.nn.layout import ACTION_VALUES, ACTOR, BLOCK, CRITIC, WIDTH
from headrace.kernels.nn.mlp import backward, flatten_gradient, forward, normalize
from headrace.kernels.nn.policy_heads import forbid, forbid_gradients, has_choices, refresh
from headrace.kernels.nn.simd import load, store
from headrace.kernels.runtime.jit import ENTRY, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import close, work_loop

F, U = np.float32, np.uint64
_0, _1 = U(0), U(1)
_ZERO, _ONE = F(0), F(1)
BEGIN, DIFFERENTIATE, ADD_UP, STEP = range(4)  # tasks; BEGIN is that of zeros in batch
_EPOCH, _START, _SIZE, _PARTS, _STOPPED = (U(i) for i in (1, 2, 3, 4, 6))  # indices in RolloutArguments.batch
_EPS, _KEEP2, _TAKE2, _SQUARES = U(4), U(5), U(6), U(7)  # index in RolloutArguments.numbers


@njit(**INNER)
def _gather_column(scratch, at, column, start, order, first, count):
    """Row `at` of a block: the numbers from column[start] on of rows order[first : first + count]. Lanes left over
    repeat the last."""
    for e in range(_0, count):
        scratch[at + e] = column[start + U(order[first + e])]
    for e in range(count, BLOCK):
        scratch[at + e] = scratch[at + count - _1]


@njit(**MERGED)
def _gather(columns, offsets, scratch, order, first, count, weight, outputs):
    """A block of samples, rows order[first : first + count]: what a sub-network of these outputs needs. Lanes left over
    have weight 0."""
    samples = offsets.samples
    for f in range(_0, offsets.inputs):
        _gather_column(scratch, f * BLOCK, columns.observation, f * columns.stride, order, first, count)
    _gather_column(scratch, samples + WEIGHT, columns.valid, _0, order, first, count)
    for e in range(_0, BLOCK):
        scratch[samples + WEIGHT + e] = scratch[samples + WEIGHT + e] * weight if e < count else _ZERO
    if outputs & U(ACTOR):
        _gather_column(scratch, samples + OLD_LOG_PROB, columns.log_prob, _0, order, first, count)
        _gather_column(scratch, samples + ADVANTAGE, columns.advantage, _0, order, first, count)
    if outputs & U(CRITIC):
        _gather_column(scratch, samples + OLD_VALUE, columns.value, _0, order, first, count)
    if outputs & U(CRITIC | ACTION_VALUES):
        _gather_column(scratch, samples + RETURNS, columns.returns, _0, order, first, count)
    if outputs & U(ACTOR | ACTION_VALUES):
        for k in range(_0, offsets.masked):
            start = (offsets.inputs + k) * columns.stride
            _gather_column(scratch, offsets.mask + k * BLOCK, columns.observation, start, order, first, count)
        for c in range(_0, U(len(columns.action))):
            _gather_column(scratch, offsets.actions + c * BLOCK, columns.action[c], _0, order, first, count)


@njit(**MERGED)
def _differentiate(arguments, subnetwork, part, parts, scratch, gradient, sums):
    """A sub-network's gradient over a part of the minibatch: its blocks, one after another."""
    first_layer, end, offset, length, outputs = arguments.subnetworks[subnetwork]
    clear(gradient, offset, length)
    clear(sums, _0, U(len(sums)))
    layers, order = arguments.layers[first_layer:end], arguments.permutation[U(arguments.batch[_EPOCH])]
    start, size = U(arguments.batch[_START]), U(arguments.batch[_SIZE])
    blocks = (size + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        first = block * BLOCK
        count, weight = min(BLOCK, size - first), arguments.numbers[0]
        _gather(arguments.columns, arguments.offsets, scratch, order, start + first, count, weight, outputs)
        normalize(arguments.normalizer, scratch)
        forward(layers, arguments.parameters, scratch, BLOCK)
        if outputs & U(ACTOR):
            forbid(arguments.offsets, scratch, BLOCK)
            policy_loss(arguments.head, arguments.offsets, arguments.loss, scratch, gradient, sums)
            forbid_gradients(arguments.offsets, scratch)
        if outputs & U(CRITIC):
            critic_loss(arguments.offsets, arguments.loss, scratch, sums)
        if outputs & U(ACTION_VALUES):
            action_value_loss(arguments.head, arguments.offsets, scratch, sums)
        backward(layers, arguments.offsets.transposed, arguments.parameters, scratch, gradient)


@njit(**INNER)
def _squares(arguments, subnetwork):
    """The sum of squares of a sub-network's gradient in flat."""
    total_squares = F(0)
    for r in range(len(arguments.ranges)):
        owner, first, length = arguments.ranges[r]
        if owner == subnetwork:
            total_squares += squares(arguments.flat, first, length)
    return total_squares


@njit(**MERGED)
def _add_up(arguments, subnetwork, parts):
    """Add up the parts' gradients of a sub-network, in order, into flat; the sum of its squares into numbers."""
    first_layer, end, offset, count, outputs = arguments.subnetworks[subnetwork]
    for p in range(_1, parts):
        add(arguments.gradient[_0], arguments.gradient[p], offset, count)
    layers = arguments.layers[first_layer:end]
    flatten_gradient(layers, arguments.gradient[_0], arguments.flat)
    if outputs & U(ACTOR) and not has_choices(arguments.head):
        for c in range(_0, U(len(arguments.head.sizes))):
            arguments.flat[arguments.head.log_std + c] = arguments.gradient[_0, c]
    arguments.numbers[_SQUARES + subnetwork] = _squares(arguments, subnetwork)


@njit(**MERGED)
def _step(arguments, subnetwork):
    """Adam's step of a sub-network's parameters."""
    numbers = arguments.numbers
    scale, eps, keep2, take2 = load_scale(numbers, _1), numbers[_EPS], numbers[_KEEP2], numbers[_TAKE2]
    for r in range(len(arguments.ranges)):
        owner, first, length = arguments.ranges[r]
        if owner == subnetwork:
            adam(
                arguments.parameters,
                arguments.flat,
                arguments.mean,
                arguments.square,
                first,
                length,
                scale,
                eps,
                keep2,
                take2,
            )


@njit(**INNER)
def _work(part, worker, arguments):
    """Do a part of the current task."""
    parts = U(arguments.batch[_PARTS])
    if arguments.batch[TASK] == DIFFERENTIATE:
        subnetwork, p = part // parts, part % parts
        scratch, gradient, sums = arguments.scratch[worker], arguments.gradient[p], arguments.sums[part]
        _differentiate(arguments, subnetwork, p, parts, scratch, gradient, sums)
    elif arguments.batch[TASK] == ADD_UP:
        _add_up(arguments, part, parts)
    else:
        _step(arguments, part)


_run_task, _serve = work_loop(_work)


@njit(**INNER)
def _next_minibatch(arguments, number):
    """Describe the next minibatch; False where there is none."""
    epoch, batch = divmod(arguments.batch[DONE], number)
    if epoch == len(arguments.permutation) or (arguments.batch[_STOPPED] and batch == 0):
        return False
    order = arguments.permutation[U(epoch)]
    size = len(order) // number
    parts = min(PARTS, (size + PART - 1) // PART)
    arguments.batch[TASK], arguments.batch[_EPOCH], arguments.batch[_START] = DIFFERENTIATE, epoch, batch * size
    arguments.batch[_SIZE], arguments.batch[_PARTS] = size, parts
    if len(arguments.weights) > 0:
        arguments.numbers[0] = arguments.weights[arguments.batch[DONE]]
    else:
        arguments.numbers[0] = _weight(arguments.columns, order, U(batch * size), U(size))
    refresh(arguments.head, arguments.parameters)
    return True


@njit(**INNER)
def _next_task(arguments, number, settings, metrics):
    """Describe the task after the current one; returns the number of its parts, 0 at the end. Main thread only."""
    steps, learning_rate, eps, beta2, max_norm, target_kl = settings
    subnetworks, task, alone = len(arguments.subnetworks), arguments.batch[TASK], len(arguments.weights) == 0
    if task == DIFFERENTIATE:
        for row in range(1, arguments.batch[_PARTS] * subnetworks):
            add(arguments.sums[0], arguments.sums[row], _0, WIDTH)
        store(metrics, U(arguments.batch[DONE]) * WIDTH, load(arguments.sums[0], _0))
        arguments.batch[DONE] += 1
        if alone and target_kl > 0.0 and arguments.sums[_0, KL] > F(1.5 * target_kl):
            arguments.batch[_STOPPED] = 1
        if not (alone and arguments.batch[_STOPPED]):
            arguments.batch[TASK] = ADD_UP
            return subnetworks
    elif task == ADD_UP and not alone:
        arguments.batch[TASK] = ADDED_BY_OTHERS
        return 0
    elif task == ADDED_BY_OTHERS:
        arguments.batch[TASK] = STEP
        if target_kl > 0.0 and metrics[U(arguments.batch[DONE] - 1) * WIDTH + KL] > F(1.5 * target_kl):
            arguments.batch[_STOPPED] = 1
        for subnetwork in range(_0, U(subnetworks)):
            arguments.numbers[_SQUARES + subnetwork] = _squares(arguments, subnetwork)
    if (task == ADDED_BY_OTHERS and not arguments.batch[_STOPPED]) or task == ADD_UP:
        norm = math.sqrt(arguments.numbers[_SQUARES] + (arguments.numbers[_SQUARES + _1] if subnetworks > 1 else _ZERO))
        arguments.batch[STEPS] += 1
        scale = scales(norm, steps + arguments.batch[STEPS], learning_rate, max_norm, beta2)
        store_scale(arguments.numbers, _1, scale)
        arguments.numbers[_EPS], arguments.numbers[_KEEP2], arguments.numbers[_TAKE2] = eps, beta2, 1.0 - beta2
        arguments.batch[TASK] = STEP
        return subnetworks
    return arguments.batch[_PARTS] * subnetworks if _next_minibatch(arguments, number) else 0


@njit(fastmath={"reassoc"}, **INNER)
def _weight(columns, order, start, size):
    """1 / number of valid rows, which is a whole number, whatever the order of the sum."""
    valid = _ZERO
    for i in range(start, start + size):
        valid += columns.valid[U(order[i])]
    return _ONE / max(valid, _ONE)


@njit(**INNER)
def _summarize(summary, metrics, done, number):
    """Rows 0 and 1 of the summary: means over all minibatches and over those of the last epoch."""
    for row, first in ((_0, U(0)), (_1, U(max(done - number, 0)))):
        for c in range(_0, U(SUMS)):
            summed = _ZERO
            for m in range(first, U(done)):
                summed += metrics[m * U(SUMS) + c]
            summary[row, c] = summed / F(U(done) - first)


@njit(**ENTRY)
def learn(worker, state, arguments, collected, number, settings, metrics):
    """Epochs of `number` minibatches of the rows in RolloutArguments.permutation; its batch then holds the number of
    steps and of minibatches done. Where weights are given it returns after the gradient of each minibatch, with the
    task ADDED_BY_OTHERS: flat and the minibatch's row of metrics are to be added to those of the others by then.

    worker: 0 is the main thread; worker threads call with the same arguments and return when it is done. state:
    kernels.runtime.work_queue's. collected: read when the call begins, not when it goes on. settings: float64 (steps
    before, learning rate, eps, beta2, max_norm, target_kl or 0). metrics: float32 [epochs * number * SUMS], sums over
    each minibatch.
    """
    if worker != 0:
        _serve(worker, state, arguments)
        return
    if arguments.batch[TASK] == BEGIN:
        prepare(collected, arguments.columns, arguments.permutation, arguments.summary[2])
    parts = _next_task(arguments, number, settings, metrics)
    while parts != 0:
        _run_task(state, parts, arguments)
        parts = _next_task(arguments, number, settings, metrics)
    close(state)
    if arguments.batch[TASK] != ADDED_BY_OTHERS:
        _summarize(arguments.summary, metrics, arguments.batch[DONE], number)
