"""The losses of a learning call on a rollout, for sixteen samples at a time: their gradients at the network's outputs,
and their sums."""

from __future__ import annotations

import numpy as np

from headrace.kernels.learning.rollouts_arguments import CLIPPED_RATIO
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.policy_heads import backward as head_backward
from headrace.kernels.nn.policy_heads import log_prob_entropy
from headrace.kernels.nn.simd import fma, load, select, splat, store, total
from headrace.kernels.nn.vector_math import clamp, exp
from headrace.kernels.runtime.jit import INNER, MERGED, njit

F, U = np.float32, np.uint64
_0 = U(0)
_ZERO, _HALF, _ONE, _TWO = F(0), F(0.5), F(1), F(2)
POLICY, VALUE, ENTROPY, KL, CLIPPED, TAKEN = (U(i) for i in range(6))  # columns of the sums
# rows of a block that hold one number a sample
OLD_LOG_PROB, OLD_VALUE, ADVANTAGE, RETURNS, WEIGHT = (U(64 * i) for i in range(5))


@njit(**MERGED)
def _value_loss(loss, value, old, returns):
    """Squared error of a value, in units of the critic's output, and its gradient."""
    error = (value - returns) / loss.scale
    square, grad = error * error, error * _TWO
    if loss.value_clip > _ZERO:
        moved = (value - old) / loss.scale
        kept = clamp(moved, -loss.value_clip, loss.value_clip)
        error = kept + (old - returns) / loss.scale
        other = error * error
        grad = select(other > square, select(kept == moved, error * _TWO, splat(_ZERO)), grad)
        square = select(other <= square, square, other)  # NaN of the collected value stays
    return square, grad


@njit(**INNER)
def _clipped_ratio(loss, log_prob, old, advantage, weight, sums):
    """PPO's loss L = -w min(ratio A, clip(ratio) A); returns dL/d log_prob = -w ratio A, 0 where the clipped term is
    the smaller. Schulman et al. 2017, arXiv:1707.06347, eq. 7."""
    log_ratio = log_prob - old
    ratio = exp(log_ratio)
    change = ratio - _ONE
    gain, clipped = ratio * advantage, (clamp(change, -loss.clip, loss.clip) + _ONE) * advantage
    worse = clipped < gain  # then the clipped gain counts, which does not depend on the ratio
    outside = select(change > loss.clip, splat(_ONE), select(change < -loss.clip, splat(_ONE), splat(_ZERO)))
    sums[POLICY] -= total(select(worse, clipped, gain) * weight)
    sums[KL] += total((change - log_ratio) * weight)
    sums[CLIPPED] += total(outside * weight)
    return select(worse, splat(_ZERO), gain) * (_ZERO - weight)


@njit(**INNER)
def _log_prob(log_prob, advantage, weight, sums):
    """The policy gradient's loss L = -w A log_prob; returns dL/d log_prob = -w A. Mnih et al. 2016, arXiv:1602.01783,
    section 4.3."""
    sums[POLICY] -= total(log_prob * advantage * weight)
    return advantage * (_ZERO - weight)


@njit(**INNER)
def policy_loss(head, offsets, loss, scratch, gradient, sums):
    """The policy's part of a block's loss: its gradient at the logits, and its sums. The entropy bonus
    L = -w entropy_coef H has dL/dH = -w entropy_coef."""
    for i in range(_0, BLOCK, WIDTH):
        at = offsets.samples + i
        weight, advantage = load(scratch, at + WEIGHT), load(scratch, at + ADVANTAGE)
        log_prob, entropy = log_prob_entropy(head, scratch, offsets, i)
        if loss.kind == CLIPPED_RATIO:
            old = load(scratch, at + OLD_LOG_PROB)
            grad_log_prob = _clipped_ratio(loss, log_prob, old, advantage, weight, sums)
        else:
            grad_log_prob = _log_prob(log_prob, advantage, weight, sums)
        head_backward(head, scratch, offsets, i, grad_log_prob, weight * (-loss.entropy_coef), gradient)
        sums[ENTROPY] += total(entropy * weight)


@njit(**INNER)
def critic_loss(offsets, loss, scratch, sums):
    """The critic's part of a block's loss: its gradient at the critic's output, and its sum."""
    for i in range(_0, BLOCK, WIDTH):
        at = offsets.samples + i
        weight, old, returns = load(scratch, at + WEIGHT), load(scratch, at + OLD_VALUE), load(scratch, at + RETURNS)
        value = fma(load(scratch, offsets.values + i), splat(loss.scale), splat(loss.center))
        square, grad = _value_loss(loss, value, old, returns)
        store(scratch, offsets.grad_values + i, grad * weight * loss.value_coef)
        sums[VALUE] += total(square * weight)


@njit(**INNER)
def action_value_loss(head, offsets, scratch, sums):
    """Half the squared error of the values of the actions taken, L = w (Q(s, a) - return)^2 / 2: its gradient at all
    actions' values, and its sums."""
    for i in range(_0, BLOCK, WIDTH):
        at = offsets.samples + i
        weight, action = load(scratch, at + WEIGHT), load(scratch, offsets.actions + i)
        value = splat(_ZERO)
        for k in range(_0, head.sizes[_0]):
            value = select(action == F(k), load(scratch, offsets.logits + k * BLOCK + i), value)
        error = value - load(scratch, at + RETURNS)
        grad = error * weight
        for k in range(_0, head.sizes[_0]):
            store(scratch, offsets.grad_logits + k * BLOCK + i, select(action == F(k), grad, splat(_ZERO)))
        sums[VALUE] += total(error * grad * _HALF)
        sums[TAKEN] += total(value * weight)
