"""The front end: names resolve as in Python, kinds are inferred, nothing is wider than 32 bits."""

import ast

import numpy as np
from helpers.user_file import ENV, changed, line_of, load

from headrace.envs.builtin.acrobot import Acrobot
from headrace.envs.builtin.cartpole import CartPole
from headrace.kernels.language.ir import Field, Param
from headrace.kernels.language.kinds import Array
from headrace.kernels.language.read import read


def function(ir, name):
    """A lowered function as text."""
    node = next(f.node for f in ir.functions if f.name == name)
    return ast.unparse(node)


def step_with(tmp_path, lines, more=""):
    """The lowered step() of WORLD with these lines before its `return`."""
    body = "\n        ".join([*lines, "return MyEnv.State"])
    cls, _ = load(tmp_path, changed("return MyEnv.State(s.x, s.n + 1", body + "(s.x, s.n + 1") + more)
    return function(read(cls), "env_step")


def test_cartpole():
    ir = read(CartPole)
    assert ir.state[0] == Field("x", "f32") and len(ir.floats) == 4 and not ir.integers
    assert ir.params[0] == Param("gravity", "f32", 9.8)
    assert ir.statement is None and not ir.observes_into and ir.max_steps == 500
    assert "force = select(action == I32(1), p[4], -p[4])" in function(ir, "env_step")
    assert function(ir, "env_observe").endswith("return (s[0], s[1], s[2], s[3])")


def test_helpers_come_first_and_only_once():
    names = [f.name for f in read(Acrobot).functions]
    assert names[-3:] == ["env_reset", "env_step", "env_observe"]
    assert len(names) == len(set(names)) and "env_wrapped" in names[:-3]


def test_array_fields_and_statement(tmp_path):
    cls, path = load(tmp_path, ENV)
    ir = read(cls)
    assert ir.arrays == (Field("cells", "i32", (4,)),) and ir.arrays[0].kind == Array("i32", (4,), "cells")
    assert (ir.statement.keyword, ir.statement.line) == ("for", line_of(path, "for i in range"))


def test_literals_and_operators_stay_within_32_bits(tmp_path):
    text = step_with(
        tmp_path, ["a = s.n * 2 + 1", "b = a / 2", "c = a // 2 % 3", "d = s.n > 1 or not a == 2", "e = d + 1"]
    )
    assert "a = I32(I32(s[1] * I32(2)) + I32(1))" in text
    assert "b = F32(a) / F32(2.0)" in text
    assert "c = I32(I32(a // I32(2)) % I32(3))" in text
    assert "d = (s[1] > I32(1)) | (a == I32(2)) ^ True" in text
    assert "e = I32(I32(d) + I32(1))" in text


def test_constants_are_computed_in_double_precision(tmp_path):
    text = step_with(tmp_path, ["y = s.x * (4.0 / 3.0) + LIMIT * 2 + math.pi"], "LIMIT = 12 * 2 * np.pi / 360\n")
    assert "F32(1.3333333333333333)" in text and f"F32({12 * 2 * np.pi / 360 * 2})" in text
    assert f"F32({np.pi})" in text


def test_names_of_math_and_numpy_are_words(tmp_path):
    text = step_with(tmp_path, ["y = math.sin(s.x) + np.cos(s.x) + np.arctan2(s.x, 1.0)", "z = np.clip(y, 0, 1) ** 2"])
    assert "y = sin(s[0]) + cos(s[0]) + atan2(s[0], F32(1.0))" in text
    assert "clip(y, F32(0.0), F32(1.0)) * clip(y, F32(0.0), F32(1.0))" in text


def test_a_name_is_of_one_kind(tmp_path):
    text = step_with(tmp_path, ["y = 0", "if s.n > 1:", "    y = 0.5"])
    assert "y = F32(0.0)" in text and "y = F32(0.5)" in text


def test_locals_may_have_names_of_words(tmp_path):
    text = step_with(tmp_path, ["bits = math.sin(s.x)", "F32 = bits + 1.0"])
    assert "bits_ = sin(s[0])" in text and "F32_ = bits_ + F32(1.0)" in text


def test_array_access_stays_guarded(tmp_path):
    text = step_with(tmp_path, ["a = s.cells[s.n] if s.n < 4 else 0", "b = s.n < 4 and s.cells[s.n] > 0"])
    assert "a = s[2][s[1]] if s[1] < I32(4) else I32(0)" in text
    assert "b = s[1] < I32(4) and s[2][s[1]] > I32(0)" in text


def test_tables_slices_lengths_and_replace(tmp_path):
    lines = ["rows, columns = MOVES[action]", "s.cells[:] = rows", "t = s._replace(n=len(MOVES))"]
    text = step_with(tmp_path, lines, "MOVES = ((0, 1), (1, 0))\n")
    assert "rows = _part1[0]" in text or "TABLE0[action, 0]" in text
    assert "for _index" in text and "t = (s[0], I32(2), s[2])" in text


def test_a_constant_condition_is_settled_now(tmp_path):
    text = step_with(tmp_path, ["y = 0", "if FAST:", "    y = 1", "else:", "    y = 2"], "FAST = False\n")
    assert "y = I32(2)" in text and "if" not in text


def test_helpers_closures_and_defaults(tmp_path):
    more = "SCALE = 3.0\ndef scaled(x, by=SCALE):\n    if x > 1.0:\n        return 1\n    return x * by\n"
    cls, _ = load(tmp_path, changed("return s.x, 0.0", "return scaled(s.x), scaled(x=s.x, by=2)") + more)
    ir = read(cls)
    helpers = [f.name for f in ir.functions[:-3]]
    assert helpers == ["env_scaled", "env_scaled_2"]  # one for each set of kinds
    assert "env_scaled(s[0], F32(3.0))" in function(ir, "env_observe")
    assert "return F32(1.0)" in function(ir, "env_scaled")


def test_subclass_with_other_parameters(tmp_path):
    text = (
        "from headrace.envs.builtin.cartpole import CartPole\n"
        "class Heavy(CartPole):\n    max_steps = 7\n    class Params(NamedTuple):\n"
    )
    fields = [
        f"        {p.name}: {p.dtype} = {5.0 if p.name == 'cart_mass' else p.default}\n" for p in read(CartPole).params
    ]
    cls, _ = load(tmp_path, text + "".join(fields), "Heavy")
    ir = read(cls)
    assert ir.max_steps == 7 and ir.params[1] == Param("cart_mass", "f32", 5.0)
    assert ir.code == read(CartPole).code and ir.digest != read(CartPole).digest


def test_digest_covers_helpers_and_constants(tmp_path):
    digests = set()
    for value in ("1.0", "2.0", "1.0"):
        cls, _ = load(
            tmp_path,
            changed("return s.x, 0.0", "return s.x, far(s.x)") + f"Y = {value}\ndef far(x):\n    return x + Y\n",
        )
        digests.add(read(cls).digest)
    assert len(digests) == 2
