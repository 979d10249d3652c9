"""Roles by what flows through a training loop. The names in these scripts mean nothing on purpose."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.diagnose.injected import stacks
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.profile.roles import Classifier
from headrace.diagnose.profile.spool import Code, Place, Sample, Stack

FORWARD = Code("/x/site-packages/torch/nn/modules/module.py", "Module._call_impl", "torch.nn.modules.module", 1, ())
BACKWARD = Code("/x/site-packages/torch/_tensor.py", "Tensor.backward", "torch._tensor", 1, ())
COMPILER = Code("/x/site-packages/numba/core/compiler.py", "compile_extra", "numba.core.compiler", 1, ())
LOAD = Code("/x/site-packages/torch/serialization.py", "load", "torch.serialization", 1, ())
KINDS = {"net": "network", "old": "network", "opt": "optimizer"} | dict.fromkeys(("gc", "torch", "np", "go"), "code")
LEARN = "L = f(net(B)); L.backward(); opt.step()"


class Script:
    """A script, and stacks in it."""

    def __init__(self, folder: Path, text: str) -> None:
        self.path = folder / "run.py"
        self.text = textwrap.dedent(text).strip() + "\n"
        self.path.write_text(self.text)

    def at(self, call: str, function: str = "<module>") -> Place:
        """The place of a call, by its text."""
        lines = self.text.splitlines()
        begins = (f"def {function}(", f"async def {function}(") if function != "<module>" else ""
        first = next(number for number, line in enumerate(lines, 1) if line.lstrip().startswith(begins))
        line = next(number for number, line in enumerate(lines, 1) if call in line and number >= first)
        column = lines[line - 1].index(call)
        code = Code(str(self.path), function, "__main__", first, ())
        return Place(code, line, line, column, column + len(call), (), tuple(KINDS.items()))

    def roles(self, *stacks: Sequence[Place | Code], states: int = 1, without_gradients: str = "-") -> list[Role]:
        """The roles of stacks, the innermost place first, each seen in some states of the script's variables.

        without_gradients: a part of a function's name in which torch records none.
        """
        made: list[Stack] = [
            tuple(each if isinstance(each, Place) else Place(each, each.line) for each in stack) for stack in stacks
        ]
        samples = [
            Sample(
                float(state * len(made) + index),
                0.02,
                stack,
                without_gradients=any(without_gradients in place.code.name for place in stack),
                variables=state,
            )
            for state in range(states)
            for index, stack in enumerate(made)
        ]
        classifier = Classifier(Hints(), cuda=False)
        classifier.learn_from(samples)
        return [classifier.classify(stack)[0] for stack in made]


def test_what_takes_the_output_and_gives_the_next_input_is_the_environment(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        while True:
            u = net(x).item()
            x, q = gas.advance(u)
            gc.collect()
            rows.append((x, u, q))
            B = draw(rows)
            {LEARN}
        """,
    )
    found = script.roles(
        (FORWARD, script.at("net(x)")),
        (script.at("gas.advance(u)"),),
        (script.at("gc.collect()"),),
        (script.at("draw(rows)"),),
        (FORWARD, script.at("net(B)")),
        (BACKWARD, script.at("L.backward()")),
    )
    assert found == [Role.INFERENCE, Role.ENVIRONMENT, Role.SIDE, Role.DATA, Role.FORWARD, Role.BACKWARD]


FUNCTIONS = """
def look(game, table):
    s, kept = game.begin(), []
    for _ in range(9):
        s, r = game.put(net(s))
        kept.append(r)
    {last}

while True:
    x, r = world.put(net(x))
    table.append((x, r))
    {call}
    B = torch.stack(table)
    {learn}
"""


@pytest.mark.parametrize(
    ("last", "call", "role"),
    [
        ("return sum(kept)", "best = look(other, table); print(best)", Role.EVALUATION),  # a second instance
        ("return kept", "table.append(look(other, table))", Role.ENVIRONMENT),  # learned from
        ("table.extend(kept)", "look(other, table)", Role.ENVIRONMENT),  # by a change of an argument
        ("globals_of.rows = kept", "look(other, table); table = list(globals_of.rows)", Role.ENVIRONMENT),
    ],
)
def test_what_plays_and_reaches_no_gradient_evaluates(last: str, call: str, role: Role, tmp_path: Path) -> None:
    script = Script(tmp_path, FUNCTIONS.format(last=last, call=call, learn=LEARN))
    outer = script.at("look(other, table)")
    found = script.roles(
        (script.at("game.put(net(s))", "look"), outer),
        (FORWARD, script.at("net(s)", "look"), outer),
        (script.at("world.put(net(x))"),),
        (FORWARD, script.at("net(x)")),
        (BACKWARD, script.at("L.backward()")),
    )
    network = Role.EVALUATION if role is Role.EVALUATION else Role.INFERENCE
    assert found == [role, network, Role.ENVIRONMENT, Role.INFERENCE, Role.BACKWARD]


