"""Each operation of a row program as machine code, against NumPy in float64: odd rows, views, phases, threads."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.kernels.rows import row_plan
from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.floors import floors
from headrace.kernels.rows.narrow import narrowed
from headrace.kernels.rows.row_plan import block_for, block_of_sequences, outer_form, rows_of_block
from headrace.kernels.rows.row_program import BOOL, F32, I32, Count, Input, Output, Program, View, whole
from headrace.kernels.rows.row_schedule import plan
from headrace.kernels.rows.targets.cpu_program import parts_of
from tests.kernels.rows import in_numpy, on_threads
from tests.kernels.rows.compared import columns, numbers, same, uniforms
from tests.kernels.rows.on_cpu import run


def test_maps_of_views() -> None:
    """Transposed, expanded, sliced and single numbers, of rows and of uniform values."""
    build, (x, y), (w,) = Builder(), columns((3, 5), (5,)), uniforms((5, 3))
    turned = View(w, (3, 5), (1, 3))
    expanded = View(y, (3, 5), (0, 1))
    sliced = View(x, (2, 3), (5, 2), 5)
    first = build.map("add", build.map("mul", whole(x), turned), expanded)
    second = build.map("exp", build.map("sub", sliced, View(w, (2, 3), (0, 4), 2)))
    same(Program("maps", (x, y), (w,), (Output("first", first), Output("second", second))))


@pytest.mark.parametrize("count", [1, 15, 16, 17, 50])
def test_maps_of_uniform_values(count: int) -> None:
    """Numbers side by side, one number for all, turned ones, and what does not fill a vector."""
    build, (x,), (w, v, u) = Builder(), columns((1,)), uniforms((3, count), (count,), (count, 3))
    shape = (3, count)
    line, turned = View(v, shape, (0, 1)), View(u, shape, (1, 3))
    outputs = [build.map("add", build.map("mul", whole(w), line), View(u, shape, (0, 0), 2)), build.map("exp", turned)]
    outputs.append(build.map("where", build.map("gt", whole(w), line), build.steps(count, shape, 1, F32), whole(w)))
    outputs.append(build.join([View(w, (2 * count,), (1,), 1), whole(v)], 0))
    named = (Output(f"{i}", view) for i, view in enumerate(outputs))
    same(Program("uniform", (x,), (w, v, u), tuple(named)), (1, 37))


def test_a_column_is_gathered_as_far_as_it_is_read() -> None:
    build, (x, y, z) = Builder(), columns((4, 6), (3,), (5,))
    part = build.map("exp", View(x, (2, 3), (6, 1), 8))
    total = build.reduce("sum", build.map("mul", View(x, (3,), (3,), 7), whole(y)), 0, over_rows=True)
    outputs = Output("part", part), Output("total", total), Output("as it is", View(z, (2,), (1,), 2))
    program = Program("part", (x, y, z), (), outputs)
    given = numbers(program, 37)
    wanted, less = in_numpy.run(program, *given), narrowed(program)
    assert [(c.first, c.shape) for c in less.columns] == [(7, (10,)), (0, (3,)), (2, (2,))]
    for found in (run(plan(less), *given), on_threads.run(plan(less, vectors=False), *given, lanes=4)):
        for name, expected in wanted.items():
            np.testing.assert_allclose(found[name], expected, rtol=3e-6, atol=1e-6)


def test_truths_and_integers() -> None:
    build = Builder()
    x, n, t = Input((4,), True, F32, "x", 0), Input((4,), True, I32, "n", 1), Input((4,), True, BOOL, "t", 2)
    positive = build.map("gt", whole(x), build.number(0.0, (4,)))
    either = build.map("or", build.map("xor", positive, whole(t)), build.map("not", positive))
    doubled = build.map("add", build.map("mul", whole(n), whole(n)), build.steps(4, (4,), 0))
    chosen = build.map("where", build.map("and", either, whole(t)), build.map("float", doubled), whole(x))
    counted = build.reduce("sum", doubled, 0)
    found = [Output("chosen", chosen), Output("doubled", doubled), Output("counted", counted)]
    found += [Output(name, build.reduce(name, either, 0)) for name in ("any", "all")]
    found.append(Output("whole", build.map("int", build.map("mul", whole(x), build.number(3.0, (4,))))))
    same(Program("truths", (x, n, t), (), tuple(found)))


@pytest.mark.parametrize("function", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_reductions(function: str) -> None:
    build, (x,), (w,) = Builder(), columns((3, 7)), uniforms((4, 9))
    turned = View(x, (7, 3), (1, 7))
    outputs = [Output("last", build.reduce(function, whole(x), 1)), Output("first", build.reduce(function, turned, 1))]
    outputs.append(Output("uniform", build.reduce(function, whole(w), 1)))
    if not function.startswith("arg"):
        outputs.append(Output("both", build.reduce(function, whole(x), 0)))
    same(Program("reductions", (x,), (w,), tuple(outputs)))


@pytest.mark.parametrize("function", ["max", "min", "argmax", "argmin"])
def test_nan_is_largest_and_smallest(function: str) -> None:
    build, (x,) = Builder(), columns((5,))
    program = Program("nan", (x,), (), (Output("y", build.reduce(function, whole(x), 0)),))
    given = np.array([[1, np.nan, 3, np.nan, 2], [np.nan, 1, 2, 3, 4], [4, 3, 2, 1, np.nan], [2, 2, 1, 1, 2]])
    found = run(plan(program), [given.astype(np.float32)], [])["y"]
    np.testing.assert_array_equal(found, getattr(np, function)(given, axis=1))


def test_sums_over_rows_leave_out_lanes_that_are_no_rows() -> None:
    build, (x,) = Builder(), columns((3, 4))
    shifted = build.map("add", whole(x), build.number(100.0, (3, 4)))
    outputs = [Output(str(kept), build.reduce("sum", shifted, kept, over_rows=True)) for kept in (0, 1, 2)]
    same(Program("sums", (x,), (), tuple(outputs)))


@pytest.mark.parametrize("function", ["max", "min"])
def test_largest_and_smallest_over_rows(function: str) -> None:
    """Lanes that are no rows do not count, whichever sign the numbers have; NaN does."""
    build, (x,) = Builder(), columns((3, 4))
    outputs = []
    for name, by in (("above", 100.0), ("below", -100.0)):
        shifted = build.map("add", whole(x), build.number(by, (3, 4)))
        outputs += [Output(f"{name} {n}", build.reduce(function, shifted, n, over_rows=True)) for n in (0, 1, 2)]
    program = Program(function, (x,), (), tuple(outputs))
    same(program)
    given, _ = numbers(program, 150)
    given[0][70, 1, 2] = np.nan
    found = run(plan(program), given, [])
    assert np.isnan(found["above 0"]) and np.isnan(found["below 2"]).sum() == 1


@pytest.mark.parametrize("lanes", [16, 32, 64])
def test_blocks_of_other_rows(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of many tiles: products, their gradients in all forms, sums, sorts, and what a later phase reads."""
    build, (x, y), (w,) = Builder(), columns((2, 40), (7,)), uniforms((50, 40))
    hidden = build.map("tanh", build.product(whole(x), whole(w)))
    mean = build.map("mul", build.reduce("sum", hidden, 2, over_rows=True), build.number(Count(1.0, -1), (2, 50)))
    centred = build.map("sub", hidden, mean)
    outputs = [
        Output("right", build.outer(hidden, whole(x))),
        Output("left", build.outer(hidden, View(y, (2, 7), (0, 1)))),
    ]
    outputs += [Output("dots", build.outer(whole(y), whole(y))), Output("sorted", build.sort(whole(y)))]
    outputs += [
        Output("centred", centred),
        Output("total", build.reduce("sum", build.map("mul", centred, centred), 1, over_rows=True)),
    ]
    program = Program("few", (x, y), (w,), tuple(outputs))
    monkeypatch.setattr(row_plan, "BLOCKS", (lanes,))
    assert plan(program).lanes == lanes
    same(program, (1, 37, 150))


