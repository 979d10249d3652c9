"""Activations and layer normalisation on rows of a block, and their gradients. Definitions and defaults are torch's.

Each activation of headrace.kernels.nn.activation_table has a function of its name here: name(x) is its value y where y
determines the derivative, which name_derivative(y) then gives; else name(x) is (y, dy/dx).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.kernels.nn.activation_table import CODES, ROWS, Activation
from headrace.kernels.nn.layout import WIDTH
from headrace.kernels.nn.simd import fma, largest, load, select, splat, sqrt, store
from headrace.kernels.nn.vector_math import exp, normal_cdf, sigmoid, tanh  # noqa: F401 (tanh is found by its name)
from headrace.kernels.runtime.jit import INLINE, INNER, njit

F = np.float32
_ZERO, _ONE, _TWO, _FOUR, _TWENTY = F(0), F(1), F(2), F(4), F(20)
_LEAK, _EPSILON = F(0.01), F(1e-5)
_0 = np.uint64(0)


@njit(**INLINE)
def tanh_derivative(y):
    """d tanh(x) / dx = 1 - y^2."""
    return _ONE - y * y


@njit(**INLINE)
def relu(x):
    """y = max(x, 0)."""
    return largest(splat(_ZERO), x)  # NaN stays


@njit(**INLINE)
def relu_derivative(y):
    """dy/dx = 1 where y > 0, else 0."""
    return select(y > _ZERO, splat(_ONE), splat(_ZERO))


@njit(**INLINE)
def elu(x):
    """y = x where x > 0, else e^x - 1."""
    return select(x > _ZERO, x, exp(x) - _ONE)


@njit(**INLINE)
def elu_derivative(y):
    """dy/dx = 1 where y > 0, else e^x = y + 1."""
    return select(y > _ZERO, splat(_ONE), y + _ONE)


@njit(**INLINE)
def leaky_relu(x):
    """y = x where x > 0, else 0.01 x."""
    return largest(x * _LEAK, x)


@njit(**INLINE)
def leaky_relu_derivative(y):
    """dy/dx = 1 where y > 0, else 0.01."""
    return select(y > _ZERO, splat(_ONE), splat(_LEAK))


@njit(**INLINE)
def silu(x):
    """y = x s(x), s the sigmoid; dy/dx = s + x s (1 - s) = s + y (1 - s)."""
    s = sigmoid(x)
    y = x * s
    return y, s + y * (_ONE - s)


@njit(**INLINE)
def gelu(x):
    """y = x Phi(x), Phi and phi distribution and density of the standard normal; dy/dx = Phi(x) + x phi(x)."""
    distribution, density = normal_cdf(x)
    return x * distribution, distribution + x * density


@njit(**INLINE)
def mish(x):
    """y = x t, t = tanh(log(1 + e^x)) = n / (n + 2), n = e^x (e^x + 2); dy/dx = t + x 4 e^x (e^x + 1) / (n + 2)^2.

    Misra 2019, arXiv:1908.08681. Above 20 t and dy/dx round to 1, and e^x is that of 20, so that n is finite."""
    large = x > _TWENTY
    e = exp(select(large, splat(_TWENTY), x))
    n = e * (e + _TWO)
    t = n / (n + _TWO)
    dy = t + x * (e * (e + _ONE) * _FOUR) / ((n + _TWO) * (n + _TWO))
    return x * t, select(large, splat(_ONE), dy)


def _rows(activation: Activation) -> tuple[Callable[..., None], Callable[..., None]]:
    """An activation on rows of a block, and the product of a gradient with its derivative."""
    function = globals()[activation.name]
    if not activation.from_output:

        @njit(**INNER)
        def forward_keeping(scratch, first, derivative, count):
            for i in range(_0, count, WIDTH):
                y, dy = function(load(scratch, first + i))
                store(scratch, first + i, y)
                store(scratch, derivative + i, dy)

        return forward_keeping, _multiply_rows
    derivative_of = globals()[f"{activation.name}_derivative"]

    @njit(**INNER)
    def forward(scratch, first, derivative, count):
        for i in range(first, first + count, WIDTH):
            store(scratch, i, function(load(scratch, i)))

    @njit(**INNER)
    def backward(scratch, grad, output, derivative, count):
        for i in range(_0, count, WIDTH):
            store(scratch, grad + i, load(scratch, grad + i) * derivative_of(load(scratch, output + i)))

    return forward, backward


@njit(**INNER)
def _multiply_rows(scratch, grad, output, derivative, count):
    for i in range(_0, count, WIDTH):
        store(scratch, grad + i, load(scratch, grad + i) * load(scratch, derivative + i))


@njit(**INNER)
def _identity_forward(code, scratch, first, derivative, count):
    pass


@njit(**INNER)
def _identity_backward(code, scratch, grad, output, derivative, count):
    pass


@njit(**INNER)
def _not_kept(code):
    return False


def _dispatch(code: np.uint64, activation: Activation, others: tuple[Callable[..., None], ...]) -> tuple:
    """Forward, backward and "is the derivative kept" of this activation for its code, of the others for theirs."""
    forward_rows, backward_rows = _rows(activation)
    other_forward, other_backward, other_kept = others
    kept = not activation.from_output

    @njit(**INNER)
    def forward(given, scratch, first, derivative, count):
        if given == code:
            forward_rows(scratch, first, derivative, count)
        else:
            other_forward(given, scratch, first, derivative, count)

    @njit(**INNER)
    def backward(given, scratch, grad, output, derivative, count):
        if given == code:
            backward_rows(scratch, grad, output, derivative, count)
        else:
            other_backward(given, scratch, grad, output, derivative, count)

    @njit(**INNER)
    def keeps(given):
        return kept if given == code else other_kept(given)

    return forward, backward, keeps


# activate(code, scratch, first, derivative, count): apply an activation to scratch[first : first + count], in place;
#     its derivative goes to scratch[derivative] on where the output does not determine it.
# activation_backward(code, scratch, grad, output, derivative, count): from a loss's gradient at the outputs,
#     scratch[grad : grad + count], to that before the activation, in place: grad_x = grad_y * dy/dx.
# keeps_derivative(code): whether activate() writes the derivative.
activate, activation_backward, keeps_derivative = _identity_forward, _identity_backward, _not_kept
for _activation in reversed(ROWS):
    activate, activation_backward, keeps_derivative = _dispatch(
        np.uint64(CODES[_activation.name]), _activation, (activate, activation_backward, keeps_derivative)
    )


@njit(**INNER)
def layer_norm(scratch, first, rows, normalized, parameters, norm, norm_bias, lanes):
    """Normalise the block at scratch[first], rows of `lanes` samples, over its rows; Ba et al. 2016, arXiv:1607.06450.

    z = (x - mean) / sqrt(variance + 1e-5) goes to scratch[normalized], and after it a row of 1 / that root; the block
    becomes y = weight z + bias.
    """
    weight = _ONE / F(rows)
    for i in range(_0, lanes, WIDTH):
        mean, variance = splat(_ZERO), splat(_ZERO)
        for r in range(_0, rows):
            mean = mean + load(scratch, first + r * lanes + i)
        mean = mean * weight
        for r in range(_0, rows):
            distance = load(scratch, first + r * lanes + i) - mean
            variance = fma(distance, distance, variance)
        scale = _ONE / sqrt(fma(variance, splat(weight), splat(_EPSILON)))
        store(scratch, normalized + rows * lanes + i, scale)
        for r in range(_0, rows):
            z = (load(scratch, first + r * lanes + i) - mean) * scale
            store(scratch, normalized + r * lanes + i, z)
            y = fma(z, splat(parameters[norm + r]), splat(parameters[norm_bias + r]))
            store(scratch, first + r * lanes + i, y)


@njit(**INNER)
def layer_norm_backward(scratch, grad, rows, normalized, parameters, norm, lanes):
    """From a loss's gradient at layer_norm's output, the block at scratch[grad], to that at its input, in place.

    With d = grad_y * weight: grad_x = (d - mean(d) - z mean(d z)) / sqrt(variance + 1e-5). The gradient of the weight
    is sum(grad_y z), and that of the bias sum(grad_y).
    """
    weight = _ONE / F(rows)
    for i in range(_0, lanes, WIDTH):
        mean, mean_z = splat(_ZERO), splat(_ZERO)
        for r in range(_0, rows):
            z, d = load(scratch, normalized + r * lanes + i), load(scratch, grad + r * lanes + i)
            d = d * parameters[norm + r]
            mean, mean_z = mean + d, fma(d, z, mean_z)
        mean, mean_z = mean * weight, mean_z * weight
        scale = load(scratch, normalized + rows * lanes + i)
        for r in range(_0, rows):
            z, d = load(scratch, normalized + r * lanes + i), load(scratch, grad + r * lanes + i)
            d = d * parameters[norm + r] - mean - z * mean_z
            store(scratch, grad + r * lanes + i, d * scale)
