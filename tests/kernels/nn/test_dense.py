"""Blocks of 64 samples turned to rows of samples."""

import numpy as np
import pytest
from numba import njit  # noqa: TID253

from headrace.kernels.nn.dense import transpose
from headrace.kernels.nn.layout import BLOCK, rounded

SIZE = int(BLOCK)


@njit
def turned(scratch, source, rows, target, stride):
    transpose(scratch, source, rows, target, stride)


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