def test_numbers_that_depend_on_the_rows() -> None:
    build, (x,) = Builder(), columns((2,))
    scaled = build.map("mul", whole(x), build.number(Count(3.0, -1), (2,)))
    scaled = build.map("add", scaled, build.number(Count(0.5, 1, -1), (2,)))
    same(Program("count", (x,), (), (Output("y", scaled), Output("s", build.reduce("sum", scaled, 1, over_rows=True)))))


@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (6, 16), (7, 64), (13, 65), (64, 130), (33, 200)])
@pytest.mark.parametrize("biased", [False, True])
def test_products(sizes: tuple[int, int], biased: bool) -> None:
    n, k = sizes
    build, (x,), (w, b) = Builder(), columns((k,)), uniforms((n, k), (n,))
    y = build.product(whole(x), whole(w))
    if biased:
        y = build.map("add", y, whole(b))
    backward = build.product(build.map("tanh", y), View(w, (k, n), (1, k)))
    outputs = (Output("forward", y), Output("backward", backward))
    same(Program("products", (x,), (w, b), outputs), (37, 130))


@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 33, 70])
def test_blocks_for_few_rows_have_the_same_bits(rows: int) -> None:
    """Half a vector of rows and more, of layers with more rows than registers and with what is left over."""
    build, (x,), (w, b, v) = Builder(), columns((5,)), uniforms((61, 5), (61,), (3, 61))
    hidden = build.map("tanh", build.map("add", build.product(whole(x), whole(w)), whole(b)))
    found = build.product(hidden, whole(v))
    outputs = Output("hidden", hidden), Output("found", found), Output("best", build.reduce("argmax", found, 0))
    program = Program("few", (x,), (w, b, v), outputs)
    given = numbers(program, 100)
    expected, few = run(plan(program), *given), plan(program, block=block_for(rows))
    assert few.lanes == {1: 16, 8: 16, 9: 16, 16: 16, 17: 32, 33: 64, 70: 64}[rows] and few.half == (rows <= 8)
    assert plan(network(Builder()), block=8).block == 0
    part = [column[20 : 20 + rows] for column in given[0]], given[1]
    for name, numbers_of in run(few, *part).items():
        np.testing.assert_array_equal(numbers_of, expected[name][20 : 20 + rows])


