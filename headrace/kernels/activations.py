"""Activations on rows of a block, with the slopes that backward needs. Definitions and defaults are torch's."""

from __future__ import annotations

import numpy as np

from headrace.kernels.functions import exp, normal_cdf, sigmoid, tanh
from headrace.kernels.jit import INLINE, INNER, njit
from headrace.kernels.simd import WIDTH, load, select, splat, store

F = np.float32
_ZERO, _ONE = F(0), F(1)
_LEAK = F(0.01)

CODES = {"identity": 0, "tanh": 1, "relu": 2, "elu": 3, "silu": 4, "gelu": 5, "leaky_relu": 6}


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
