"""Products of row programs on the processor's tiles of bfloat16: as exact as those in vectors. Where the processor has
no tiles, they are imitated."""

from __future__ import annotations

import re
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch
from torch import nn

import headrace as hr
from headrace.algorithms import sac
from headrace.algorithms.objectives import mean_weights
from headrace.bindings.compiled import loss_conditions
from headrace.bindings.compiled.loss_conditions import Conditions
from headrace.bindings.compiled.loss_tries import Tries
from headrace.kernels.nn import amx
from headrace.kernels.rows import row_plan
from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.cpu_code import optimised
from headrace.kernels.rows.floors import floors
from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import Output, Program, View, whole
from headrace.kernels.rows.row_schedule import plan
from headrace.kernels.rows.targets import cpu_program, records
from headrace.kernels.rows.targets.cpu import assembly
from tests.bindings.test_compiled_objectives import made, minibatches
from tests.kernels.rows.compared import columns, numbers, uniforms
from tests.kernels.rows.imitated_tiles import imitated
from tests.kernels.rows.on_cpu import run

EPSILON = float(np.finfo(np.float32).eps)


@pytest.fixture(params=["imitated", *["real"] * amx.tiles_permitted()])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs on tiles can be run, and none is found on disk, or left there."""
    if request.param == "imitated":
        of_text = cpu_program.of_text
        monkeypatch.setattr(cpu_program, "of_text", lambda name, text, make: of_text(name, imitated(text), make))
    monkeypatch.setattr(loss_conditions, "tiles_permitted", lambda: True)
    monkeypatch.setattr(records, "_find", lambda key, places: None)
    monkeypatch.setattr(records, "keep", lambda key, places, found: None)


SIZES = [(128, 256), (256, 128), (160, 160), (256, 256), (320, 192)]


def layer(outputs: int, inputs: int, kind: str) -> Program:
    """A product: forward with a bias, cut off at zero, or without; or of a weight that is turned around."""
    build, (x,) = Builder(), columns((inputs,))
    w, bias, v = uniforms((inputs, outputs) if kind == "backward" else (outputs, inputs), (outputs,), (3, outputs))
    weight = View(w, (outputs, inputs), (1, outputs)) if kind == "backward" else whole(w)
    y = build.product(whole(x), weight, whole(bias) if kind in ("bias", "floor") else None)
    if kind == "floor":
        y = build.map("maximum", y, build.number(0.0, (outputs,)))
    return Program(kind, (x,), (w, bias, v), (Output("y", y), Output("following", build.product(y, whole(v)))))


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
@pytest.mark.parametrize("kind", ["zero", "bias", "floor", "backward"])
def test_products_err_no_more_than_those_in_vectors(
    kind: str, outputs: int, inputs: int, lanes: int, tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_plan, "ON_TILES", lanes)
    program = layer(outputs, inputs, kind)
    own, vectors, given = plan(program, split=True), plan(program), numbers(program, 70)
    assert len(own.packed) == 1 and not vectors.packed and bool(floors(own)[0]) == (kind == "floor")
    x, w = given[0][0].astype(np.float64), given[1][0].astype(np.float64)
    w = w if kind == "backward" else w.T
    exact, size = x @ w, np.abs(x) @ np.abs(w)
    if kind in ("bias", "floor"):
        exact, size = exact + given[1][1], size + np.abs(given[1][1])
    if kind == "floor":
        exact = np.maximum(exact, 0)
    errors = [(np.abs(run(each, *given)["y"] - exact) / size).max() for each in (own, vectors)]
    assert errors[0] < min(1.5 * errors[1], 2 * EPSILON)


def learning(inputs: int, outputs: int) -> Program:
    """A layer forward and backward, and gradients: two that are added to each other, and one of a narrow layer."""
    build, (x,), (w, v) = Builder(), columns((inputs,)), uniforms((outputs, inputs), (inputs, outputs))
    hidden = build.map("tanh", build.product(whole(x), whole(w)))
    y = build.product(hidden, whole(v))
    back = build.map("sub", build.product(y, View(v, (outputs, inputs), (1, outputs))), hidden)
    both = build.map("add", build.outer(back, whole(x)), build.outer(hidden, y))
    narrow = build.outer(View(back.value, (40,), (1,)), whole(x))
    outputs_ = (Output("both", both), Output("one", build.outer(y, hidden)), Output("narrow", narrow))
    return Program("learning", (x,), (w, v), outputs_)


def in_float64(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of learning()."""
    x, w, v = (own.astype(np.float64) for own in (x, w, v))
    hidden = np.tanh(x @ w.T)
    y = hidden @ v.T
    back = y @ v - hidden
    return {"both": back.T @ x + hidden.T @ y, "one": y.T @ hidden, "narrow": back[:, :40].T @ x}


