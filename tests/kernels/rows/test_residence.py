"""Phases divided by networks: each group follows what it reads, and bits are those of one phase."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.kernels.rows import row_schedule
from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.row_plan import Phase, Plan
from headrace.kernels.rows.row_program import Input, Output, Program, View, whole
from headrace.kernels.rows.row_schedule import plan
from tests.kernels.rows.compared import columns, numbers, uniforms
from tests.kernels.rows.on_cpu import run
from tests.kernels.rows.test_tiles import tiles  # noqa: F401 - a fixture

WIDTH = 128
ROOM = 4 * 3 * WIDTH * WIDTH  # bytes: one packed weight and its gradient


def critics(joined: bool) -> Program:
    """Two networks, and the gradients of both weights: each of its own number, or of the smaller of both.

    A third network gives the target."""
    build, (x,), weights = Builder(), columns((WIDTH,)), uniforms(*[(WIDTH, WIDTH), (1, WIDTH)] * 3)
    inner, outer = weights[::2], weights[1::2]
    hidden = [build.map("tanh", build.product(whole(x), whole(w))) for w in inner]
    one, two, target = (build.product(h, whole(v)) for h, v in zip(hidden, outer, strict=True))
    smaller = build.map("minimum", one, two)
    outputs = []
    for i, own in enumerate((one, two)):
        error = build.map("sub", smaller if joined else own, target)
        back = build.map("mul", build.product(error, View(outer[i], (WIDTH, 1), (1, WIDTH))), hidden[i])
        outputs.append(Output(f"w{i}", build.outer(back, whole(x))))
    return Program("critics", (x,), weights, (*outputs, Output("target", target)))


def passes(own: Plan) -> list[Phase]:
    """The phases that have steps; sums end in another one."""
    return [phase for phase in own.phases if phase.steps]


def in_order(own: Plan) -> bool:
    """Tell whether no step reads what a later phase computes."""
    steps = ((value, i) for i, phase in enumerate(own.phases) for value in phase.steps)
    number = {value: i for value, i in steps if not isinstance(value, Input)}
    reads = ((view.value, value) for value in number for view in getattr(value, "operands", ()))
    return all(number[needed] <= number[value] for needed, value in reads if needed in number)


@pytest.mark.parametrize(("joined", "groups"), [(False, 3), (True, 2)])
def test_networks_are_computed_one_after_the_other(joined: bool, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks whose gradients depend on each other's numbers are computed together."""
    assert len(passes(plan(critics(joined), split=True))) == 1
    monkeypatch.setattr(row_schedule, "MEMORY", ROOM)
    own = plan(critics(joined), split=True)
    assert len(passes(own)) == groups and in_order(own)
    assert sorted(len(phase.packed) for phase in passes(own)) == ([1, 2] if joined else [1, 1, 1])
    assert len(passes(plan(critics(joined)))) == 1  # in vectors


@pytest.mark.parametrize("by_weights", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_bits_are_those_of_one_phase(
    joined: bool,
    by_weights: bool,
    tiles: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = critics(joined)
    whole_phase = plan(program, by_weights=by_weights, split=True)
    monkeypatch.setattr(row_schedule, "MEMORY", ROOM // 2)
    own = plan(program, by_weights=by_weights, split=True)
    assert len(passes(own)) > len(passes(whole_phase)) == 1
    for rows in (5, 300):
        given = numbers(program, rows)
        wanted = run(whole_phase, *given)
        for threads in (1, 2):
            for name, found in run(own, *given, threads=threads).items():
                np.testing.assert_array_equal(found, wanted[name])


def test_what_acts_stays_one_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_schedule, "MEMORY", 1)
    build, (x,), weights = Builder(), columns((WIDTH,)), uniforms((WIDTH, WIDTH), (WIDTH, WIDTH))
    one, two = (build.product(whole(x), whole(w)) for w in weights)
    assert len(plan(Program("acts", (x,), weights, (Output("a", one), Output("b", two))), split=True).phases) == 1
