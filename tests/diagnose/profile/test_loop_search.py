"""Choice of the loop of a script that trains, and the time since when it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.diagnose.injected import variables
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.profile.roles import Classifier
from headrace.diagnose.profile.spool import Place, Sample
from tests.diagnose.profile.test_training_loop import BACKWARD, LEARN, Script


def test_updates_before_the_loop_do_not_hide_it(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        def fit(B):
            for _ in range(9):
                L = f(net(B))
                L.backward()

        fit(old)
        while True:
            s = game.put(net(s))
            fit(s)
        """,
    )
    before = (BACKWARD, script.at("L.backward()", "fit"), script.at("fit(old)"))
    stacks = [before] * 9 + [(script.at("game.put(net(s))"),)] * 9
    found = script.roles(*stacks, (BACKWARD, script.at("L.backward()", "fit"), script.at("fit(s)")))
    assert found[9:] == [Role.ENVIRONMENT] * 9 + [Role.BACKWARD]


def test_a_loop_that_asks_for_something_again_and_again_waits(tmp_path: Path) -> None:
    text = f"while True:\n    table[0] = net(x)\n    while (table[1] != 0).any():\n        pass\n    {LEARN}"
    script = Script(tmp_path, text)
    asks = (script.at("(table[1] != 0).any()"),)
    assert script.roles(asks, (BACKWARD, script.at("L.backward()")))[0] is Role.WAIT


@pytest.mark.parametrize(
    ("update", "reached"), [(f"    {LEARN}", False), ("    pass", True)], ids=["its loop is to come", "there is none"]
)
def test_a_loop_that_leads_to_no_update_is_start_up_where_the_script_has_one(
    update: str, reached: bool, tmp_path: Path
) -> None:
    script = Script(tmp_path, f"for n in cells:\n    walk(n)\n    rest(n)\nwhile True:\n{update}")
    order = [script.at("walk(n)"), script.at("rest(n)")] * 30
    samples = [Sample(float(moment), 1.0, (place,)) for moment, place in enumerate(order)]
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from(samples)
    assert classifier.loop is not None and classifier.loop.is_before_updates is not reached
    assert (classifier.loop.began() is not None) is reached


def test_reading_a_gradient_updates_nothing(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        def norm(grad):
            return size(net.weight.grad) + size(grad)

        while True:
            B = draw()
            {LEARN}
            note(norm(B))
        """,
    )
    found = script.roles((script.at("norm(B)"),), (BACKWARD, script.at("L.backward()")))
    assert found == [Role.SIDE, Role.BACKWARD]


def test_the_loop_began_with_its_second_turn(tmp_path: Path) -> None:
    script = Script(tmp_path, f"while True:\n    B = draw()\n    {LEARN}")
    draw, update = (script.at("draw()"),), (Place(BACKWARD, 1), script.at("L.backward()"))
    order = [draw, draw, update, draw, update, draw]
    samples = [Sample(float(moment), 1.0, stack) for moment, stack in enumerate(order)]
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from(samples)
    assert classifier.loop is not None and classifier.loop.began() == 5.0


def test_classes_whose_metaclass_refuses_to_tell_their_module_are_data() -> None:
    class Refuses(type):
        @property
        def __module__(cls) -> str:  # type: ignore[override]
            raise AttributeError("__module__")

    class Odd(metaclass=Refuses):
        pass

    assert variables.kind(Odd()) == ""
    assert variables.full_name(int) == "builtins.int"


def test_a_loop_whose_own_lines_are_not_seen_begins_with_its_second_update(tmp_path: Path) -> None:
    script = Script(tmp_path, f"def day():\n    B = unpack()\n    {LEARN}\n\nwhile True:\n    n += day()")
    around, update = (script.at("day()"),), Place(BACKWARD, 1)
    around = (Place(around[0].code, 6),)
    reading, learning = (script.at("unpack()", "day"), *around), (update, script.at("L.backward()", "day"), *around)
    samples = [Sample(float(n), 1.0, learning if n % 3 == 2 else reading) for n in range(12)]
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from(samples)
    assert classifier.loop is not None and len(classifier.loop.turns) < 2
    assert classifier.loop.began() == 5.0