def test_two_that_share_a_function_with_the_network_are_kept_apart(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        def pick(q):
            return net(q).item()

        def exam(game):
            y, total = game.begin(), 0
            while total < 9:
                y, r = game.put(pick(y))
                total += r
            return total

        while True:
            x, r = world.put(pick(x))
            table.append((x, r))
            best = exam(other)
            B = torch.stack(table)
            {LEARN}
        """,
    )
    inside, exam = script.at("net(q)", "pick"), script.at("exam(other)")
    found = script.roles(
        (script.at("game.put(pick(y))", "exam"), exam),
        (FORWARD, inside, script.at("pick(y)", "exam"), exam),
        (script.at("world.put(pick(x))"),),
        (FORWARD, inside, script.at("pick(x)")),
        (BACKWARD, script.at("L.backward()")),
    )
    assert found == [Role.EVALUATION, Role.EVALUATION, Role.ENVIRONMENT, Role.INFERENCE, Role.BACKWARD]


def test_a_network_whose_output_is_judged_by_other_code_acts_and_one_that_gives_targets_learns(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        def quiet_write(x):
            return net(x)

        def mark(text):
            return count(text)

        def quiet_target(x):
            return old(x)

        def improve(B, marks):
            y = quiet_target(B)
            L = f(net(B), y, marks)
            L.backward()

        while True:
            text = quiet_write(start())
            B = [text]
            improve(B, mark(text))
        """,
    )
    inside = script.at("improve(B, mark(text))")
    found = script.roles(
        (FORWARD, script.at("net(x)", "quiet_write"), script.at("quiet_write(start())")),
        (FORWARD, script.at("old(x)", "quiet_target"), script.at("quiet_target(B)", "improve"), inside),
        (FORWARD, script.at("net(B)", "improve"), inside),
        (BACKWARD, script.at("L.backward()", "improve"), inside),
        without_gradients="quiet",
    )
    assert found == [Role.INFERENCE, Role.FORWARD, Role.FORWARD, Role.BACKWARD]


BASES = ("game.Game", "gymnasium.core.Env", stacks.ENV_CLASS)
GYM = Code("/x/site-packages/some/game.py", "Game.step", "game", 5, BASES)


@pytest.mark.parametrize(("handed", "roles"), [("old_rows", "learned"), ("", "evaluated")])
def test_what_an_object_was_made_with_is_changed_by_its_methods(handed: str, roles: str, tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        runner = Runner(game, {handed})
        while True:
            runner.go(128)
            B = old_rows.draw()
            {LEARN}
        """,
    )
    library = Code("/x/site-packages/some/runner.py", "go", "some.runner", 1, ())
    go = (library, script.at("runner.go(128)"))
    found = script.roles(
        (GYM, *go), (FORWARD, *go), (FORWARD, script.at("net(B)")), (BACKWARD, script.at("L.backward()"))
    )
    expected = [Role.ENVIRONMENT, Role.INFERENCE] if roles == "learned" else [Role.EVALUATION, Role.EVALUATION]
    assert found == [*expected, Role.FORWARD, Role.BACKWARD]


@pytest.mark.parametrize(
    ("call", "learned"), [("fit(net, opt, B, 1)", True), ("step(B, 1)", True), ("step(7, B)", False)]
)
def test_what_a_partial_is_given_flows_to_the_parameters_that_are_left(
    call: str, learned: bool, tmp_path: Path
) -> None:
    script = Script(
        tmp_path,
        f"""
        def fit(net, opt, rows, number, scale=2):
            L = net(rows)
            L.backward()
            opt.step()

        step = functools.partial(fit, net, opt)
        while True:
            B = draw(9)
            {call}
        """,
    )
    fit = script.at(call)
    found = script.roles(
        (script.at("draw(9)"),),
        (FORWARD, script.at("net(rows)", "fit"), fit),
        (BACKWARD, script.at("L.backward()", "fit"), fit),
    )
    assert found == [Role.DATA if learned else Role.SIDE, Role.FORWARD, Role.BACKWARD]


def test_waiting_for_a_result_is_a_part_of_what_computes_it(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        def fit(x):
            return jax.grad(loss)(x)

        while True:
            W, v = fit(W)
            v.block_until_ready()
            t.count()
        """,
    )
    stacks = (script.at("v.block_until_ready()"),), (script.at("t.count()"),)
    assert script.roles(*stacks) == [Role.FORWARD, Role.SIDE]