def test_blocks_of_losses_of_sequences_have_no_more_lanes_than_there_are_sequences() -> None:
    blocks = [block_of_sequences(16 * sequences, 16) for sequences in (1, 8, 9, 16, 17)]
    assert blocks == [1, 1, 16, 16, 0] and block_of_sequences(4, 1) == 0
    lanes = [plan(network(Builder()), block=block).lanes for block in blocks]
    assert lanes == [1, 1, 16, 16, 32]


def test_products_with_leading_axes_and_of_views() -> None:
    build, (x,), (w,) = Builder(), columns((3, 4, 8)), uniforms((5, 4))
    turned = View(x, (3, 8, 4), (32, 1, 8))
    same(Program("leading", (x,), (w,), (Output("y", build.product(turned, whole(w))),)), (37, 130))
    stepped = View(x, (3, 4), (8, 2), 33)
    same(Program("stepped", (x,), (w,), (Output("y", build.product(stepped, whole(w))),)), (37,))


@pytest.mark.parametrize("sizes", [(1, 1), (2, 300), (17, 31), (48, 48), (64, 64), (70, 130), (200, 5), (5, 200)])
def test_gradients_of_weights(sizes: tuple[int, int]) -> None:
    n, k = sizes
    build, (g, x) = Builder(), columns((n,), (k,))
    outer = build.outer(whole(g), whole(x))
    same(
        Program("outer", (g, x), (), (Output("w", outer), Output("t", View(outer.value, (k, n), (1, k))))), (1, 37, 300)
    )


