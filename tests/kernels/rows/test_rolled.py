"""Steps that differ in where they read and write alone: one function, and a loop over a table where they are many."""

from __future__ import annotations

import re

import numpy as np
import pytest

from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.row_program import Input, Output, Program, View, whole
from headrace.kernels.rows.row_schedule import plan
from headrace.kernels.rows.targets import cpu_rolled
from headrace.kernels.rows.targets.cpu import PARTS, assembly
from headrace.kernels.rows.targets.llvm_expressions import PARAMETERS
from tests.kernels.rows import in_numpy, on_cpu

ROWS, WIDTH = 150, 24


def recurrence(steps: int) -> Program:
    """A state that is computed from a column's part and the state before, all states, and gradients of the weights."""
    build, x = Builder(), Input((steps, WIDTH), True, name="x")
    w = Input((WIDTH, WIDTH), False, name="w")
    state, states, gradient = View(x, (WIDTH,), (1,)), list[View](), None
    for t in range(1, steps):
        now = View(x, (WIDTH,), (1,), t * WIDTH)
        before, state = state, build.map("tanh", build.map("add", build.product(state, whole(w)), now))
        states.append(View(state.value, (1, WIDTH), (WIDTH, 1)))
        own = build.outer(state, build.map("sin", before))
        gradient = own if gradient is None else build.map("add", gradient, own)
    assert gradient is not None
    outputs = Output("states", build.map("exp", build.join(states, 0))), Output("w", gradient)
    return Program("recurrence", (x,), (w,), outputs)


def given(program: Program) -> tuple[list[np.ndarray], list[np.ndarray]]:
    generator = np.random.default_rng(0)
    columns = [generator.standard_normal((ROWS, *value.shape)).astype(np.float32) for value in program.columns]
    return columns, [0.2 * generator.standard_normal(value.shape).astype(np.float32) for value in program.uniforms]


@pytest.mark.parametrize("by_weights", [False, True])
def test_a_loop_computes_the_bits_of_single_calls(by_weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(recurrence(40), by_weights=by_weights)
    columns, uniforms = given(planned.program)
    rolled = on_cpu.run(planned, columns, uniforms, threads=2)
    assert "switch i32" in assembly(planned, ["float32"], wide=False)
    monkeypatch.setattr(cpu_rolled, "MANY", 10**6)
    single = on_cpu.run(planned, columns, uniforms)
    assert "switch i32" not in assembly(planned, ["float32"], wide=False)
    for name, numbers in in_numpy.run(planned.program, [c.reshape(ROWS, -1) for c in columns], uniforms).items():
        np.testing.assert_array_equal(rolled[name], single[name])
        np.testing.assert_allclose(rolled[name].reshape(numbers.shape), numbers, rtol=2e-4, atol=2e-3)


@pytest.mark.parametrize("by_weights", [False, True])
def test_the_code_of_a_longer_sequence_is_no_longer(by_weights: bool) -> None:
    short, long = (
        assembly(plan(recurrence(steps), by_weights=by_weights), ["float32"], wide=True) for steps in (60, 120)
    )
    functions = [len(re.findall("^define", text, re.M)) for text in (short, long)]
    assert functions[0] == functions[1]
    assert long.count("\n") < 1.02 * short.count("\n")


@pytest.mark.parametrize("count", [PARTS, PARTS + 1, 3 * PARTS])
@pytest.mark.parametrize("rows", [True, False])
def test_many_parts_are_joined(count: int, rows: bool) -> None:
    """Parts of several sizes, of values and of what is computed for the Join alone."""
    build, x = Builder(), Input((count, 5), rows, name="x")
    columns, uniforms = ((x,), ()) if rows else ((Input((), True, name="none"),), (x,))
    parts = [View(x, (1 + i % 5,), (1,), 5 * i) for i in range(count)]
    parts = [build.map("cos", part) if i % 3 == 1 else part for i, part in enumerate(parts)]
    joined = build.join(parts, 0)
    program = Program("joined", columns, uniforms, (Output("y", build.map("exp", joined)), Output("z", joined)))
    planned, (found_columns, found_uniforms) = plan(program), given(program)
    found = on_cpu.run(planned, found_columns, found_uniforms)
    for name, numbers in in_numpy.run(program, [c.reshape(ROWS, -1) for c in found_columns], found_uniforms).items():
        np.testing.assert_allclose(found[name].reshape(numbers.shape), numbers, rtol=1e-5, atol=1e-6)


def test_a_step_reads_more_views_than_it_has_parameters() -> None:
    build, count = Builder(), 2 * PARAMETERS
    x, y = (Input((count, 7), True, name=name, position=i) for i, name in enumerate("xy"))
    total = View(x, (7,), (1,))
    for i in range(1, count):
        own = View(y if i % 2 else x, (7,), (1,), 7 * i)
        total = build.map("mul" if i % 5 == 0 else "add", total, own)
    program = Program("views", (x, y), (), (Output("sum", build.map("tanh", total)),))
    columns, _ = given(program)
    found = on_cpu.run(plan(program), columns, [])
    (wanted,) = in_numpy.run(program, [c.reshape(ROWS, -1) for c in columns], []).values()
    np.testing.assert_allclose(found["sum"].reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)
