"""Functions of row programs on the CPU, against float64 and, at the borders, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.row_program import FUNCTIONS, TRUTHS, Input, Output, Program, whole
from headrace.kernels.rows.row_schedule import plan
from tests.kernels.rows import in_numpy
from tests.kernels.rows.on_cpu import run

generator = np.random.default_rng(0)
WIDE = np.concatenate([generator.standard_normal(4000) * 3, generator.uniform(-80, 80, 2000), [0.0, -0.0, 1.0, -1.0]])
POSITIVE = np.concatenate([np.exp(generator.uniform(-80, 80, 4000)), generator.uniform(0, 5, 2000), [1.0, 2.0, 1e-40]])
BELOW_ONE = np.concatenate([generator.uniform(-1, 1, 4000), generator.standard_normal(1000) * 1e-4])
ANGLES = np.concatenate([generator.uniform(-3000, 3000, 6000), generator.uniform(-1e9, 1e9, 2000)])
QUARTERS = np.concatenate([np.arange(1, 40_000), generator.integers(1, 2**40, 40_000)]) * (np.pi / 2)
# function -> its inputs, and the largest errors: relative, absolute
ERRORS = {
    **{"exp": (WIDE, 3e-7, 0), "expm1": (WIDE, 8e-7, 0), "log": (POSITIVE, 3e-7, 1e-7), "log1p": (POSITIVE, 8e-7, 0)},
    **{"sqrt": (POSITIVE, 1e-7, 0), "rsqrt": (POSITIVE, 2e-7, 0), "reciprocal": (POSITIVE, 1e-7, 0)},
    **{"tanh": (WIDE, 1e-6, 3e-7), "atanh": (BELOW_ONE, 2e-6, 0), "sigmoid": (WIDE, 1e-6, 0)},
    **{"sin": (ANGLES, 0, 4e-7), "cos": (ANGLES, 0, 4e-7), "erf": (WIDE, 1e-6, 0)},
    **{"lgamma": (np.exp(generator.uniform(-12, 12, 4000)), 1e-6, 3e-6)},
    **{"digamma": (np.exp(generator.uniform(-12, 12, 4000)), 2e-6, 2e-6)},
    **{"trigamma": (np.exp(generator.uniform(-12, 12, 4000)), 2e-6, 2e-6)},
    **{name: (WIDE, 0, 0) for name in ("neg", "abs", "sign", "floor", "ceil", "round", "trunc")},
}
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1.0, 89.0, -89.0, 3e38, -104.0], np.float32)


def mapped(function: str, *operands: np.ndarray, dtype: str = "f32") -> np.ndarray:
    """A Map's results on float32 columns."""
    build = Builder()
    columns = tuple(Input((), True, dtype, f"x{i}", i) for i in range(len(operands)))
    result = build.map(function, *map(whole, columns))
    if function in TRUTHS:
        result = build.map("float", result)
    program = Program(function, columns, (), (Output("y", result),))
    return run(plan(program), [x.astype(np.float32) for x in operands], [])["y"]


@pytest.mark.parametrize("function", ERRORS)
def test_functions_are_as_exact_as_they_should_be(function: str) -> None:
    x, relative, absolute = ERRORS[function]
    x = x.astype(np.float32)
    wanted = in_numpy.FUNCTIONS[function](x.astype(np.float64))
    found = mapped(function, x).astype(np.float64)
    normal = np.abs(wanted) < 3.4e38
    error = np.abs(found - wanted)[normal] - relative * np.abs(wanted[normal])
    assert error.max() <= absolute + 1.2e-38, (x[normal][error.argmax()], found[normal][error.argmax()])


def in_torch(function: str, x: np.ndarray) -> np.ndarray:
    given = torch.from_numpy(x.copy())
    return (torch.polygamma(1, given) if function == "trigamma" else getattr(torch, function)(given)).numpy()


NOT_FOR_NEGATIVE = {"lgamma", "digamma", "trigamma"}


@pytest.mark.parametrize("function", ERRORS)
def test_at_the_borders_they_are_torchs(function: str) -> None:
    x = SPECIAL[SPECIAL >= 0] if function in NOT_FOR_NEGATIVE else SPECIAL
    if function in NOT_FOR_NEGATIVE:
        x = x[x != np.float32(1e-40)]
    found = mapped(function, x)
    wanted = in_torch(function, x)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-37)


