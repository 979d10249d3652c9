"""Adam with clipping of the gradient's norm, on flat float32 arrays. Kingma & Ba 2015, arXiv:1412.6980."""

from __future__ import annotations

import math

import numpy as np
from numba import njit  # noqa: TID253

F = np.float32
_FAST = {"error_model": "numpy", "nogil": True}
_ZERO = np.uint64(0)
BETA1, BETA2 = 0.9, 0.999


@njit(fastmath={"reassoc", "contract"}, **_FAST)
def norm(gradient):
    """Euclidean norm. Its order is fixed at compile time, by the vector's width."""
    squares = F(0)
    for i in range(_ZERO, np.uint64(len(gradient))):
        squares += gradient[i] * gradient[i]
    return math.sqrt(squares)


@njit(fastmath={"contract"}, **_FAST)
def adam(parameters, gradient, mean, square, steps, learning_rate, eps, max_norm):
    """One step along `gradient`, scaled down to a norm of max_norm where it is larger. steps: this one included."""
    excess = norm(gradient) / max_norm
    factor = F(1.0 if excess <= 1.0 else 1.0 / excess)  # NaN fails the comparison, and goes on to the parameters
    rate = F(learning_rate / (1.0 - BETA1**steps))
    correction = F(1.0 / math.sqrt(1.0 - BETA2**steps))
    keep1, keep2, take1, take2 = F(BETA1), F(BETA2), F(1.0 - BETA1), F(1.0 - BETA2)
    eps = F(eps)
    for i in range(_ZERO, np.uint64(len(parameters))):
        g = gradient[i] * factor
        m = keep1 * mean[i] + take1 * g
        v = keep2 * square[i] + take2 * g * g
        mean[i], square[i] = m, v
        parameters[i] -= rate * m / (F(math.sqrt(v)) * correction + eps)