def test_every_form_of_gradient_was_tried() -> None:
    build = Builder()
    forms = set()
    for n, k in ((17, 31), (64, 64), (200, 5)):
        g, x = columns((n,), (k,))
        forms.add(outer_form(build.outer(whole(g), whole(x)).value))  # type: ignore[arg-type]
    assert forms | {"dots"} == {"dots", "right", "left"}


@pytest.mark.parametrize("sizes", [(4, 5), (20, 40), (200, 5)])
def test_gradients_of_weights_with_leading_axes(sizes: tuple[int, int]) -> None:
    n, k = sizes
    build, (g, x) = Builder(), columns((2, 3, n), (2, 3, k))
    turned = View(g, (3, 2, n), (n, 3 * n, 1)), View(x, (3, 2, k), (k, 3 * k, 1))
    outputs = (Output("w", build.outer(whole(g), whole(x))), Output("turned", build.outer(*turned)))
    same(Program("outer", (g, x), (), outputs), (1, 37, 150))


def test_numbers_at_indices() -> None:
    build = Builder()
    x, index = Input((3, 5), True, F32, "x", 0), Input((3,), True, I32, "i", 1)
    (table,) = uniforms((5,))
    outputs = [Output("own", build.pick(whole(x), whole(index)))]
    outputs.append(Output("turned", build.pick(View(x, (3, 5), (1, 3)), whole(index))))
    outputs.append(Output("table", build.pick(View(table, (3, 5), (0, 1)), whole(index))))
    same(Program("pick", (x, index), (table,), tuple(outputs)))


@pytest.mark.parametrize("count", [1, 2, 9, 50])
def test_sorting(count: int) -> None:
    build, (x,), (w,) = Builder(), columns((2, count)), uniforms((count,))
    rounded = build.packed(build.map("round", whole(x)), always=True)
    outputs = [Output("sorted", build.sort(whole(x))), Output("places", build.sort(rounded, places=True))]
    outputs.append(Output("uniform", build.sort(whole(w))))
    same(Program("sort", (x,), (w,), tuple(outputs)))


def test_joining() -> None:
    build, (x, y), (w,) = Builder(), columns((2, 3), (2, 1)), uniforms((2, 4))
    wide = build.join([whole(x), whole(y), whole(w)], 1)
    tall = build.join([View(wide.value, (8, 2), (1, 8)), View(w, (1, 2), (0, 4))], 0)
    same(Program("join", (x, y), (w,), (Output("wide", wide), Output("tall", build.map("sin", tall)))))


def test_sums_of_joins_that_leave_each_other_room() -> None:
    """The gradients of slices, which have zeros where the others lie, are joined once."""
    build, (x, y, z) = Builder(), columns((2, 3), (2, 4), (2, 7))
    zeros = lambda n: build.number(0.0, (2, n))  # noqa: E731
    ends = build.join([whole(x), zeros(4)], 1), build.join([zeros(3), whole(y)], 1)
    apart = build.map("add", *ends)
    assert apart == build.join([whole(x), whole(y)], 1)
    cut = build.map("add", build.join([zeros(1), View(y, (2, 2), (4, 1)), zeros(4)], 1), build.join([zeros(7)], 1))
    meeting = build.map("add", ends[0], build.join([zeros(2), View(z, (2, 5), (7, 1))], 1))
    assert meeting.value.operands == (ends[0], meeting.value.operands[1])
    outputs = [Output(str(i), build.map("sin", view)) for i, view in enumerate((apart, cut, meeting))]
    same(Program("joins", (x, y, z), (), tuple(outputs)))


def standardized(build: Builder, x: View, axes: int) -> View:
    """Less its mean, over its standard deviation, both over rows."""
    share = build.number(Count(1.0, -1), x.shape)
    mean = build.map("mul", build.reduce("sum", x, axes, over_rows=True), share)
    distance = build.map("sub", x, mean)
    variance = build.map("mul", build.reduce("sum", build.map("mul", distance, distance), axes, over_rows=True), share)
    return build.map("mul", distance, build.map("rsqrt", build.map("add", variance, build.number(1e-5, x.shape))))