@pytest.mark.parametrize("acts", ["net(x)", "dice()"])
def test_a_replay_whose_draws_depend_on_errors_is_no_environment(acts: str, tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        def pick(items):
            return sorted(items, key=lambda e: e.heat)

        while True:
            u = {acts}; x, r = go(u)
            x = gas.reset() if r else x
            rows.append((x, u, r))
            B = pick(rows)
            E = net(B)
            E.mean().backward(); opt.step()
            for e, error in zip(B, E.tolist()):
                e.heat = error
        """,
    )
    found = script.roles(
        (*([FORWARD] if acts == "net(x)" else []), script.at(acts)),
        (GYM, script.at("go(u)")),
        (GYM, script.at("gas.reset()")),
        (script.at("sorted(items, key=lambda e: e.heat)", "pick"), script.at("pick(rows)")),
        (FORWARD, script.at("net(B)")),
        (BACKWARD, script.at("E.mean().backward()")),
    )
    assert acts != "net(x)" or found[0] is Role.INFERENCE
    assert found[1:] == [Role.ENVIRONMENT, Role.ENVIRONMENT, Role.DATA, Role.FORWARD, Role.BACKWARD]


def test_a_wrapper_that_sums_rewards_is_a_part_of_the_environment(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        def step(self, a):
            total = 0
            for _ in range(4):
                o, r, z, _, _ = self.inner.step(a)
                total += r
            return o, total

        while True:
            s, r = stack.step(net(s))
            B = [s]
            {LEARN}
        """,
    )
    inner, outer = script.at("self.inner.step(a)", "step"), script.at("stack.step(net(s))")
    found = script.roles((inner, outer), (FORWARD, script.at("net(s)")), (BACKWARD, script.at("L.backward()")))
    assert found == [Role.ENVIRONMENT, Role.INFERENCE, Role.BACKWARD]


SET_UP = f"""
while True:
    rival = build()
    s = rival.play(net(s))
    B = [s]
    {LEARN}
"""


@pytest.mark.parametrize(("states", "role"), [(5, Role.REMADE), (2, Role.START_UP)])
def test_set_up_that_recurs_is_made_again(states: int, role: Role, tmp_path: Path) -> None:
    script = Script(tmp_path, SET_UP)
    made, update = (COMPILER, script.at("build()")), (BACKWARD, script.at("L.backward()"))
    assert script.roles(made, (FORWARD, script.at("net(s)")), update, states=states)[0] is role


def test_what_takes_the_place_in_the_loop_is_read_and_not_made_again(tmp_path: Path) -> None:
    script = Script(tmp_path, f"for n in names:\n    B = torch.load(n)\n    {LEARN}")
    stacks = (LOAD, script.at("torch.load(n)")), (BACKWARD, script.at("L.backward()"))
    assert script.roles(*stacks, states=5) == [Role.READING, Role.BACKWARD]


def test_where_calls_cannot_be_followed_nothing_is_said(tmp_path: Path) -> None:
    """A function of the script that a library calls back: what flows into it is not known."""
    text = f"def back(world):\n    s = world.put(net(s))\n    count(s)\n\nwhile True:\n    run(back)\n    {LEARN}"
    script = Script(tmp_path, text)
    library = Code("/x/site-packages/some/runner.py", "run", "some.runner", 1, ())
    around = (library, script.at("run(back)"))
    found = script.roles(
        (script.at("count(s)", "back"), *around),
        (FORWARD, script.at("net(s)", "back"), *around),
        (BACKWARD, script.at("L.backward()")),
    )
    assert found[0] is Role.OTHER and Role.EVALUATION not in found


def test_a_loop_without_an_update_says_nothing_of_learning(tmp_path: Path) -> None:
    script = Script(tmp_path, "while True:\n    x = work(x)\n    note(x)\n")
    assert script.roles((script.at("work(x)"),), (script.at("note(x)"),))[0] is Role.OTHER


def test_side_work_that_logs_for_a_part_of_its_time_is_logging(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"def note(x):\n    y = count(x)\n    print(y)\n\nwhile True:\n    B = draw()\n    {LEARN}\n    note(B)\n",
    )
    outer = script.at("note(B)")
    found = script.roles(
        (script.at("count(x)", "note"), outer),
        (script.at("print(y)", "note"), outer),
        (BACKWARD, script.at("L.backward()")),
    )
    assert found == [Role.LOGGING, Role.LOGGING, Role.BACKWARD]


def test_what_is_computed_to_be_written_alone_is_logging_whether_the_writing_is_seen_or_not(tmp_path: Path) -> None:
    text = f"while True:\n    B = draw()\n    {LEARN}\n    line = text(q.all())\n    print(line)\n    keep(more(q))\n"
    script = Script(tmp_path, text)
    calls = [script.at(call) for call in ("text(q.all())", "more(q)", "draw()")]
    found = script.roles(*((call,) for call in calls), (BACKWARD, script.at("L.backward()")))
    assert found == [Role.LOGGING, Role.SIDE, Role.DATA, Role.BACKWARD]


def test_functions_that_a_library_calls_back_do_not_make_it_another_state() -> None:
    def traced(value: object) -> int:
        return stacks.variables_of(sys._getframe())

    kept = "same"
    first, second = (traced(value) for value in ("a", "b"))
    assert kept and first != second
    library: dict[str, object] = {"__name__": "jax.some"}
    exec(compile("def trace(function, value): return function(value)", "/x/site-packages/jax/some.py", "exec"), library)
    trace = library["trace"]
    found: list[int] = []
    found.append(trace(traced, "a"))  # type: ignore[operator]
    found.append(trace(traced, "b"))  # type: ignore[operator]
    assert found[0] == found[1]
