"""Operations on sixteen values, whatever the width of the machine's registers."""

import numpy as np
import pytest
from numba import njit  # noqa: TID253

from headrace.kernels.nn import activations
from headrace.kernels.nn.layout import WIDTH
from headrace.kernels.nn.simd import largest, load, store

F = np.float32
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 1, -1, 2, -2, 0.5, -0.5, 7], F)


@njit
def all_largest(x, y, z):
    for i in range(np.uint64(0), np.uint64(len(x)), WIDTH):
        store(z, i, largest(load(x, i), load(y, i)))


def test_the_larger_of_two_is_the_second_where_neither_is():
    x, y = (np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(ODD, ODD))
    z = np.empty_like(x)
    all_largest(x, y, z)
    assert z.tobytes() == np.where(x > y, x, y).tobytes()


@pytest.mark.parametrize("function", [activations.relu, activations.leaky_relu])
def test_activations_that_are_a_maximum_keep_nan_and_the_sign_of_zero(function):
    @njit
    def in_place(x):
        for i in range(np.uint64(0), np.uint64(len(x)), WIDTH):
            store(x, i, function(load(x, i)))

    x = ODD.copy()
    in_place(x)
    low = F(0) if function is activations.relu else ODD * F(0.01)
    assert x.tobytes() == np.where(low > ODD, low, ODD).astype(F).tobytes()