def network(build: Builder) -> Program:
    """Two layers with a standardized middle: products, phases, gradients, outputs with rows and without."""
    (x,), (w, v) = columns((20,)), uniforms((40, 20), (12, 40))
    hidden = standardized(build, build.map("tanh", build.product(whole(x), whole(w))), 1)
    y = build.product(hidden, whole(v))
    back = build.product(y, View(v, (40, 12), (1, 40)))
    outputs = [Output("y", y), Output("largest", build.reduce("max", y, 0))]
    outputs += [Output("v", build.outer(y, hidden)), Output("w", build.outer(back, whole(x)))]
    outputs.append(Output("loss", build.reduce("sum", build.map("mul", y, y), 0, over_rows=True)))
    return Program("network", (x,), (w, v), tuple(outputs))


def test_phases() -> None:
    program = network(Builder())
    assert sum(bool(phase.steps) for phase in plan(program).phases) == 3
    same(program, (2, 37, 64, 150, 1100), 2e-5)


@pytest.mark.parametrize("by_weights", [False, True])
@pytest.mark.parametrize("rows", [37, 64, 129, 1100, 2048])
def test_bits_do_not_depend_on_threads(rows: int, by_weights: bool) -> None:
    program = network(Builder())
    given, own = numbers(program, rows), plan(program, by_weights=by_weights)
    assert any(phase.gradients for phase in own.phases) == by_weights
    first = run(own, *given)
    for threads in (2, 3):
        for name, found in run(own, *given, threads=threads).items():
            np.testing.assert_array_equal(found, first[name], err_msg=name)


def test_denormals_do_not_depend_on_threads() -> None:
    """Helpers once flushed them where the main thread did not."""
    build, (x,) = Builder(), columns((64,))
    waves = whole(x)
    for _ in range(40):  # so that helpers come while there is work
        waves = build.map("sin", waves)
    outputs = (Output("y", build.map("mul", whole(x), whole(x))), Output("waves", waves))
    own, given = plan(Program("denormals", (x,), (), outputs)), [np.full((4096, 64), 1e-20, np.float32)]
    alone, together = run(own, given, [])["y"], run(own, given, [], threads=2)["y"]
    assert len(np.unique(alone)) == 1
    np.testing.assert_array_equal(together, alone)


def test_parts_depend_on_rows_alone() -> None:
    assert [parts_of(rows, 32) for rows in (1, 63, 64, 256, 257, 1024, 100_000)] == [1, 1, 2, 2, 3, 8, 8]
    assert [parts_of(rows, 32, by_weights=True) for rows in (1, 63, 64, 256, 257, 512)] == [1, 1, 2, 8, 8, 8]
    assert [parts_of(rows, 64, by_weights=True) for rows in (1, 64, 127, 128, 256, 512)] == [1, 1, 1, 2, 4, 8]


def test_rows_of_a_block_depend_on_memory_alone() -> None:
    few, more, most = 100, 10**4, 10**6
    assert rows_of_block(few, few) == rows_of_block(few, more) == 32  # all stays in the second cache
    assert rows_of_block(few, most) == 64  # sums do not: more rows share them
    assert rows_of_block(more, more) == 16  # tiles do not, of more rows
    assert rows_of_block(10**5, 10) == 32  # never


