"""Words: accuracy against float64, equality between targets, draws against Philox's published vectors."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from numba import njit  # noqa: TID253

from headrace.core import rng
from headrace.kernels.language import ops, ops_scalar

DECORATOR = '@njit(error_model="numpy", fastmath={"contract"}, forceinline=True)'
SPAN = {  # word: float64 reference, inputs from .. to, largest error in units of the last place
    "sin": (np.sin, -1e4, 1e4, 3),
    "cos": (np.cos, -1e4, 1e4, 3),
    "tan": (np.tan, -10, 10, 4),
    "exp": (np.exp, -87, 88.7, 2),
    "tanh": (np.tanh, -12, 12, 5),
    "sqrt": (np.sqrt, 0, 1e5, 1),
    "floor": (np.floor, -1e5, 1e9, 0),
    "ceil": (np.ceil, -1e9, 1e5, 0),
    "absolute": (np.abs, -1e5, 1e5, 0),
    "sign": (np.sign, -1, 1, 0),
}


@pytest.fixture(scope="module")
def compiled():
    """Every word as a Numba function, and whatever else is compiled among them."""
    scope: dict = {"njit": njit}
    exec(ops.prelude(DECORATOR), scope)

    def over(expression, *arrays, out=np.float32):
        """Evaluate an expression of words in x, y for each entry."""
        names = ["x", "y"][: len(arrays)]
        loads = "; ".join(f"{name} = {name}s[i]" for name in names)
        text = f"""
@njit(error_model="numpy", fastmath={{"contract"}})
def kernel({", ".join(n + "s" for n in names)}, out):
    for i in range(np.uint64(0), np.uint64(out.shape[0])):
        {loads}
        out[i] = {expression}
