"""The whole learning call of PPO compiled: gather, forward, loss, backward, clipping and Adam, for all minibatches.

The loss is that of headrace.algorithms.ppo, written for sixteen samples at a time. Each minibatch is cut into blocks of
64 samples, and these into at most PARTS parts, each with a gradient of its own; the gradients are added in order. So
results do not depend on the number of threads, which share the parts (headrace.kernels.team).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit  # noqa: TID253

from headrace.kernels.adam_cpu import adam
from headrace.kernels.dense import BLOCK, clear
from headrace.kernels.functions import exp
from headrace.kernels.heads_cpu import GAUSSIAN, Head, differentiate, evaluate, refresh
from headrace.kernels.mlp_cpu import Places, backward, flatten_gradient, forward
from headrace.kernels.simd import WIDTH, fma, load, select, splat, store, total
from headrace.kernels.team import claim, dismiss, dismissed, finished, publish, wait

F, U = np.float32, np.uint64
_FAST = {"error_model": "numpy", "nogil": True}
_0, _1 = U(0), U(1)
_ZERO, _ONE, _TWO = F(0), F(1), F(2)
PARTS, PART = 8, U(128)  # parts at most, and samples a part is worth
POLICY, VALUE, ENTROPY, KL, CLIPPED = U(0), U(1), U(2), U(3), U(4)  # columns of the sums
SUMS = 16  # one vector
# rows of a block that hold one number a sample
OLD_LOG_PROB, OLD_VALUE, ADVANTAGE, RETURNS, WEIGHT = (U(64 * i) for i in range(5))


class Columns(NamedTuple):
    """A rollout of R rows, float32. observation: [inputs, R], flat, its rows `stride` apart. action: [K, R]. The rest
    [R]; valid is 1 or 0."""

    observation: np.ndarray
    stride: np.uint64
    action: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    advantage: np.ndarray
    returns: np.ndarray
    valid: np.ndarray


class Loss(NamedTuple):
    """Coefficients of the loss, float32: as in PPOConfig; value = center + scale * the critic's output."""

    clip: np.float32
    value_clip: np.float32
    value_coef: np.float32
    entropy_coef: np.float32
    center: np.float32
    scale: np.float32


class Job(NamedTuple):
    """All that is the same for every minibatch, and where a minibatch is described: batch, int64 (epoch, start, size,
    parts), and weight, float32 [1], 1 / valid rows. permutation: int64 [epochs, R]. parameters: float32 [P].
    scratch, gradient, sums: float32, one row a part."""

    layers: np.ndarray
    head: Head
    places: Places
    loss: Loss
    columns: Columns
    permutation: np.ndarray
    parameters: np.ndarray
    scratch: np.ndarray
    gradient: np.ndarray
    sums: np.ndarray
    batch: np.ndarray
    weight: np.ndarray


@njit(inline="always", **_FAST)
def _gather(columns, places, scratch, order, first, count, weight):
    """A block of samples, rows order[first : first + count]. Lanes left over repeat the last, and weigh 0."""
    for e in range(_0, BLOCK):
        lane = e if e < count else count - _1
        row, at = U(order[first + lane]), places.samples + e
        scratch[at + OLD_LOG_PROB] = columns.log_prob[row]
        scratch[at + OLD_VALUE] = columns.value[row]
        scratch[at + ADVANTAGE] = columns.advantage[row]
        scratch[at + RETURNS] = columns.returns[row]
        scratch[at + WEIGHT] = columns.valid[row] * weight if e < count else _ZERO
        for f in range(_0, places.inputs):
            scratch[f * BLOCK + e] = columns.observation[f * columns.stride + row]
        for c in range(_0, U(len(columns.action))):
            scratch[places.actions + c * BLOCK + e] = columns.action[c, row]


@njit(forceinline=True, **_FAST)
def _clamp(x, size):
    """x within +-size; NaN stays."""
    x = select(x > size, splat(size), x)
    return select(x < -size, splat(-size), x)


@njit(inline="always", **_FAST)
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


@njit(inline="always", **_FAST)
def _loss(head, places, loss, scratch, gradient, sums):
    """The loss of a block after forward(): its gradient at the last layers' outputs; its parts are added to sums."""
    for i in range(_0, BLOCK, WIDTH):
        at = places.samples + i
        weight, advantage = load(scratch, at + WEIGHT), load(scratch, at + ADVANTAGE)
        log_prob, entropy = evaluate(
            head, scratch, places.logits, places.d_logits, places.actions, places.entropies, i
        )  # fmt: skip
        log_ratio = log_prob - load(scratch, at + OLD_LOG_PROB)
        ratio = exp(log_ratio)
        gain, clipped = ratio * advantage, (_clamp(ratio - _ONE, loss.clip) + _ONE) * advantage
        worse = clipped < gain  # then the clipped gain counts, which does not move with the ratio
        d_log_prob = select(worse, splat(_ZERO), gain) * (_ZERO - weight)
        d_entropy = weight * (-loss.entropy_coef)
        differentiate(
            head, scratch, places.logits, places.d_logits, places.actions, places.entropies, i,
            d_log_prob, d_entropy, gradient, places.log_std,
        )  # fmt: skip
        value = fma(load(scratch, places.values + i), splat(loss.scale), splat(loss.center))
        square, slope = _value_loss(loss, value, load(scratch, at + OLD_VALUE), load(scratch, at + RETURNS))
        store(scratch, places.d_values + i, slope * weight * loss.value_coef)
        change = ratio - _ONE
        outside = select(change > loss.clip, splat(_ONE), select(change < -loss.clip, splat(_ONE), splat(_ZERO)))
        sums[POLICY] -= total(select(worse, clipped, gain) * weight)
        sums[VALUE] += total(square * weight)
        sums[ENTROPY] += total(entropy * weight)
        sums[KL] += total((change - log_ratio) * weight)
        sums[CLIPPED] += total(outside * weight)


