"""The whole learning call of PPO compiled: gather, forward, loss, backward, clipping and Adam, for all minibatches.

The loss is that of headrace.algorithms.ppo, written for sixteen samples at a time. Each minibatch is cut into blocks of
64 samples, and these into at most PARTS parts, each with a gradient of its own; the gradients are added in order. So
results do not depend on the number of threads, which share the parts (kernels.runtime.work_queue). Actor and critic,
where
they share no layers, are parts of their own: a thread then keeps to one of them, and its weights to that core's cache.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.learning.ppo_arguments import DONE, PART, PARTS, STEPS
from headrace.kernels.nn.adam_step import adam, scales, squares
from headrace.kernels.nn.dense import add, clear
from headrace.kernels.nn.layout import ACTOR, BLOCK, CRITIC, DISCRETE, WIDTH
from headrace.kernels.nn.mlp import backward, flatten_gradient, forward, normalize
from headrace.kernels.nn.policy_heads import differentiate, evaluate, refresh
from headrace.kernels.nn.simd import fma, load, select, splat, store, total
from headrace.kernels.nn.vector_math import exp
from headrace.kernels.runtime.jit import ENTRY, INLINE, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import claim, dismiss, dismissed, finished, publish, rest, wait

F, U = np.float32, np.uint64
_0, _1 = U(0), U(1)
_ZERO, _ONE, _TWO = F(0), F(1), F(2)
BEGIN, DIFFERENTIATE, ADD_UP, STEP = range(4)  # tasks; the first is what a job.batch of zeros says
_TASK, _EPOCH, _START, _SIZE, _PARTS, _STOPPED = (U(i) for i in (0, 1, 2, 3, 4, 6))  # offsets in Job.batch
_SQUARES = U(5)  # place in Job.numbers
POLICY, VALUE, ENTROPY, KL, CLIPPED = U(0), U(1), U(2), U(3), U(4)  # columns of the sums
# rows of a block that hold one number a sample
OLD_LOG_PROB, OLD_VALUE, ADVANTAGE, RETURNS, WEIGHT = (U(64 * i) for i in range(5))


@njit(**MERGED)
def _gather(columns, offsets, scratch, order, first, count, weight):
    """A block of samples, rows order[first : first + count]. Lanes left over repeat the last, and weigh 0."""
    for e in range(_0, BLOCK):
        lane = e if e < count else count - _1
        row, at = U(order[first + lane]), offsets.samples + e
        scratch[at + OLD_LOG_PROB] = columns.log_prob[row]
        scratch[at + OLD_VALUE] = columns.value[row]
        scratch[at + ADVANTAGE] = columns.advantage[row]
        scratch[at + RETURNS] = columns.returns[row]
        scratch[at + WEIGHT] = columns.valid[row] * weight if e < count else _ZERO
        for f in range(_0, offsets.inputs):
            scratch[f * BLOCK + e] = columns.observation[f * columns.stride + row]
        for c in range(_0, U(len(columns.action))):
            scratch[offsets.actions + c * BLOCK + e] = columns.action[c, row]


@njit(**INLINE)
def _clamp(x, size):
    """x within +-size; NaN stays."""
    x = select(x > size, splat(size), x)
    return select(x < -size, splat(-size), x)


@njit(**MERGED)
def _value_loss(loss, value, old, returns):
    """Squared error of a value, in units of the critic's output, and its gradient."""
    error = (value - returns) / loss.scale
    square, slope = error * error, error * _TWO
    if loss.value_clip > _ZERO:
        moved = (value - old) / loss.scale
        kept = _clamp(moved, loss.value_clip)
        error = kept + (old - returns) / loss.scale
        larger = error * error > square
        square = select(larger, error * error, square)
        slope = select(larger, select(kept == moved, error * _TWO, splat(_ZERO)), slope)
    return square, slope