"""
        exec(text, scope)
        result = np.empty(len(arrays[0]), out)
        scope["kernel"](*arrays, result)
        over.llvm = next(iter(scope["kernel"].inspect_llvm().values()))
        return result

    return over


def units(got, wanted):
    """Difference in units of the last place of a float32."""
    wanted = np.asarray(wanted, np.float64)
    return np.abs(got - wanted) / np.spacing(np.maximum(np.abs(wanted), 1e-37).astype(np.float32))


def inputs(low, high, count=100_000):
    return np.random.default_rng(0).uniform(low, high, count).astype(np.float32)


@pytest.mark.parametrize("name", SPAN)
def test_accuracy(compiled, name):
    reference, low, high, bound = SPAN[name]
    x = inputs(low, high)
    got = compiled(f"{name}(x)", x)
    assert units(got, reference(x.astype(np.float64))).max() <= bound
    assert "double" not in compiled.llvm
    plain = np.array([getattr(ops, name)(value) for value in x[:300]])
    assert plain.dtype == np.float32
    assert units(plain, reference(x[:300].astype(np.float64))).max() <= bound


def test_log(compiled):
    x = np.exp(inputs(-87, 88).astype(np.float64)).astype(np.float32)
    got = compiled("log(x)", x)
    assert units(got, np.log(x.astype(np.float64))).max() <= 1
    assert np.array_equal(got[:300], [ops.log(value) for value in x[:300]])


def test_atan2(compiled):
    y, x = inputs(-5, 5), np.random.default_rng(1).permutation(inputs(-5, 5))
    got = compiled("atan2(x, y)", y, x)
    assert units(got, np.arctan2(y.astype(np.float64), x.astype(np.float64))).max() <= 4
    assert ops.atan2(0.0, 0.0) == 0 and ops.atan2(1.0, 0.0) == np.float32(np.pi / 2)


@pytest.mark.parametrize(
    "name, x, wanted",
    [
        ("exp", [0, -np.inf, np.inf, np.nan, -200, 200], [1, 0, np.inf, np.nan, 0, np.inf]),
        ("log", [1, 0, -1, np.inf, np.nan, 1e-40], [0, -np.inf, np.nan, np.inf, np.nan, -92.1034]),
        ("tanh", [0, np.inf, -np.inf, np.nan], [0, 1, -1, np.nan]),
        ("sin", [0, np.inf, -np.inf, np.nan], [0, np.nan, np.nan, np.nan]),
        ("cos", [0, np.inf, -np.inf, np.nan], [1, np.nan, np.nan, np.nan]),
        ("floor", [-0.5, 1e30, np.inf, np.nan, -1], [-1, 1e30, np.inf, np.nan, -1]),
        ("ceil", [-0.5, -1e30, np.inf, np.nan, 1], [0, -1e30, np.inf, np.nan, 1]),
    ],
)
def test_edges(compiled, name, x, wanted):
    x = np.array(x, np.float32)
    np.testing.assert_allclose(compiled(f"{name}(x)", x), wanted, rtol=5e-7)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose([getattr(ops, name)(value) for value in x], wanted, rtol=5e-7)


def test_division_of_floats_rounds_down(compiled):
    x, y = inputs(-50, 50), inputs(0.5, 3)
    assert np.array_equal(compiled("floor_divide(x, y)", x, y), np.floor(x / y))
    rest = compiled("floor_mod(x, -y)", x, y)
    np.testing.assert_allclose(rest, x + np.floor(x / -y) * y, atol=1e-5)


def test_clip_and_select():
    assert ops.clip(5, 0, 3) == 3 and ops.clip(-5.0, -1.0, 3.0) == -1 and np.isnan(ops.clip(np.nan, 0.0, 1.0))
    assert ops.select(True, 1, 2) == 1 and ops.select(np.bool_(False), 1, 2) == 2


KNOWN = [  # from the known-answer tests of the Random123 library: key, counter, words
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("key, counter, wanted", KNOWN)
def test_philox_known_answers(compiled, key, counter, wanted):
    plain = ops_scalar._philox(*(np.uint32(x) for x in key + counter))
    assert plain == wanted
    numbers = "".join(f", U32({x})" for x in counter)
    for lane, op in enumerate(wanted):
        got = compiled(f"_philox(x, y{numbers})[{lane}]", np.uint32([key[0]]), np.uint32([key[1]]), out=np.uint32)
        assert got[0] == op
    tensors = rng.philox(tuple(torch.tensor(x) for x in key), tuple(torch.tensor(x) for x in counter))
    assert tuple(int(x) for x in tensors) == wanted


DRAWS = {
    "uniform({key}, {draw}, -0.05, 0.3)": np.float32,
    "normal({key}, {draw}, 1.5, 2.5)": np.float32,
    "randint({key}, {draw}, 7)": np.int32,
    "bits({key}, {draw})": np.uint32,
}


@pytest.mark.parametrize("expression", DRAWS)
@pytest.mark.parametrize("draw", [0, 1, 2, 3, 6])
def test_draws_equal_plain_python(compiled, expression, draw):
    env = np.arange(2000, dtype=np.uint32)
    text = re.sub(r"(-?\d+\.\d+)", r"F32(\1)", expression)
    got = compiled(
        text.format(key="(U32(9), U32(1), x, U32(3), U32(4000000000))", draw=draw), env, out=DRAWS[expression]
    )
    assert "double" not in compiled.llvm
    scope = {**vars(ops), "env": env}
    plain = [eval(expression.format(key=f"(9, 1, {n}, 3, 4000000000)", draw=draw), scope) for n in env[:200]]
    assert np.array_equal(got[:200], plain)
    assert plain[0].dtype == DRAWS[expression]


def test_draws_follow_their_distributions(compiled):
    env = np.arange(400_000, dtype=np.uint32)
    key = "(U32(1), U32(1), x, U32(0), U32(0))"
    u = compiled(f"uniform({key}, 0, -1.0, 3.0)", env)
    assert u.min() >= -1 and u.max() < 3 and abs(u.mean() - 1) < 0.01 and abs(u.std() - 4 / 12**0.5) < 0.01
    z = compiled(f"normal({key}, 1, 0.0, 1.0)", env).astype(np.float64)
    for moment, wanted in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert abs((z**moment).mean() - wanted) < 0.03
    assert abs((np.abs(z) > 2.5758293).mean() - 0.01) < 6e-4
    counts = np.bincount(compiled(f"randint({key}, 2, 7)", env, out=np.int32), minlength=7)
    assert len(counts) == 7 and np.abs(counts / len(env) - 1 / 7).max() < 0.003
    assert abs(np.corrcoef(u, z)[0, 1]) < 0.01


def test_constant_draws_of_one_block_share_one_philox(compiled):
    """Four draws of one block cost less than two: one evaluation of Philox is left of the four."""
    env = np.arange(64, dtype=np.uint32)
    key = "(U32(1), U32(1), x, U32(0), U32(0))"
    products = []
    for draws in ((0,), (0, 1, 2, 3)):
        compiled(" + ".join(f"uniform({key}, {d}, 0.0, 1.0)" for d in draws), env)
        products.append(len(re.findall(r"= mul ", compiled.llvm)))
    assert 0 < products[1] < 2 * products[0]


def test_array_spec():
    assert ops.array(ops.i8, 3, 4) == ops.Array(np.int8, (3, 4))
    with pytest.raises(ValueError, match="at least one size"):
        ops.array(ops.i8)
