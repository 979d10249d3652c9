"""Activations and layer normalisation on rows of a block, and their gradients. Definitions and defaults are torch's."""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, sqrt, store, total
from headrace.kernels.nn.vector_math import exp, normal_cdf, sigmoid, tanh
from headrace.kernels.runtime.jit import INLINE, INNER, njit

F = np.float32
_ZERO, _ONE = F(0), F(1)
_LEAK, _EPSILON = F(0.01), F(1e-5)
_0 = np.uint64(0)


@njit(**INLINE)
def _relu(x):
    return select(x < _ZERO, splat(_ZERO), x)  # the comparison is false for NaN, which therefore stays


@njit(**INLINE)
def _elu(x):
    return select(x > _ZERO, x, exp(x) - _ONE)


@njit(**INLINE)
def _leaky_relu(x):
    return select(x > _ZERO, x, x * _LEAK)


@njit(**INLINE)
def _silu(x):
    s = sigmoid(x)
    y = x * s
    return y, s + y * (_ONE - s)


@njit(**INLINE)
def _gelu(x):
    distribution, density = normal_cdf(x)
    return x * distribution, distribution + x * density


# slopes, where the value y of the activation tells them


@njit(**INLINE)
def _tanh_slope(y):
    return _ONE - y * y


@njit(**INLINE)
def _relu_slope(y):
    return select(y > _ZERO, splat(_ONE), splat(_ZERO))


@njit(**INLINE)
def _elu_slope(y):
    return select(y > _ZERO, splat(_ONE), y + _ONE)


@njit(**INLINE)
def _leaky_relu_slope(y):
    return select(y > _ZERO, splat(_ONE), splat(_LEAK))


def _told(function, slope_of):
    """Rows of an activation whose value tells its slope: forward, and a delta times the slope."""

    @njit(**INNER)
    def rows(scratch, first, count):
        for i in range(first, first + count, WIDTH):
            store(scratch, i, function(load(scratch, i)))

    @njit(**INNER)
    def back(scratch, delta, output, count):
        for i in range(_0, count, WIDTH):
            store(scratch, delta + i, load(scratch, delta + i) * slope_of(load(scratch, output + i)))

    return rows, back


def _kept(function):
    """Rows of an activation that gives value and slope."""

    @njit(**INNER)
    def rows(scratch, first, slope, count):
        for i in range(_0, count, WIDTH):
            y, dy = function(load(scratch, first + i))
            store(scratch, first + i, y)
            store(scratch, slope + i, dy)

    return rows


_tanh_rows, _tanh_back = _told(tanh, _tanh_slope)
_relu_rows, _relu_back = _told(_relu, _relu_slope)
_elu_rows, _elu_back = _told(_elu, _elu_slope)
_leaky_relu_rows, _leaky_relu_back = _told(_leaky_relu, _leaky_relu_slope)
_silu_rows, _gelu_rows = _kept(_silu), _kept(_gelu)


@njit(**INNER)
def activate(code, scratch, first, slope, count):
    """Apply the activation CODES calls `code` to scratch[first : first + count]; keep slopes that its value hides."""
    if code == np.uint64(1):
        _tanh_rows(scratch, first, count)
    elif code == np.uint64(2):
        _relu_rows(scratch, first, count)
    elif code == np.uint64(3):
        _elu_rows(scratch, first, count)
    elif code == np.uint64(4):
        _silu_rows(scratch, first, slope, count)
    elif code == np.uint64(5):
        _gelu_rows(scratch, first, slope, count)
    elif code == np.uint64(6):
        _leaky_relu_rows(scratch, first, count)


@njit(**INNER)
def pull_back(code, scratch, delta, output, slope, count):
    """From a loss's gradient at the activation's values, scratch[delta : delta + count], to that before it, in place.

    output: where its values lie; slope: where activate() kept its slopes.
    """
    if code == np.uint64(1):
        _tanh_back(scratch, delta, output, count)
    elif code == np.uint64(2):
        _relu_back(scratch, delta, output, count)
    elif code == np.uint64(3):
        _elu_back(scratch, delta, output, count)
    elif code == np.uint64(6):
        _leaky_relu_back(scratch, delta, output, count)
    elif code != _0:
        for i in range(_0, count, WIDTH):
            store(scratch, delta + i, load(scratch, delta + i) * load(scratch, slope + i))


@njit(**INNER)
def layer_norm(scratch, first, rows, normal, parameters, norm, norm_bias):
    """Normalise the block at scratch[first] over its rows; Ba et al. 2016, arXiv:1607.06450.

    What that gives before weight and bias goes to scratch[normal], and after it a row of 1 / deviation.
    """
    share = _ONE / F(rows)
    for i in range(_0, BLOCK, WIDTH):
        mean, variance = splat(_ZERO), splat(_ZERO)
        for r in range(_0, rows):
            mean = mean + load(scratch, first + r * BLOCK + i)
        mean = mean * share
        for r in range(_0, rows):
            distance = load(scratch, first + r * BLOCK + i) - mean
            variance = fma(distance, distance, variance)
        steepness = _ONE / sqrt(fma(variance, splat(share), splat(_EPSILON)))
        store(scratch, normal + rows * BLOCK + i, steepness)
        for r in range(_0, rows):
            x = (load(scratch, first + r * BLOCK + i) - mean) * steepness
            store(scratch, normal + r * BLOCK + i, x)
            y = fma(x, splat(parameters[norm + r]), splat(parameters[norm_bias + r]))
            store(scratch, first + r * BLOCK + i, y)


@njit(**INNER)
def layer_norm_backward(scratch, delta, rows, normal, parameters, norm, gradient, place, bias_place):
    """From a loss's gradient at layer_norm's output, the block at scratch[delta], to that at its input, in place.

    Adds its gradients of weight and bias to gradient[place] and gradient[bias_place] on.
    """
    share = _ONE / F(rows)
    for i in range(_0, BLOCK, WIDTH):
        shift, stretch = splat(_ZERO), splat(_ZERO)
        for r in range(_0, rows):
            x, d = load(scratch, normal + r * BLOCK + i), load(scratch, delta + r * BLOCK + i)
            gradient[place + r] += total(d * x)
            gradient[bias_place + r] += total(d)
            d = d * parameters[norm + r]
            shift, stretch = shift + d, fma(d, x, stretch)
        shift, stretch = shift * share, stretch * share
        steepness = load(scratch, normal + rows * BLOCK + i)
        for r in range(_0, rows):
            x, d = load(scratch, normal + r * BLOCK + i), load(scratch, delta + r * BLOCK + i)
            d = d * parameters[norm + r] - shift - x * stretch
            store(scratch, delta + r * BLOCK + i, d * steepness)
