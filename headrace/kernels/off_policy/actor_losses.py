"""What SAC, TQC, CrossQ, TD3 and DDPG do with their actor's outputs in a block of samples: actions, the actor's loss
with its gradient at the outputs, and the step of the temperature.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn import stepwise
from headrace.kernels.nn.adam_step import BETA2, scales
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, store, total
from headrace.kernels.nn.vector_math import clamp, exp, log, tanh
from headrace.kernels.off_policy import off_policy_arguments as slots
from headrace.kernels.off_policy.critic_losses import judges, rows, value
from headrace.kernels.runtime.jit import INLINE, INNER, njit

F, U = np.float32, np.uint64
_0, _1, _2 = U(0), U(1), U(2)
_ZERO, _ONE, _TWO = F(0), F(1), F(2)
_CONSTANT = F(0.5 * math.log(2 * math.pi) + 2 * math.log(2))
_LOG_STD_MIN, _LOG_STD_MAX = F(-20), F(2)


@njit(**INNER)
def place_of(arguments, b):
    """Where the rows of the current batch's block b begin among those of all batches."""
    return (U(arguments.task[slots.BATCH]) * arguments.blocks + b) * BLOCK


@njit(**INNER)
def noise_of(arguments, half, b):
    """Where block b's noise begins: on the next actions for half = 0, on the current ones for 1."""
    return ((U(arguments.task[slots.BATCH]) * _2 + half) * arguments.blocks + b) * arguments.actions * BLOCK


@njit(**INNER)
def act(arguments, scratch, normal):
    """Actions of a block after the actor's forward pass, into the critics' inputs; what their gradients need, into the
    extra rows.

    SAC: u = mean + e^log_std * normal, action = tanh(u), log_prob = sum of -normal^2 / 2 - log_std - log(2 pi) / 2
    - log(1 - tanh(u)^2), the last as 2 log 2 - 2 log(e^u + e^-u).
    """
    output, (noises, unclamped, log_prob, _) = arguments.actor[-1, col.OUTPUT], rows(arguments)
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
def smooth(arguments, scratch, normal):
    """Add target policy smoothing noise to a block's actions, clipped to the bounds. Fujimoto et al. 2018, eq. 14."""
    for i in range(_0, arguments.actions * BLOCK, WIDTH):
        at = arguments.features * BLOCK + i
        store(scratch, at, clamp(load(scratch, at) + load(arguments.batches.normal, normal + i), -_ONE, _ONE))


@njit(**INNER)
def actor_loss(arguments, b):
    """Sums of the actor's loss, the mean of temperature * log_prob - value, of log_prob, and of weights in a block."""
    scratch, log_prob = arguments.scratch[b], rows(arguments)[2]
    loss, entropy, weights_sum = splat(_ZERO), splat(_ZERO), splat(_ZERO)
    for i in range(_0, BLOCK, WIDTH):
        weight, density = load(arguments.batches.loss_weight, place_of(arguments, b) + i), load(scratch, log_prob + i)
        cost = density * arguments.numbers[slots.TEMPERATURE] - value(arguments, scratch, i)
        loss = fma(cost, weight, loss)
        entropy, weights_sum = fma(density, weight, entropy), weights_sum + weight
    sums = arguments.sums[U(len(arguments.critics)) * arguments.blocks + b]
    sums[_0], sums[_1], sums[_2] = total(loss), total(entropy), total(weights_sum)


@njit(**INLINE)
def tanh_slope(x):
    """d tanh(x) / dx = 4 e^(-2 |x|) / (1 + e^(-2 |x|))^2: of the output, 1 - tanh(x)^2 is rounding alone beyond 9."""
    e = exp(select(x < _ZERO, x, _ZERO - x) * _TWO)
    root = _TWO / (_ONE + e)
    return e * root * root


@njit(**INNER)
def actor_gradient(arguments, b):
    """Gradient of the actor's loss at the actor's outputs in a block, from that at the critics' inputs.

    With w the loss weight, a = tanh(u): grad_u = -dq/da tanh'(u) + 2 w temperature a (SAC); grad_log_std = grad_u *
    (u - mean) - w temperature, 0 where log_std is clamped. With INVERT grad_u = -dq/da where that leads away from the
    bounds, as in headrace.policies.actor_q.InvertedTanh.
    """
    scratch, first, row = arguments.scratch[b], arguments.features * BLOCK, place_of(arguments, b)
    output, grad_output = arguments.actor[-1, col.OUTPUT], arguments.actor[-1, col.OUTPUT_GRAD]
    noises, unclamped, _, _ = rows(arguments)
    for k in range(_0, arguments.actions):
        for i in range(_0, BLOCK, WIDTH):
            at, grad = k * BLOCK + i, splat(_ZERO)
            for c in range(_0, judges(arguments)):
                grad = grad + load(scratch, arguments.critics[c, _0, col.SOURCE_GRAD] + first + at)
            action, u = load(scratch, first + at), load(scratch, output + at)
            if arguments.stochastic:
                u = u + load(scratch, noises + at)
            slope = tanh_slope(u)
            if arguments.numbers[slots.INVERT] > _ZERO:
                slope = select(grad * action < _ZERO, splat(_ONE), slope)
            grad = _ZERO - grad * slope
            if arguments.stochastic:
                weight = load(arguments.batches.loss_weight, row + i) * arguments.numbers[slots.TEMPERATURE]
                grad = fma(weight * _TWO, action, grad)
                grad_log_std = (grad * load(scratch, noises + at) - weight) * load(scratch, unclamped + at)
                store(scratch, grad_output + (arguments.actions + k) * BLOCK + i, grad_log_std)
            store(scratch, grad_output + at, grad)


@njit(**INNER)
def total_of(arguments, first, count, column):
    """The sum of a column of arguments.sums."""
    found = _ZERO
    for row in range(first, first + count):
        found += arguments.sums[row, column]
    return found


@njit(**INNER)
def temperature_step(arguments, g, taken, settings, temperature, metrics, first):
    """Adam step of the temperature's logarithm, after so many taken in this call: the gradient is -(mean log_prob +
    target_entropy). Haarnoja et al. 2018, arXiv:1812.05905, eq. 18, with the logarithm in place of the temperature."""
    blocks = arguments.blocks
    log_prob, weight = total_of(arguments, first, blocks, _1), total_of(arguments, first, blocks, _2)
    entropy_error = log_prob + F(settings.target_entropy) * weight
    metrics[g * U(slots.METRICS) + _2] = arguments.numbers[slots.TEMPERATURE]
    metrics[g * U(slots.METRICS) + U(3)] = -temperature.parameters[_0] * entropy_error
    if settings.learn_temperature:
        grad = arguments.gradient_scratch[_0]
        grad[_0] = -entropy_error
        scale = scales(0.0, settings.temperature_steps + np.float64(taken) + 1.0, settings.temperature_rate, 1.0, BETA2)
        stepwise.adam_with_target(temperature, _0, grad, _0, _1, scale, F(settings.temperature_eps), _ZERO)