def test_a_relu_of_products_is_part_of_them() -> None:
    """Cases are products side by side with a bias for each, products of more terms than one pass takes, and NaN."""
    build, (x,), (w, b, v) = Builder(), columns((70,)), uniforms((2, 9, 70), (2, 9), (3, 18))
    zero = build.number(0.0, (2, 9))
    each = [build.product(whole(x), View(w, (9, 70), (70, 1), 630 * i)) for i in range(2)]
    joined = build.join([View(part.value, (1, 9), (9, 1)) for part in each], 0)
    relu = build.map("maximum", build.map("add", joined, whole(b)), zero)
    alone = build.map("maximum", build.number(0.0, (9,)), build.product(whole(x), View(w, (9, 70), (70, 1))))
    slope = build.map("where", build.map("gt", relu, zero), relu, build.number(-1.0, (2, 9)))
    following = (build.product(View(relu.value, (18,), (1,)), whole(v)), build.product(alone, View(v, (3, 9), (18, 1))))
    outputs = (Output("relu", relu), Output("slope", slope), *map(Output, ("joined", "one"), following))
    program = Program("relu", (x,), (w, b, v), outputs)
    products, done = floors(plan(program))
    assert len(products) == 3 and done == {relu.value, alone.value}
    same(program, (1, 37, 150))
    given = numbers(program, 37)
    given[0][0][5, 3] = np.nan
    found = run(plan(program), *given)
    assert np.isnan(found["relu"][5]).all() and np.isnan(found["relu"]).sum() == 18


def test_products_that_others_read_are_not_cut_off() -> None:
    build, (x,), (w,) = Builder(), columns((6,)), uniforms((5, 6))
    y = build.product(whole(x), whole(w))
    relu = build.map("maximum", y, build.number(0.0, (5,)))
    above = build.map("maximum", build.product(whole(x), View(w, (4, 6), (6, 1))), build.number(0.5, (4,)))
    following = [build.product(each, View(w, (3, each.shape[0]), (6, 1))) for each in (relu, above)]
    program = Program("both", (x,), (w,), tuple(map(Output, "yrs", (y, *following))))
    assert floors(plan(program)) == (set(), set())
    same(program, (37,))


def test_a_bias_of_part_of_the_sums_is_no_bias_of_all() -> None:
    build, (x,), (w, b) = Builder(), columns((6,)), uniforms((8, 6), (4,))
    halves = View(build.product(whole(x), whole(w)).value, (2, 4), (4, 1))
    total = build.map("add", halves, View(b, (2, 4), (0, 1)))
    same(Program("halves", (x,), (w, b), (Output("y", total),)), (37,))


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    generator = np.random.default_rng(seed)
    build, inputs, (w,) = Builder(), columns((6,), (2, 3), (4,)), uniforms((6, 6))
    known = [whole(value) for value in inputs]
    for _ in range(20):
        view = known[generator.integers(len(known))]
        if len(view.shape) > 1 and generator.random() < 0.5:
            view = View(view.value, view.shape[::-1], view.strides[::-1], view.offset)
        kind = generator.integers(5)
        if kind == 0 and view.shape and view.value.rows and view.shape[-1] <= 6:
            made = build.product(view, View(w, (5, view.shape[-1]), (1, 6)))
        elif kind == 1 and view.value.rows:
            share = build.map("mul", view, build.number(Count(1.0, -1), view.shape))
            made = build.reduce("sum", share, int(generator.integers(len(view.shape) + 1)), over_rows=True)
        elif kind == 2 and view.shape:
            made = build.reduce(["sum", "max", "min"][generator.integers(3)], view, len(view.shape) - 1)
        elif kind == 3 and view.shape:
            made = build.join([view, view], int(generator.integers(len(view.shape))))
        else:
            made = build.map(["tanh", "sin", "sigmoid"][generator.integers(3)], view)
        known.append(build.map("tanh", made))
    outputs = tuple(Output(str(i), view) for i, view in enumerate(known[-8:]))
    same(Program("random", inputs, (w,), outputs), (37, 150), 2e-5)


def test_equal_steps_are_one_function() -> None:
    from headrace.kernels.rows.targets.cpu import assembly

    def functions(layers: int) -> int:
        build, (x,), (w,) = Builder(), columns((8,)), uniforms((8, 8))
        y = whole(x)
        for _ in range(layers):
            y = build.map("tanh", build.product(y, whole(w)))
        program = Program("layers", (x,), (w,), (Output("y", y),))
        return assembly(plan(program), ["float32"], False).count("define internal void @step_")

    assert functions(6) == functions(3)
