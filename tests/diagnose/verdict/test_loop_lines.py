"""The first lines of a report: the statements of the training loop."""

from __future__ import annotations

from helpers.profiles import profile

from headrace.diagnose.profile.profile import Role, Site
from headrace.diagnose.report import table
from headrace.diagnose.verdict import loop_lines
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge


def made(**counters: float) -> Facts:
    """A script that builds what it plays against in each turn, and waits for a pipe in its environment."""
    found = profile(REMADE=0.4, ENVIRONMENT=0.5, BACKWARD=0.1, counters=counters)
    file, total = "/home/me/train.py", found.training_thread.total
    found.training_thread.lines = [
        Site(Role.ENVIRONMENT, file, 8, "", "", 0.5 * total, "world.put(a)", waits={"a pipe": 0.45 * total}),
        Site(Role.REMADE, file, 5, "", "", 0.4 * total, "build()", sure=False),
        Site(Role.BACKWARD, file, 9, "", "", 0.01 * total, "loss.backward()"),
    ]
    return Facts(found)


def test_a_statement_has_its_share_its_place_its_state_and_how_sure_its_role_is() -> None:
    assert loop_lines.rows(made()) == [
        ("50 %", "train.py:8  world.put(a)", "waits for a pipe 90 %: environment (sure)"),
        ("40 %", "train.py:5  build()", "on a core: set-up made again (likely)"),
    ]
    text = table.text(made(), judge(made()))
    assert "mostly at train.py:8 `world.put(a)`" in text and "waits for a pipe 90 %" in text


def test_before_the_training_there_are_none() -> None:
    assert loop_lines.rows(made(training_began=0.0)) == []


def test_what_is_made_again_is_made_once_at_the_loops_line() -> None:
    (remedy,) = [each for each in judge(made()).remedies if "Make once" in each.title]
    assert (
        "train.py:5" in remedy.why
        and remedy.gain is not None
        and remedy.gain < remedy.bound < 1 / (1 - 1.1 * 0.4 - 0.03)
    )


def test_before_the_training_a_line_is_named_only_if_most_of_the_time_is_there() -> None:
    facts = made()
    assert "world.put(a)" not in loop_lines.meanwhile(facts)  # exactly a half
    facts.profile.training_thread.lines[0].seconds *= 1.2
    assert "train.py:8 `world.put(a)`" in loop_lines.meanwhile(facts)
