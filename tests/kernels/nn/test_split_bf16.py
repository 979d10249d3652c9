"""Products on tiles of bfloat16 are float32's: each number in three parts, exactly, and sums that err no more."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit  # noqa: TID253

from headrace.kernels.nn import amx
from headrace.kernels.nn.layout import aligned
from headrace.kernels.nn.split_bf16 import close_tiles, multiply_tiles, open_tiles, pack

U = np.uint64
needs_tiles = pytest.mark.skipif(not amx.tiles_permitted(), reason="the processor has no tiles of bfloat16")


@njit
def packed(source, row, outer, inner, along, left, target, plane):
    pack(source, U(0), row, outer, inner, along, left, target, U(0), plane, inner // U(32))


@njit
def product(left, right, rows, columns, inner, target):
    open_tiles()
    for r in range(U(0), rows, U(32)):
        place = r * inner // U(2)
        multiply_tiles(
            left, place, rows * inner // U(2), right, U(0), columns * inner // U(2),
            inner // U(32), columns, target, r * columns, columns,
        )  # fmt: skip
    close_tiles()


def factor(matrix, left, along):
    """A matrix [k, c], of a left factor [r, k], as words; along: neighbours along k lie side by side."""
    outer, inner = matrix.shape if left else matrix.shape[::-1]
    lies = matrix if left == along else matrix.T
    source, words = aligned(lies.size), aligned(3 * lies.size // 2)
    source[:] = np.ascontiguousarray(lies).reshape(-1)
    sizes = (U(x) for x in (lies.shape[1], outer, inner))
    packed(source, *sizes, along, left, words, U(lies.size // 2))
    return words


def numbers(words, outer, inner, left):
    """What was packed, the sum of its three parts: [outer, inner]; along k each word holds two."""
    halves = words.view(np.uint16).reshape(3, outer // 16, inner // 32, 16, 16, 2)
    order = (0, 1, 3, 2, 4, 5) if left else (0, 1, 4, 2, 3, 5)
    parts = halves.transpose(order).reshape(3, outer, inner).astype(np.uint32) << 16
    return parts.view(np.float32).astype(np.float64).sum(0)


def drawn(*shape):
    rng = np.random.default_rng(3)
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-12, 12, shape)).astype(np.float32)


@pytest.mark.parametrize("along", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_a_number_is_the_sum_of_its_three_parts_exactly(left, along):
    matrix = drawn(32, 96) if left else drawn(96, 32)
    got = numbers(factor(matrix, left, along), 32, 96, left)
    np.testing.assert_array_equal(got, matrix if left else matrix.T)


@needs_tiles
@pytest.mark.parametrize(("rows", "inner", "columns"), [(32, 32, 32), (64, 256, 64), (96, 160, 128)])
@pytest.mark.parametrize("along", [True, False])
def test_products_err_no_more_than_float32(rows, inner, columns, along):
    rng = np.random.default_rng(rows)
    left, right = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, inner), (inner, columns)))
    target = aligned(rows * columns)
    target[:] = 0.5
    product(factor(left, True, along), factor(right, False, along), *(U(x) for x in (rows, columns, inner)), target)
    exact = left.astype(np.float64) @ right + 0.5
    error = np.abs(target.reshape(rows, columns) - exact)
    size = np.abs(left).astype(np.float64) @ np.abs(right) + 0.5
    assert (error / size).max() < 4 * np.finfo(np.float32).eps
    bfloat16 = (left.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert np.abs(bfloat16.astype(np.float64) @ right - exact + 0.5).max() > 1000 * error.max()


@needs_tiles
def test_what_is_not_a_number_stays_so():
    left, right = drawn(32, 32), drawn(32, 32)
    left[3, 5] = np.nan
    target = aligned(32 * 32)
    product(factor(left, True, True), factor(right, False, True), U(32), U(32), U(32), target)
    assert np.isnan(target.reshape(32, 32)[3]).all()
    assert np.isfinite(np.delete(target.reshape(32, 32), 3, 0)).all()


def test_which_layers_use_tiles(monkeypatch):
    monkeypatch.setattr(amx, "tiles_permitted", lambda: True)
    assert amx.tiles_pay(128, 256)
    assert not amx.tiles_pay(64, 256)  # packing factors costs as much as it gains
    assert not amx.tiles_pay(128, 200)  # not whole tiles


def test_an_environment_variable_turns_them_off(monkeypatch):
    monkeypatch.setenv("HEADRACE_TILES", "0")
    amx.tiles_permitted.cache_clear()
    try:
        assert not amx.tiles_permitted()
    finally:
        amx.tiles_permitted.cache_clear()
