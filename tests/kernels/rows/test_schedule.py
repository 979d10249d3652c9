"""Stored values, their order and their places: a plan computes what its program says, whatever its memory."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.row_program import Input, Map, Output, Program, View, whole
from headrace.kernels.rows.row_schedule import plan
from tests.kernels.rows import in_numpy

ROWS = 150  # three blocks, of which the last is not full


def inputs(*shapes: tuple[int, ...], rows: bool = True) -> tuple[Input, ...]:
    return tuple(Input(shape, rows, name=f"input{i}", position=i) for i, shape in enumerate(shapes))


def same(program: Program, rows: int = ROWS, seed: int = 0) -> None:
    """A plan's outputs are the program's."""
    generator = np.random.default_rng(seed)
    columns = [generator.standard_normal((rows, value.size)) for value in program.columns]
    uniforms = [generator.standard_normal(value.size) for value in program.uniforms]
    wanted = in_numpy.run(program, columns, uniforms)
    found = in_numpy.InPlan(plan(program), columns, uniforms).run()
    for name, numbers in wanted.items():
        np.testing.assert_allclose(found[name], numbers, rtol=1e-9, atol=1e-12, err_msg=str(program))


def test_standardized_rows_take_three_phases() -> None:
    build, (x,) = Builder(), inputs((3,))
    view = whole(x)
    one = build.number(1 / ROWS, (3,))
    mean = build.map("mul", build.reduce("sum", view, 1, over_rows=True), one)
    distance = build.map("sub", view, mean)
    variance = build.map("mul", build.reduce("sum", build.map("mul", distance, distance), 1, over_rows=True), one)
    program = Program("x", (x,), (), (Output("y", build.map("mul", distance, build.map("rsqrt", variance))),))
    assert [len(phase.steps) for phase in plan(program).phases] == [2, 2, 1]
    same(program)


def test_a_tile_is_used_again_after_its_last_reader() -> None:
    build, (x,), (w,) = Builder(), inputs((8,)), inputs((8, 8), rows=False)
    y = whole(x)
    for _ in range(6):
        y = build.map("tanh", build.product(y, whole(w)))
    program = Program("x", (x,), (w,), (Output("y", y),))
    assert plan(program).tiles <= 24
    same(program)


def test_what_is_joined_is_computed_in_its_place() -> None:
    """Cases are a Join of Joins, a part twice, a part that others read, and a part that is joined through a view."""
    build, (x, y), (w,) = Builder(), inputs((8,), (8,)), inputs((8, 8), rows=False)
    first, second = build.product(whole(x), whole(w)), build.product(whole(y), whole(w))
    pair = build.join([View(first.value, (1, 8), (8, 1)), View(second.value, (1, 8), (8, 1))], 0)
    half = View(build.product(first, whole(w)).value, (1, 8), (8, 0))
    joined = build.join([pair, View(second.value, (1, 8), (8, 1)), half], 0)
    read = build.map("tanh", build.map("mul", joined, View(first.value, (4, 8), (0, 1))))
    program = Program("x", (x, y), (w,), (Output("y", read), Output("z", first)))
    own = plan(program)
    offsets = [own.places[value].offset for value in (first.value, second.value, pair.value, joined.value)]
    assert offsets[0] == offsets[2] == offsets[3] and offsets[1] == offsets[0] + 16
    same(program)


def test_gradients_of_the_same_weights_share_accumulators() -> None:
    build, (x, y) = Builder(), inputs((20,), (30,))
    pairs = [build.outer(build.map("sin", whole(x)), build.map("cos", whole(y))), build.outer(whole(x), whole(y))]
    turned = [View(pair.value, (30, 20), (1, 30)) for pair in pairs]
    program = Program("x", (x, y), (), (Output("w", build.map("add", *turned)),))
    assert len(set(plan(program).sums.values())) == 1
    same(program)


def test_gradients_of_joined_weights_share_accumulators_over_time_steps() -> None:
    """Two networks' weights side by side, as of actor and critic that are recurrent: a sum for each, not for each
    step."""
    build, (x, y), steps = Builder(), inputs((3, 20), (3, 30)), list[View]()
    for t in range(3):
        seen, error = View(x, (20,), (1,), 20 * t), View(y, (30,), (1,), 30 * t)
        pairs = [build.outer(build.map(name, error), seen) for name in ("sin", "cos")]
        steps.append(build.join([View(pair.value, (1, 30, 20), (600, 20, 1)) for pair in pairs], 0))
    program = Program("x", (x, y), (), (Output("w", build.map("add", build.map("add", *steps[:2]), steps[2])),))
    assert len(set(plan(program).sums.values())) == 2
    same(program)


@pytest.mark.parametrize("rows", [1, 37, 64, 65])
def test_any_number_of_rows(rows: int) -> None:
    build, (x, y), (w,) = Builder(), inputs((5,), (4,)), inputs((4, 5), rows=False)
    error = build.map("sub", build.product(whole(x), whole(w)), whole(y))
    outputs = (Output("w", build.outer(error, whole(x))), Output("e", build.reduce("max", error, 0)))
    same(Program("x", (x, y), (w,), outputs), rows)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    """Maps, views, reductions, products, sums over rows that later rows read."""
    generator = np.random.default_rng(seed)
    build, columns, uniforms = Builder(), inputs((6,), (2, 3), (4,)), inputs((6, 6), (3,), rows=False)
    known = [whole(value) for value in (*columns, uniforms[1])]
    for _ in range(25):
        view = _turned(generator, known[generator.integers(len(known))])
        kind = generator.integers(6)
        if kind == 0 and view.shape and view.value.rows:
            known.append(build.product(view, _weights(uniforms[0], view.shape[-1])))
        elif kind == 1 and view.value.rows:
            scaled = build.map("mul", view, build.number(1 / ROWS, view.shape))
            known.append(build.reduce("sum", scaled, int(generator.integers(len(view.shape) + 1)), over_rows=True))
        elif kind == 2 and view.shape:
            known.append(build.reduce(["sum", "max", "min"][generator.integers(3)], view, len(view.shape) - 1))
        elif kind == 3 and len(view.shape) == 1 and view.value.rows:
            known.append(build.outer(build.map("mul", view, build.number(1 / ROWS, view.shape)), view))
        elif kind == 4 and view.shape:
            known.append(build.join([view, view], int(generator.integers(len(view.shape)))))
        else:
            function = ["tanh", "sin", "add", "mul", "sub"][generator.integers(5)]
            others = [other for other in map(lambda v: _turned(generator, v), known) if other.shape == view.shape]
            pair = (
                [view, others[generator.integers(len(others))]] if function in ("add", "mul", "sub") and others else []
            )
            made = build.map(function, *pair) if pair else build.map("tanh", view)
            known.append(made)
    outputs = tuple(Output(str(i), view) for i, view in enumerate(known[-8:]))
    same(Program("x", columns, uniforms, outputs), seed=seed)


def _turned(generator: np.random.Generator, view: View) -> View:
    """A transposed, sliced or expanded view, or the view."""
    order = generator.permutation(len(view.shape))
    shape, strides = tuple(view.shape[i] for i in order), tuple(view.strides[i] for i in order)
    offset = view.offset
    if shape and shape[0] > 1 and generator.integers(3) == 0:
        shape, offset = (shape[0] - 1, *shape[1:]), offset + strides[0]
    if len(shape) < 2 and generator.integers(3) == 0:
        shape, strides = (3, *shape), (0, *strides)
    return View(view.value, shape, strides, offset)


def _weights(value: Input, count: int) -> View:
    return View(value, (5, count), (1, 6 if count <= 6 else 0))


def test_what_only_an_output_reads_is_not_stored() -> None:
    build, (x,) = Builder(), inputs((4,))
    shifted = build.map("add", whole(x), build.number(1.0, (4,)))
    program = Program("x", (x,), (), (Output("y", build.map("exp", shifted)),))
    stored = [value for phase in plan(program).phases for value in phase.steps if isinstance(value, Map)]
    assert [value.function for value in stored] == []
    same(program)
