"""Roles of what begins an episode and of what judges its steps, and learning without a library of networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.diagnose.profile.profile import Role
from tests.diagnose.profile.test_training_loop import BACKWARD, FORWARD, KINDS, LEARN, Script


@pytest.mark.parametrize("begin", ["gas.fresh()", "fresh(9)"])
def test_what_begins_an_episode_is_a_part_of_the_environment(begin: str, tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        while True:
            x, end = {begin}, False
            while not end:
                x, r, end = gas.advance(net(x))
                rows.append((x, r))
            B = draw(rows)
            {LEARN}
        """,
    )
    found = script.roles(
        (script.at(begin),),
        (FORWARD, script.at("net(x)")),
        (script.at("gas.advance(net(x))"),),
        (script.at("draw(rows)"),),
        (BACKWARD, script.at("L.backward()")),
    )
    assert found == [Role.ENVIRONMENT, Role.INFERENCE, Role.ENVIRONMENT, Role.DATA, Role.BACKWARD]


@pytest.mark.parametrize(
    ("kind", "role"), [("number", Role.ENVIRONMENT), ("array", Role.ENVIRONMENT), ("container", Role.DATA)]
)
def test_what_judges_each_step_is_a_part_of_the_environment_and_what_packs_it_is_not(
    kind: str, role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "q", kind)
    script = Script(
        tmp_path,
        f"""
        def note(z):
            return work(z)

        while True:
            x = gas.advance(net(x))
            q = note(x)
            rows.append((x, q))
            B = draw(rows)
            {LEARN}
        """,
    )
    found = script.roles(
        (script.at("note(x)", "<module>"),),
        (FORWARD, script.at("net(x)")),
        (script.at("gas.advance(net(x))"),),
        (BACKWARD, script.at("L.backward()")),
    )
    assert found == [role, Role.INFERENCE, Role.ENVIRONMENT, Role.BACKWARD]


def test_without_a_network_of_a_known_class_an_object_that_acts_and_is_taught_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("net", "old", "opt"):
        monkeypatch.delitem(KINDS, name)
    script = Script(
        tmp_path,
        """
        class Own:
            def guess(self, x):
                return work(x)

            def fit(self, x, y):
                self.w = work(x)

        class Gas:
            def advance(self, u):
                return work(u)

            def fresh(self):
                return work()

        mine, gas = Own(), Gas()
        x = gas.fresh()
        while True:
            u = mine.guess(x)
            x = gas.advance(u)
            rows.append((x, u))
            B, y = draw(rows)
            mine.fit(B, y)
        """,
    )
    calls = ("mine.guess(x)", "gas.advance(u)", "draw(rows)", "mine.fit(B, y)")
    found = script.roles(
        (script.at("work(x)", "guess"), script.at(calls[0])),
        (script.at("work(u)", "advance"), script.at(calls[1])),
        (script.at(calls[2]),),
        (script.at("work(x)", "fit"), script.at(calls[3])),
    )
    assert found == [Role.INFERENCE, Role.ENVIRONMENT, Role.DATA, Role.FORWARD]
