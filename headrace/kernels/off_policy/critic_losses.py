"""What SAC, TQC, TD3 and DDPG do with their critics' outputs in a block of samples: TD targets, the losses of critics,
and the value in the actor's loss, with gradients at the outputs. A critic has one output, its value, or, TQC's, several
quantiles of the return.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, store, total
from headrace.kernels.nn.vector_math import clamp, minimum
from headrace.kernels.off_policy import off_policy_arguments as slots
from headrace.kernels.runtime.jit import INNER, njit

F, U = np.float32, np.uint64
_0, _1 = U(0), U(1)
_ZERO, _HALF, _ONE, _TWO = F(0), F(0.5), F(1), F(2)


@njit(**INNER)
def rows(arguments):
    """Offsets of the extra rows in a block's scratch: noise, unclamped, log_prob, outputs of the critics."""
    noise = arguments.extra_rows
    unclamped = noise + arguments.actions * BLOCK
    log_prob = unclamped + arguments.actions * BLOCK
    return noise, unclamped, log_prob, log_prob + BLOCK


@njit(**INNER)
def outputs_of(arguments, c):
    """Where critic c's outputs begin in the extra rows."""
    return rows(arguments)[3] + c * arguments.quantiles * BLOCK


@njit(**INNER)
def judges(arguments):
    """How many critics the actor's loss asks: TD3 and DDPG the first alone."""
    return U(len(arguments.critics)) if arguments.stochastic else _1


@njit(**INNER)
def _lowest(arguments, scratch, critics, i):
    """The lowest value of the first critics."""
    lowest = load(scratch, outputs_of(arguments, _0) + i)
    for c in range(_1, critics):
        lowest = minimum(lowest, load(scratch, outputs_of(arguments, c) + i))
    return lowest


@njit(**INNER)
def td_target(arguments, scratch, value, at, i):
    """reward + discount * (value, for SAC and TQC - temperature * log_prob)."""
    if arguments.stochastic:
        value = value - load(scratch, rows(arguments)[2] + i) * arguments.numbers[slots.TEMPERATURE]
    return fma(load(arguments.batches.discount, at + i), value, load(arguments.batches.reward, at + i))


@njit(**INNER)
def _move_largest_up(scratch, first, count, i):
    """Exchange neighbours among `count` rows until the largest is the last. NaN stays below, and shows in the loss."""
    largest = load(scratch, first + i)
    for k in range(_1, count):
        row = first + k * BLOCK + i
        other = load(scratch, row)
        above = largest > other
        store(scratch, row - BLOCK, select(above, other, largest))
        largest = select(above, largest, other)
    store(scratch, first + (count - _1) * BLOCK + i, largest)


@njit(**INNER)
def truncated_targets(arguments, scratch, at):
    """TQC's TD targets of a block, from the smallest of all target critics' quantiles and in their place: the first
    task[KEPT] rows. Kuznetsov et al. 2020, section 3.3. at: where the block's rows begin in the batches."""
    first, kept = outputs_of(arguments, _0), U(arguments.task[slots.KEPT])
    for i in range(_0, BLOCK, WIDTH):
        count = U(len(arguments.critics)) * arguments.quantiles
        while count > kept:
            _move_largest_up(scratch, first, count, i)
            count -= _1
        for k in range(_0, kept):
            row = first + k * BLOCK
            store(scratch, row + i, td_target(arguments, scratch, load(scratch, row + i), at, i))


@njit(**INNER)
def _squared_loss(arguments, layers, scratch, at):
    """critic_loss() of a critic with one output: the mean of error^2; SAC's half of that."""
    output, grad_output, loss = layers[-1, col.OUTPUT], layers[-1, col.OUTPUT_GRAD], splat(_ZERO)
    for i in range(_0, BLOCK, WIDTH):
        lowest = _lowest(arguments, scratch, U(len(arguments.critics)), i)
        error = load(scratch, output + i) - td_target(arguments, scratch, lowest, at, i)
        grad = error * load(arguments.batches.loss_weight, at + i)
        loss = fma(error, grad, loss)
        store(scratch, grad_output + i, grad if arguments.stochastic else grad * _TWO)
    return total(loss) * _HALF if arguments.stochastic else total(loss)


@njit(**INNER)
def _quantile_loss(arguments, layers, scratch, at):
    """critic_loss() of a critic with quantiles: the mean over pairs of a target y and a quantile q, of the fraction f,
    of |f - (u < 0)| c (u - c / 2), for u = y - q and c = clip(u, -1, 1). Dabney et al. 2018, arXiv:1710.10044, eq. 10,
    with kappa 1."""
    output, grad_output, loss = layers[-1, col.OUTPUT], layers[-1, col.OUTPUT_GRAD], splat(_ZERO)
    targets, kept, quantiles = outputs_of(arguments, _0), U(arguments.task[slots.KEPT]), arguments.quantiles
    pairs = F(kept * quantiles)
    for i in range(_0, BLOCK, WIDTH):
        weight = load(arguments.batches.loss_weight, at + i) / pairs
        for m in range(_0, quantiles):
            fraction = (F(m) + _HALF) / F(quantiles)
            above, below = splat(fraction), splat(_ONE - fraction)
            quantile, grad, found = load(scratch, output + m * BLOCK + i), splat(_ZERO), splat(_ZERO)
            for k in range(_0, kept):
                error = load(scratch, targets + k * BLOCK + i) - quantile
                clipped = clamp(error, -_ONE, _ONE)
                slope = select(error < _ZERO, below, above) * clipped
                grad, found = grad - slope, fma(slope, error - clipped * _HALF, found)
            store(scratch, grad_output + m * BLOCK + i, grad * weight)
            loss = fma(found, weight, loss)
    return total(loss)


@njit(**INNER)
def critic_loss(arguments, layers, scratch, at):
    """The loss of one critic in a block, and its gradient at the critic's outputs, which come from its forward pass.
    The target critics' outputs, or TQC's targets, are in the extra rows."""
    if arguments.quantiles > _1:
        return _quantile_loss(arguments, layers, scratch, at)
    return _squared_loss(arguments, layers, scratch, at)


@njit(**INNER)
def value(arguments, scratch, i):
    """The value in the actor's loss: the lowest of the critics that judge; TQC: the mean of all quantiles."""
    if arguments.quantiles == _1:
        return _lowest(arguments, scratch, judges(arguments), i)
    first, count, summed = outputs_of(arguments, _0), judges(arguments) * arguments.quantiles, splat(_ZERO)
    for k in range(_0, count):
        summed = summed + load(scratch, first + k * BLOCK + i)
    return summed / F(count)


@njit(**INNER)
def value_gradient(arguments, c, scratch, at):
    """Gradient of the weighted value() at critic c's outputs in a block. Critics with equal values share it."""
    grad_output, critics, quantiles = arguments.critics[c][-1, col.OUTPUT_GRAD], judges(arguments), arguments.quantiles
    for i in range(_0, BLOCK, WIDTH):
        weight = load(arguments.batches.loss_weight, at + i)
        if quantiles > _1:
            for m in range(_0, quantiles):
                store(scratch, grad_output + m * BLOCK + i, weight / F(critics * quantiles))
            continue
        lowest, number = _lowest(arguments, scratch, critics, i), splat(_ZERO)
        for other in range(_0, critics):
            equal = load(scratch, outputs_of(arguments, other) + i) == lowest
            number = number + select(equal, splat(_ONE), splat(_ZERO))
        mine = load(scratch, outputs_of(arguments, c) + i) == lowest
        store(scratch, grad_output + i, select(mine, weight / number, splat(_ZERO)))
