"""A thread or process that works without a pause while the training thread waits for it is the bottleneck."""

from __future__ import annotations

import pytest
from helpers.profiles import SECONDS, lane, profile, site

from headrace.diagnose.profile.profile import Kind, Role
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge


def made(*, busy: float = 0.97, waits: float = 0.25, kind: Kind = Kind.THREAD, waited: str = "a lock") -> Facts:
    pid = 100 if kind is Kind.THREAD else 101
    other = lane(pid, kind, "producer", READING=1.0)
    other.cpu_seconds, other.queued_seconds = 0.6 * busy * SECONDS, 0.4 * busy * SECONDS
    other.sites = [site(Role.READING, 0.9 * SECONDS, line=7)]
    found = profile(other, WAIT=waits, BACKWARD=1 - waits)
    found.seconds = SECONDS
    found.training_thread.waits, found.training_thread.cpu_seconds = {waited: waits * SECONDS}, 0.5 * SECONDS
    return Facts(found)


@pytest.mark.parametrize(("kind", "waited"), [(Kind.THREAD, "a lock"), (Kind.WORKER, "a pipe")])
def test_what_works_all_the_time_is_the_bottleneck_of_a_thread_that_waits_for_it(kind: Kind, waited: str) -> None:
    verdict = judge(made(kind=kind, waited=waited))
    assert verdict.headline.startswith("The script waits for other processes or threads 25 % of the time")
    assert "is the bottleneck: it works all the time, mostly at train.py:7 (reading files)" in verdict.headline
    first, *others = verdict.remedies
    assert first.title == "Give producer less to do, or share its work among processes" and 1.9 < first.bound < 2.3
    assert all(remedy.gain is None for remedy in (first, *others))  # what else is saved is waited for


@pytest.mark.parametrize(
    "options",
    [{"busy": 0.6}, {"waits": 0.05}, {"waited": "a socket"}],
    ids=["it rests", "nobody waits", "another is waited for"],
)
def test_otherwise_the_largest_part_is_named(options: dict[str, object]) -> None:
    verdict = judge(made(**options))  # type: ignore[arg-type]
    assert "learning" in verdict.headline and "bottleneck" not in verdict.headline