@pytest.mark.parametrize("by_weights", [False, True])
@pytest.mark.parametrize(("inputs", "outputs", "lanes"), [(128, 160, 32), (256, 128, 64)])
def test_gradients_err_no_more_than_those_in_vectors(
    inputs: int, outputs: int, lanes: int, by_weights: bool, tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows need not fill a block: lanes after the last row are not counted."""
    monkeypatch.setattr(row_plan, "ON_TILES", lanes)
    program = learning(inputs, outputs)
    own, vectors = plan(program, by_weights=by_weights, split=True), plan(program, by_weights=by_weights)
    assert sorted(turned.packed for turned in {*own.transposed.values()}) == [False, True, True, True]
    for rows in (1, 37, 64, 300):
        given = numbers(program, rows)
        exact, found, usual = in_float64(*given[0], *given[1]), run(own, *given), run(vectors, *given)
        for name, expected in exact.items():
            errors = [np.abs(each[name] - expected).max() / np.abs(expected).max() for each in (found, usual)]
            assert errors[0] < 2 * max(errors[1], EPSILON), (name, rows)


@pytest.mark.parametrize("by_weights", [False, True])
def test_bits_do_not_depend_on_threads(by_weights: bool, tiles: None) -> None:
    program = learning(128, 160)
    own = plan(program, by_weights=by_weights, split=True)
    given = numbers(program, 500)
    one, two = (run(own, *given, threads=threads) for threads in (1, 2))
    for name, found in one.items():
        np.testing.assert_array_equal(found, two[name])


def test_what_is_not_a_number_stays_so(tiles: None) -> None:
    program = layer(128, 128, "floor")
    given = numbers(program, 40)
    given[0][0][3, 5], given[0][0][35, 7] = np.nan, np.inf
    found = run(plan(program, split=True), *given)["y"]
    assert np.isnan(found[[3, 35]]).all()
    assert np.isfinite(np.delete(found, [3, 35], 0)).all()


@pytest.mark.parametrize(("outputs", "inputs"), [(96, 256), (256, 64), (130, 256), (256, 144)])
def test_small_and_odd_sizes_stay_in_vectors(outputs: int, inputs: int) -> None:
    for program in (layer(outputs, inputs, "bias"), learning(inputs, outputs)):
        own = plan(program, split=True)
        assert not own.packed and not any(turned.packed for turned in own.transposed.values())


def test_weights_that_do_not_lie_in_rows_or_columns_stay_in_vectors() -> None:
    build, (x,), (w,) = Builder(), columns((128,)), uniforms((256, 256))
    y = build.product(whole(x), View(w, (128, 128), (256, 2)))
    assert not plan(Program("apart", (x,), (w,), (Output("y", y),)), split=True).packed


def test_a_weight_is_packed_once() -> None:
    """Products that read a weight in the same way share one packing. The backward pass reads its transpose."""
    build, (x, z), (w,) = Builder(), columns((128,), (128,)), uniforms((128, 128))
    turned = View(w, (128, 128), (1, 128))
    products = [build.product(whole(one), own) for own in (whole(w), turned) for one in (x, z)]
    own = plan(Program("twice", (x, z), (w,), tuple(map(Output, "abcd", products))), split=True)
    assert len(own.packed) == 4 and len(own.phases[0].packed) == 2


# machine code, and losses


@pytest.fixture(scope="module")
def sapphire_rapids() -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    return triple.create_target_machine(cpu="sapphirerapids", features="-prefer-256-bit", opt=3)


@pytest.mark.parametrize("by_weights", [False, True])
def test_machine_code_has_tiles(by_weights: bool, sapphire_rapids: llvm.TargetMachine) -> None:
    """Each function that has products on tiles configures them first and releases them last; calls nothing outside."""
    text = assembly(plan(learning(128, 160), by_weights=by_weights, split=True), ["float32"], True)
    code = str(sapphire_rapids.emit_assembly(optimised(text, sapphire_rapids)))
    functions = [part for part in re.split(r"(?m)^(?=\w+:$)", code) if "tdpbf16ps" in part]
    assert len(functions) >= 4
    for function in functions:
        order = re.findall(r"ldtilecfg|tilerelease|tdpbf16ps|tileloadd|tilestored|tilezero|callq|retq", function)
        assert order[0] == "ldtilecfg" and order[-2:] == ["tilerelease", "retq"]
        assert not {"ldtilecfg", "tilerelease", "callq", "retq"} & {*order[1:-2]}
    called = re.findall(r"callq?\s+([\w.@$]+)", code)
    assert all(re.match(r"\.?(step_|phase|gradients|packing|before|memset)", name) for name in called)
    assert "tdpbf16ps" not in assembly(plan(learning(128, 160), by_weights=by_weights), ["float32"], True)


def test_what_is_kept_on_disk_depends_on_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net(x).square().mean()

    given = nn.Linear(3, 2), torch.randn(5, 3)
    keys, targets = set(), []
    for permitted, gradients in ((True, True), (False, True), (True, False), (False, False)):
        monkeypatch.setattr(loss_conditions, "tiles_permitted", lambda permitted=permitted: permitted)
        found = Conditions(loss, given, Tries(), gradients=gradients)
        assert found.key is not None
        keys.add(found.key.digest)
        targets.append(found.target)
    assert targets == ["cpu with tiles by weights", "cpu by weights", "cpu", "cpu"] and len(keys) == 3


@pytest.mark.parametrize("rows", [256, 600])
def test_the_critics_of_sac_learn_on_tiles(rows: int, tiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of 256: five networks forward, two backward, and their gradients."""
    plans = list[Plan]()

    def planned(*given: Any, **more: Any) -> Plan:
        plans.append(plan(*given, **more))
        return plans[-1]

    monkeypatch.setattr("headrace.kernels.rows.row_schedule.plan", planned)
    algorithm = made(sac.SAC, hidden=(256, 256), critic_hidden=(256, 256))
    (batches, random), (_, networks), config = minibatches(algorithm, rows), algorithm.objectives(), algorithm.config
    batch = {name: x[0] for name, x in batches._asdict().items() if name != "rows"}
    batch |= {"weight": mean_weights(batch["weight"]), "random": random[0]}

    def critic_loss(networks: Any, batch: Any, config: Any) -> torch.Tensor:
        return sac.critic_loss(networks, batch, config)[0]

    learned = [*networks.policy.critics.parameters()]
    wanted = torch.autograd.grad(critic_loss(networks, batch, config), learned)
    step = hr.compile(critic_loss)
    assert step.why_not(networks, batch, config) is None
    networks.policy.zero_grad()
    step(networks, batch, config)
    (own,) = plans
    assert len(own.packed) == 7 and any(phase.gradients for phase in own.phases) == (rows < 512)
    assert len([phase for phase in own.phases if phase.steps]) > 1  # more weights than the second cache holds
    assert sum(turned.packed for turned in plans[0].transposed.values()) == 2
    for parameter, gradient in zip(learned, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=2e-6 * gradient.abs().max().item())