@njit(inline="always", **_FAST)
def _part(job, start, size, weight, order, part, parts, scratch, gradient, sums):
    """One part's share of a minibatch of `size` rows, order[start] and on: its blocks, one after another."""
    clear(gradient, _0, U(len(gradient)))
    clear(sums, _0, U(len(sums)))
    blocks = (size + BLOCK - _1) // BLOCK
    for block in range(blocks * part // parts, blocks * (part + _1) // parts):
        first = block * BLOCK
        _gather(job.columns, job.places, scratch, order, start + first, min(BLOCK, size - first), weight)
        forward(job.layers, job.parameters, scratch)
        _loss(job.head, job.places, job.loss, scratch, gradient, sums)
        backward(job.layers, job.places.transposed, job.parameters, scratch, gradient)


@njit(**_FAST)
def _parts(job, state):
    """Do parts of the minibatch that is on, until none is left."""
    part = claim(state)
    while part >= 0:
        p, order = U(part), job.permutation[job.batch[0]]
        start, size, parts = U(job.batch[1]), U(job.batch[2]), U(job.batch[3])
        _part(job, start, size, job.weight[0], order, p, parts, job.scratch[p], job.gradient[p], job.sums[p])
        finished(state)
        part = claim(state)


@njit(inline="always", **_FAST)
def _weight(columns, order, start, size):
    """1 / number of valid rows."""
    valid = _ZERO
    for i in range(start, start + size):
        valid += columns.valid[U(order[i])]
    return _ONE / max(valid, _ONE)


@njit(fastmath={"contract"}, **_FAST)
def _add_up(parts, rows):
    """rows[0] += rows[1] + ... in this order."""
    for p in range(_1, parts):
        for i in range(_0, U(rows.shape[1])):
            rows[_0, i] += rows[p, i]


@njit(inline="always", **_FAST)
def _gradient(job, state, epoch, start, size):
    """Gradient and sums of a minibatch, into job.gradient[0] and job.sums[0]."""
    parts = min(U(len(job.scratch)), (size + PART - _1) // PART)
    job.batch[0], job.batch[1], job.batch[2], job.batch[3] = epoch, start, size, parts
    job.weight[0] = _weight(job.columns, job.permutation[epoch], start, size)
    refresh(job.head, job.parameters)
    publish(state, parts)
    _parts(job, state)
    wait(state)
    _add_up(parts, job.sums)
    return parts


@njit(inline="always", **_FAST)
def _step(job, adam_state, parts, steps, settings):
    """Add up the parts' gradients and take one step."""
    mean, square, flat = adam_state
    _, learning_rate, eps, max_norm, _ = settings
    _add_up(parts, job.gradient)
    flatten_gradient(job.layers, job.gradient[_0], flat)
    if job.head.kind == GAUSSIAN:
        for c in range(_0, U(len(job.head.sizes))):
            flat[job.head.log_std + c] = job.gradient[_0, job.places.log_std + c]
    adam(job.parameters, flat, mean, square, steps, learning_rate, eps, max_norm)


@njit(cache=True, **_FAST)
def learn(leader, state, job, adam_state, number, settings, metrics):
    """Epochs of `number` minibatches of the rows in job.permutation. Gives (steps taken in all, minibatches done).

    leader: false for helpers, who call with the same arguments from threads of their own, and work until the leader is
    through. state: headrace.kernels.team's. adam_state: float32 [P] each: mean, square, and room for the gradient.
    settings: float64 (steps before, learning rate, eps, max_norm, target_kl or 0). metrics: float32
    [epochs * number * SUMS], sums over each minibatch.
    """
    if not leader:
        while not dismissed(state):
            _parts(job, state)
        return 0.0, _0
    steps, target_kl = settings[0], settings[4]
    size, done, stopped = U(job.permutation.shape[1]) // number, _0, False
    for epoch in range(len(job.permutation)):
        for batch in range(_0, number):
            parts = _gradient(job, state, epoch, batch * size, size)
            store(metrics, done * WIDTH, load(job.sums[_0], _0))
            done += _1
            stopped = stopped or (target_kl > 0.0 and job.sums[_0, KL] > F(1.5 * target_kl))
            if not stopped:
                steps += 1.0
                _step(job, adam_state, parts, steps, settings)
        if stopped:
            break
    dismiss(state)
    return steps, done
