"""Adam with clipping of the gradient's norm, on ranges of flat float32 arrays. Kingma & Ba 2015, arXiv:1412.6980."""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn.simd import fma, load, splat, total
from headrace.kernels.runtime.jit import INNER, njit

F = np.float32
_1, _2, _16, _32, _48, _64 = (np.uint64(i) for i in (1, 2, 16, 32, 48, 64))


@njit(**INNER)
def squares(gradient, first, count):
    """Sum of squares of gradient[first : first + count], in an order that does not depend on the vectors' width."""
    sum0, sum1, sum2, sum3 = splat(F(0)), splat(F(0)), splat(F(0)), splat(F(0))
    wide, even = first + count // _64 * _64, first + count // _16 * _16
    for i in range(first, wide, _64):
        x0, x1, x2, x3 = load(gradient, i), load(gradient, i + _16), load(gradient, i + _32), load(gradient, i + _48)
        sum0, sum1, sum2, sum3 = fma(x0, x0, sum0), fma(x1, x1, sum1), fma(x2, x2, sum2), fma(x3, x3, sum3)
    for i in range(wide, even, _16):
        x0 = load(gradient, i)
        sum0 = fma(x0, x0, sum0)
    found = total((sum0 + sum1) + (sum2 + sum3))
    for i in range(even, first + count):
        found += gradient[i] * gradient[i]
    return found


@njit(**INNER)
def scales(norm, steps, learning_rate, max_norm, beta2, beta1):
    """(factor of the gradient, rate, factor of the root of squares), float32: for step number `steps`, counted from 1,
    along a gradient of this norm, scaled down to max_norm where it is larger."""
    excess = norm / max_norm
    factor = 1.0 if excess <= 1.0 else 1.0 / excess  # NaN fails the comparison, and goes on to the parameters
    return F(factor), F(learning_rate / (1.0 - beta1**steps)), F(1.0 / math.sqrt(1.0 - beta2**steps))


@njit(**INNER)
def store_scale(numbers, index, scale):
    """Store scales() at numbers[index] on."""
    numbers[index], numbers[index + _1], numbers[index + _2] = scale


@njit(**INNER)
def load_scale(numbers, index):
    """Read the number that store_scale() stored."""
    return numbers[index], numbers[index + _1], numbers[index + _2]


@njit(fastmath={"contract"}, **INNER)
def adam(
    parameters,
    gradient,
    mean,
    square,
    first,
    count,
    scale,
    eps,
    keep2,
    take2,
    keep1,
    take1,
):
    """Move parameters[first : first + count] one step. scale: see scales(). keep2, take2: beta2, and 1 - beta2; keep1,
    take1: of beta1."""
    factor, rate, correction = scale
    for i in range(first, first + count):
        g = gradient[i] * factor
        m = keep1 * mean[i] + take1 * g
        v = keep2 * square[i] + take2 * g * g
        mean[i], square[i] = m, v
        parameters[i] -= rate * m / (F(math.sqrt(v)) * correction + eps)