@njit(**INNER)
def _policy_loss(head, offsets, loss, scratch, gradient, sums):
    """The policy's part of a block's loss: its gradient at the logits, and its sums."""
    for i in range(_0, BLOCK, WIDTH):
        at = offsets.samples + i
        weight, advantage = load(scratch, at + WEIGHT), load(scratch, at + ADVANTAGE)
        log_prob, entropy = evaluate(
            head, scratch, offsets.logits, offsets.grad_logits, offsets.actions, offsets.entropies, i
        )  # fmt: skip
        log_ratio = log_prob - load(scratch, at + OLD_LOG_PROB)
        ratio = exp(log_ratio)
        change = ratio - _ONE
        gain, clipped = ratio * advantage, (_clamp(change, loss.clip) + _ONE) * advantage
        worse = clipped < gain  # then the clipped gain counts, which does not move with the ratio
        d_log_prob = select(worse, splat(_ZERO), gain) * (_ZERO - weight)
        d_entropy = weight * (-loss.entropy_coef)
        differentiate(
            head, scratch, offsets.logits, offsets.grad_logits, offsets.actions, offsets.entropies, i,
            d_log_prob, d_entropy, gradient,
        )  # fmt: skip
        outside = select(change > loss.clip, splat(_ONE), select(change < -loss.clip, splat(_ONE), splat(_ZERO)))
        sums[POLICY] -= total(select(worse, clipped, gain) * weight)
        sums[ENTROPY] += total(entropy * weight)
        sums[KL] += total((change - log_ratio) * weight)
        sums[CLIPPED] += total(outside * weight)


@njit(**INNER)
def _critic_loss(offsets, loss, scratch, sums):
    """The critic's part of a block's loss: its gradient at the critic's output, and its sum."""
    for i in range(_0, BLOCK, WIDTH):
        at = offsets.samples + i
        weight, old, returns = load(scratch, at + WEIGHT), load(scratch, at + OLD_VALUE), load(scratch, at + RETURNS)
        value = fma(load(scratch, offsets.values + i), splat(loss.scale), splat(loss.center))
        square, slope = _value_loss(loss, value, old, returns)
        store(scratch, offsets.grad_values + i, slope * weight * loss.value_coef)
        sums[VALUE] += total(square * weight)


