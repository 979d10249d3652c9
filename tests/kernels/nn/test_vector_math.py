"""exp, log, tanh and the others on sixteen values at once, against float64."""

import numpy as np
import pytest
import torch
from numba import njit  # noqa: TID253

from headrace.kernels.nn import vector_math
from headrace.kernels.nn.layout import WIDTH
from headrace.kernels.nn.simd import load, store

F = np.float32


@njit
def evaluate(code, x, y, z):
    """Function number `code` of all x, into y, and its second result, if it has one, into z."""
    for i in range(np.uint64(0), np.uint64(len(x)), WIDTH):
        v = load(x, i)
        if code == 0:
            store(y, i, vector_math.exp(v))
        elif code == 1:
            store(y, i, vector_math.log(v))
        elif code == 2:
            store(y, i, vector_math.tanh(v))
        elif code == 3:
            store(y, i, vector_math.sigmoid(v))
        else:
            first, second = vector_math.normal_cdf(v) if code == 4 else vector_math.sincos(v)
            store(y, i, first)
            store(z, i, second)


def call(code, x):
    """Both results as float64, and x as the function saw it."""
    count = len(x)
    x = np.resize(x.astype(F), -(-count // 16) * 16)
    y, z = np.zeros_like(x), np.zeros_like(x)
    evaluate(code, x, y, z)
    return y[:count].astype(np.float64), z[:count].astype(np.float64), x[:count].astype(np.float64)


TINY = np.geomspace(1e-30, 1, 10_000)
EVERYWHERE = np.concatenate([np.linspace(-20, 20, 200_001), TINY, -TINY])


def test_exp_is_within_2_ulp():
    y, _, x = call(0, np.linspace(-87.3, 88.3, 1_000_003))
    assert np.max(np.abs(y / np.exp(x) - 1)) < 2 * 2.0**-23


def test_exp_of_what_it_cannot_hold():
    y, _, _ = call(0, np.array([-1e30, -200.0, -np.inf, 0.0, 89.0, 1e30, np.inf]))
    np.testing.assert_array_equal(y, [0, 0, 0, 1, np.inf, np.inf, np.inf])


def test_log_is_within_2_ulp():
    x = np.concatenate([np.geomspace(1.2e-38, 3e38, 500_001), np.linspace(0.5, 2, 500_001)])
    y, _, x = call(1, x)
    truth = np.log(x)
    assert np.max(np.abs(y - truth) / np.maximum(np.abs(truth), 2.0**-4)) < 2 * 2.0**-23
    assert call(1, np.ones(1))[0] == 0


def test_tanh_and_sigmoid():
    y, _, x = call(2, EVERYWHERE)
    assert np.max(np.abs(y - np.tanh(x))) < 3e-7
    assert np.max(np.abs(y)) <= 1
    ends = np.array([9.0, 9.5, 20.0, 1e30, np.inf])
    np.testing.assert_array_equal(call(2, np.concatenate((ends, -ends)))[0], [1] * 5 + [-1] * 5)
    assert np.isnan(call(2, np.array([np.nan]))[0]).all()
    y, _, x = call(3, EVERYWHERE)
    assert np.max(np.abs(y - 1 / (1 + np.exp(-x)))) < 1.5e-7


def test_normal_distribution_and_density():
    y, density, x = call(4, EVERYWHERE)
    assert np.max(np.abs(y - torch.special.ndtr(torch.from_numpy(x)).numpy())) < 3e-7
    assert np.max(np.abs(density - np.exp(-x * x / 2) / np.sqrt(2 * np.pi))) < 1e-7


def test_sincos():
    cosine, sine, x = call(5, np.arange(2**20) / 2**20)
    assert np.max(np.abs(cosine - np.cos(2 * np.pi * x))) < 1.5e-7
    assert np.max(np.abs(sine - np.sin(2 * np.pi * x))) < 1.5e-7


@pytest.mark.parametrize("code", range(6))
def test_nan_stays_nan(code):
    assert np.isnan(call(code, np.array([np.nan]))[0]).all()
