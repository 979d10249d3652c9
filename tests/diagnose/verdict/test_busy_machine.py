"""Verdicts on a machine so busy that no update was seen."""

from __future__ import annotations

import pytest
from helpers.profiles import SECONDS, profile

from headrace.diagnose.profile.profile import Role
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("queued", "said"), [(0.6, True), (0.05, False)])
def test_time_without_a_core_is_told(trained: bool, queued: float, said: bool) -> None:
    shares = {"START_UP": 0.2, "FORWARD": 0.8} if trained else {"START_UP": 1.0}
    made = profile(**shares, counters={"training_began": float(trained)})
    made.training_thread.queued_seconds = queued * SECONDS
    verdict = judge(Facts(made))
    assert verdict.headline.startswith("Training had not begun") != trained
    assert any("had no core 60 % of the time" in note for note in verdict.notes) == said


@pytest.mark.parametrize("before", [False, True])
def test_a_loop_that_sets_up_again_and_again_has_begun_unless_the_updates_come_later(before: bool) -> None:
    counters = {"training_began": 0.0, "updates_seen": 0.0, "before_updates": float(before)}
    verdict = judge(Facts(profile(START_UP=0.4, REMADE=0.55, OTHER=0.05, counters=counters)))
    said = "Training had not begun" if before else "Most of the time goes into set-up made again: 92 %"
    assert verdict.headline.startswith(said)
    assert any("Make once" in remedy.title for remedy in verdict.remedies) != before


def test_of_environments_that_are_stepped_before_a_training_it_is_not_said_that_they_are_not() -> None:
    counters = {"training_began": 0.0, "before_updates": 1.0}
    headline = judge(Facts(profile(SAVING=0.9, ENVIRONMENT=0.1, counters=counters))).headline
    assert headline.startswith("Training had not begun after 60 s: nothing was learned.")


@pytest.mark.parametrize(("queued", "together"), [(0.1, False), (0.45, True)])
def test_waiting_is_named_where_computing_may_be_the_largest_part_because_the_machine_is_busy(
    queued: float, together: bool
) -> None:
    made = profile(BACKWARD=0.6, WAIT=0.25, DATA=0.15)
    made.training_thread.queued_seconds = queued * SECONDS
    headline = judge(Facts(made)).headline
    assert ("learning, 60 %, and waiting for others, 25 %" in headline) is together


@pytest.mark.parametrize(("asleep", "together"), [(0.3, True), (0.0, False)])
def test_an_environment_that_sleeps_may_be_the_largest_part_on_an_idle_machine(asleep: float, together: bool) -> None:
    made = profile(BACKWARD=0.6, ENVIRONMENT=0.4)
    made.training_thread.blocked = {Role.ENVIRONMENT: asleep * SECONDS}
    made.training_thread.queued_seconds = 0.45 * SECONDS
    assert ("learning, 60 %, and environments, 40 %" in judge(Facts(made)).headline) is together