@njit(**MERGED)
def _differentiate(job, tree, part, parts, scratch, gradient, sums):
    """A tree's gradient of a part of the minibatch: its blocks, one after another."""
    first_layer, end, place, count, ending = job.subnetworks[tree]
    clear(gradient, place, count)
    clear(sums, _0, U(len(sums)))
    layers, order = job.layers[first_layer:end], job.permutation[U(job.batch[_EPOCH])]
    start, size = U(job.batch[_START]), U(job.batch[_SIZE])
    blocks = (size + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        first = block * BLOCK
        _gather(job.columns, job.offsets, scratch, order, start + first, min(BLOCK, size - first), job.numbers[0])
        normalize(job.normalizer, scratch)
        forward(layers, job.parameters, scratch, BLOCK)
        if ending & U(ACTOR):
            _policy_loss(job.head, job.offsets, job.loss, scratch, gradient, sums)
        if ending & U(CRITIC):
            _critic_loss(job.offsets, job.loss, scratch, sums)
        backward(layers, job.offsets.transposed, job.parameters, scratch, gradient)


@njit(**MERGED)
def _add_up(job, tree, parts):
    """Add up the parts' gradients of a tree, in order, into job.flat; its squares into job.numbers."""
    first_layer, end, place, count, ending = job.subnetworks[tree]
    for p in range(_1, parts):
        add(job.gradient[_0], job.gradient[p], place, count)
    layers = job.layers[first_layer:end]
    flatten_gradient(layers, job.gradient[_0], job.flat)
    if ending & U(ACTOR) and job.head.kind != DISCRETE:
        for c in range(_0, U(len(job.head.sizes))):
            job.flat[job.head.log_std + c] = job.gradient[_0, c]
    total_squares = F(0)
    for r in range(len(job.ranges)):
        owner, first, length = job.ranges[r]
        if owner == tree:
            total_squares += squares(job.flat, first, length)
    job.numbers[_SQUARES + tree] = total_squares


@njit(**MERGED)
def _step(job, tree):
    """Move a tree's parameters."""
    scale, eps = (job.numbers[1], job.numbers[2], job.numbers[3]), job.numbers[4]
    for r in range(len(job.ranges)):
        owner, first, length = job.ranges[r]
        if owner == tree:
            adam(job.parameters, job.flat, job.mean, job.square, first, length, scale, eps)


@njit(**MERGED)
def _work(job, state, worker):
    """Do parts of the task that is on, until none is left."""
    mine = claim(state, worker)
    while mine >= 0:
        m, parts = U(mine), U(job.batch[_PARTS])
        if job.batch[_TASK] == DIFFERENTIATE:
            tree, part = m // parts, m % parts
            _differentiate(job, tree, part, parts, job.scratch[U(worker)], job.gradient[part], job.sums[m])
        elif job.batch[_TASK] == ADD_UP:
            _add_up(job, m, parts)
        else:
            _step(job, m)
        finished(state)
        mine = claim(state, worker)


@njit(**INNER)
def _next_minibatch(job, number):
    """Describe the next minibatch; false where there is none."""
    epoch, batch = divmod(job.batch[DONE], number)
    if epoch == len(job.permutation) or (job.batch[_STOPPED] and batch == 0):
        return False
    order = job.permutation[U(epoch)]
    size = len(order) // number
    parts = min(PARTS, (size + PART - 1) // PART)
    job.batch[_TASK], job.batch[_EPOCH], job.batch[_START] = DIFFERENTIATE, epoch, batch * size
    job.batch[_SIZE], job.batch[_PARTS] = size, parts
    job.numbers[0] = _weight(job.columns, order, U(batch * size), U(size))
    refresh(job.head, job.parameters)
    return True


@njit(**INNER)
def _next_task(job, number, settings, metrics):
    """The leader's: describe the task that follows the one done; gives its parts, 0 at the end."""
    steps, learning_rate, eps, max_norm, target_kl = settings
    subnetworks, task = len(job.subnetworks), job.batch[_TASK]
    if task == DIFFERENTIATE:
        for row in range(1, job.batch[_PARTS] * subnetworks):
            add(job.sums[0], job.sums[row], _0, WIDTH)
        store(metrics, U(job.batch[DONE]) * WIDTH, load(job.sums[0], _0))
        job.batch[DONE] += 1
        if target_kl > 0.0 and job.sums[_0, KL] > F(1.5 * target_kl):
            job.batch[_STOPPED] = 1
        if not job.batch[_STOPPED]:
            job.batch[_TASK] = ADD_UP
            return subnetworks
    elif task == ADD_UP:
        norm = math.sqrt(job.numbers[_SQUARES] + (job.numbers[_SQUARES + _1] if subnetworks > 1 else _ZERO))
        job.batch[STEPS] += 1
        scale = scales(norm, steps + job.batch[STEPS], learning_rate, max_norm)
        job.numbers[1], job.numbers[2], job.numbers[3] = scale
        job.numbers[4] = eps
        job.batch[_TASK] = STEP
        return subnetworks
    return job.batch[_PARTS] * subnetworks if _next_minibatch(job, number) else 0


@njit(**INNER)
def _weight(columns, order, start, size):
    """1 / number of valid rows."""
    valid = _ZERO
    for i in range(start, start + size):
        valid += columns.valid[U(order[i])]
    return _ONE / max(valid, _ONE)


@njit(**ENTRY)
def learn(worker, state, job, number, settings, metrics):
    """Epochs of `number` minibatches of the rows in job.permutation; job.batch tells how many steps and minibatches.

    worker: 0 leads; others call with the same arguments from threads of their own, and work until the leader is
    through. state: kernels.runtime.work_queue's. settings: float64 (steps before, learning rate, eps, max_norm,
    target_kl
    or 0). metrics: float32 [epochs * number * SUMS], sums over each minibatch.
    """
    while True:
        if worker == 0:
            parts = _next_task(job, number, settings, metrics)
            if parts == 0:
                break
            publish(state, parts)
        elif dismissed(state):
            return
        else:
            rest()
        _work(job, state, worker)
        if worker == 0:
            wait(state)
    dismiss(state)
