"""Activations and layer normalisation on rows of a block, and their gradients. Definitions and defaults are torch's."""

from __future__ import annotations

import numpy as np

from headrace.kernels.functions import exp, normal_cdf, sigmoid, tanh
from headrace.kernels.jit import INLINE, INNER, njit
from headrace.kernels.simd import fma, load, select, splat, sqrt, store, total
from headrace.kernels.tables import BLOCK, WIDTH

F = np.float32
_ZERO, _ONE = F(0), F(1)
_LEAK, _EPSILON = F(0.01), F(1e-5)
_0 = np.uint64(0)


@njit(**INLINE)
def _tanh(x):
    y = tanh(x)
    return y, _ONE - y * y


@njit(**INLINE)
def _relu(x):
    negative = x < _ZERO  # false for NaN, which therefore stays
    return select(negative, splat(_ZERO), x), select(x > _ZERO, splat(_ONE), splat(_ZERO))


@njit(**INLINE)
def _elu(x):
    e = exp(x)
    positive = x > _ZERO
    return select(positive, x, e - _ONE), select(positive, splat(_ONE), e)


@njit(**INLINE)
def _silu(x):
    s = sigmoid(x)
    y = x * s
    return y, s + y * (_ONE - s)


@njit(**INLINE)
def _gelu(x):
    distribution, density = normal_cdf(x)
    return x * distribution, distribution + x * density


@njit(**INLINE)
def _leaky_relu(x):
    positive = x > _ZERO
    return select(positive, x, x * _LEAK), select(positive, splat(_ONE), splat(_LEAK))


def _rows(function):
    """`function` of `count` values from scratch[first] on, in place; its slope goes to scratch[slope] on."""

    @njit(**INNER)
    def rows(scratch, first, slope, count):
        for i in range(np.uint64(0), count, WIDTH):
            y, dy = function(load(scratch, first + i))
            store(scratch, first + i, y)
            store(scratch, slope + i, dy)

    return rows


_tanh_rows, _relu_rows, _elu_rows = _rows(_tanh), _rows(_relu), _rows(_elu)
_silu_rows, _gelu_rows, _leaky_relu_rows = _rows(_silu), _rows(_gelu), _rows(_leaky_relu)


@njit(**INNER)
def activate(code, scratch, first, slope, count):
    """Apply the activation CODES calls `code` to scratch[first : first + count], and keep its slopes."""
    if code == np.uint64(1):
        _tanh_rows(scratch, first, slope, count)
    elif code == np.uint64(2):
        _relu_rows(scratch, first, slope, count)
    elif code == np.uint64(3):
        _elu_rows(scratch, first, slope, count)
    elif code == np.uint64(4):
        _silu_rows(scratch, first, slope, count)
    elif code == np.uint64(5):
        _gelu_rows(scratch, first, slope, count)
    elif code == np.uint64(6):
        _leaky_relu_rows(scratch, first, slope, count)


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
