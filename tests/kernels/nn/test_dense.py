"""Products of matrices, and blocks of 64 samples turned to rows of samples."""

import numpy as np
import pytest
from numba import njit  # noqa: TID253

from headrace.kernels.nn import dense
from headrace.kernels.nn.dense import TARGET, combine, transpose
from headrace.kernels.nn.layout import BLOCK, rounded

SIZE = int(BLOCK)


@njit
def turned(scratch, source, rows, target, stride):
    transpose(scratch, source, rows, target, stride, BLOCK)


@pytest.mark.parametrize("rows", [1, 15, 16, 37, 64])
def test_samples_become_rows(rows):
    stride, before = rounded(rows), 3
    target = before + rows * SIZE
    scratch = np.arange(target + SIZE * stride, dtype=np.float32)
    left = scratch[target:].reshape(SIZE, stride)[:, rows:].copy()
    turned(scratch, *(np.uint64(x) for x in (before, rows, target, stride)))
    block = np.arange(before, before + rows * SIZE, dtype=np.float32).reshape(rows, SIZE)
    found = scratch[target:].reshape(SIZE, stride)
    assert (found[:, :rows] == block.T).all() and (found[:, rows:] == left).all()
    assert (scratch[:target] == np.arange(target)).all()


@njit
def product(begin, bias, weight, w, row, column, rows, count, source, width, target, t):
    zero = np.uint64(0)
    combine(begin, bias, weight, w, row, column, rows, count, source, zero, width, target, t, width, width)


def multiplied(weight, source, target, across, alone):
    """target + weight @ source, by the kernel; weight stored by columns where `across`. alone: row by row."""
    (rows, count), width, result = weight.shape, source.shape[1], target.copy()
    stored = np.ascontiguousarray(weight.T if across else weight).ravel()
    row, column = (1, rows) if across else (count, 1)
    calls = [(first * row, 1, first * width) for first in range(rows)] if alone else [(0, rows, 0)]
    for w, some, t in calls:
        numbers = (np.uint64(x) for x in (w, row, column, some, count))
        product(
            TARGET, np.uint64(0), stored, *numbers, source.ravel(), np.uint64(width), result.reshape(-1), np.uint64(t)
        )
    return result


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("rows", [*range(1, 14), 24])
@pytest.mark.parametrize(("count", "width"), [(1, 16), (63, 64), (64, 48), (65, 64), (200, 112)])
def test_products_of_any_shape_whatever_the_tiles(rows, count, width, across):
    random = np.random.default_rng(rows)
    weight, source, target = (
        random.standard_normal(shape, dtype=np.float32) for shape in ((rows, count), (count, width), (rows, width))
    )
    found = multiplied(weight, source, target, across, alone=False)
    np.testing.assert_allclose(found, target + weight.astype(np.float64) @ source, rtol=1e-5, atol=2e-5)
    assert (multiplied(weight, source, target, across, alone=True) == found).all()  # each sum in its own order


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (6, 64), (13, 112), (31, 96)])
def test_what_the_sums_begin_with(rows, width):
    """A target that need not be read may hold anything."""
    random, count = np.random.default_rng(rows), 70
    weight = random.standard_normal((rows, count), dtype=np.float32)
    bias = random.standard_normal(rows, dtype=np.float32)
    source = random.standard_normal((count, width), dtype=np.float32)
    stored = np.concatenate((weight.ravel(), bias))
    numbers = [np.uint64(x) for x in (0, count, 1, rows, count)]
    found = {}
    for begin in (dense.TARGET, dense.ZERO, dense.BIAS):
        start = {dense.TARGET: 2.0, dense.ZERO: np.nan, dense.BIAS: np.nan}[begin]
        found[int(begin)] = np.full((rows, width), start, np.float32)
        place = np.uint64(weight.size)
        product(
            begin, place, stored, *numbers, source.ravel(), np.uint64(width), found[begin].reshape(-1), np.uint64(0)
        )
    exact = weight.astype(np.float64) @ source
    wanted = (exact + 2, exact, exact + bias[:, None])
    for begin, expected in enumerate(wanted):
        np.testing.assert_allclose(found[begin], expected, rtol=1e-5, atol=2e-5)