def test_two_operands() -> None:
    x, y = generator.standard_normal((2, 5000)) * 3
    for function in ("add", "sub", "mul", "div", "maximum", "minimum", "fmod", "eq", "ne", "lt", "le", "gt", "ge"):
        wanted = in_numpy.FUNCTIONS[function](x.astype(np.float32), y.astype(np.float32))
        np.testing.assert_allclose(mapped(function, x, y), wanted, rtol=2e-6, atol=2e-6, err_msg=function)
    base, power = np.exp(generator.uniform(-2, 2, 2000)), generator.uniform(-5, 5, 2000)
    np.testing.assert_allclose(mapped("pow", base, power), base**power, rtol=5e-6)
    wanted = np.array([4.0, -8, np.nan, 1, 1])
    np.testing.assert_allclose(
        mapped("pow", np.array([-2.0, -2, -2, 0, 5]), np.array([2.0, 3, 0.5, 0, 0])), wanted, rtol=1e-6
    )


@pytest.mark.parametrize("function", ["maximum", "minimum", "div", "pow", "fmod"])
def test_two_operands_at_the_borders(function: str) -> None:
    x, y = (part.reshape(-1) for part in np.meshgrid(SPECIAL, SPECIAL))
    if function in ("pow", "fmod"):  # of usual numbers and NaN
        usual = (np.abs(x) < 1e30) & (np.abs(y) < 1e30) & (np.abs(y) > 1e-30) & (np.abs(x) > 1e-30)
        usual |= np.isnan(x) | np.isnan(y)
        x, y = x[usual], y[usual]
    wanted = getattr(torch, function)(torch.from_numpy(x.copy()), torch.from_numpy(y.copy())).numpy()
    np.testing.assert_allclose(mapped(function, x, y), wanted, rtol=5e-6, atol=1e-37)


def test_rests_of_divisions_are_exact() -> None:
    """Just below whole multiples, and of quotients with more digits than float32 has."""
    y = np.exp(generator.uniform(-3, 3, 3000)).astype(np.float32)
    near = np.nextafter((generator.integers(1, 1000, 3000) * y).astype(np.float32), np.float32(0))
    large = (generator.standard_normal(3000) * 10.0 ** generator.integers(5, 38, 3000)).astype(np.float32)
    for x in (near, -near, large):
        np.testing.assert_array_equal(mapped("fmod", x, y), np.fmod(x, y))
    x, y = (np.array(part, np.float32) for part in ([1, -1, np.inf, 1, 0, np.nan], [np.inf, -np.inf, 1, 0, 3, 1]))
    np.testing.assert_array_equal(mapped("fmod", x, y), torch.fmod(torch.from_numpy(x), torch.from_numpy(y)).numpy())


def test_powers_and_exponentials_where_parts_of_them_overflow() -> None:
    x, y = (
        np.array(part, np.float32)
        for part in ([-1, -1, 2, 0.5, 1, -8], [np.inf, -np.inf, np.inf, np.inf, np.nan, 1 / 3])
    )
    wanted = torch.pow(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    np.testing.assert_array_equal(mapped("pow", x, y), wanted)
    x = np.array([80, 88.5, 88.7], np.float32)
    np.testing.assert_allclose(mapped("expm1", x), np.expm1(x.astype(float)), rtol=1e-6)


@pytest.mark.parametrize("function", ["sin", "cos"])
def test_angles_of_all_sizes_are_reduced_with_all_digits(function: str) -> None:
    """Angles next to multiples of pi / 2, too, of which little is left."""
    sizes = 10 ** np.concatenate([generator.uniform(-30, 30, 60_000), generator.uniform(-1, 1, 20_000)])
    largest = np.array([1e30, 3.4028234e38, 2.0**127, 1e-45])
    x = np.concatenate([sizes * generator.choice([-1, 1], len(sizes)), QUARTERS, -QUARTERS, largest])
    x = x.astype(np.float32)
    wanted = getattr(np, function)(x.astype(np.float64))
    apart = np.abs(mapped(function, x) - wanted) / np.spacing(np.abs(wanted).astype(np.float32))
    assert apart.max() < 1.6, x[apart.argmax()]


def test_every_function_has_a_rule() -> None:
    tried = {*ERRORS, *TRUTHS, "add", "sub", "mul", "div", "maximum", "minimum", "pow", "fmod", "where"}
    assert FUNCTIONS.keys() == tried | {"float", "int"}
