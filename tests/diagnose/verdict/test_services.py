"""Processes that a library starts for itself are no environments, and their waiting is no training."""

from __future__ import annotations

import pytest
from helpers.profiles import facts, lane, site

from headrace.diagnose.profile.profile import Kind, Lane, Role
from headrace.diagnose.verdict.verdict import judge


def service(locks: float, *, own: bool = False) -> Lane:
    """A child that sleeps, and waits for locks for a share of its time."""
    found = lane(101, Kind.WORKER, "worker 1", IDLE=1.0)
    found.waits = {"a timer": (1 - locks) * found.total, "a lock": locks * found.total}
    found.sites = [site(Role.IDLE, found.total, own=own)]
    return found


@pytest.mark.parametrize(("locks", "own", "number"), [(0.002, True, 0), (0.2, True, 1), (0.2, False, 0)])
def test_a_child_that_sleeps_is_an_environment_if_its_sleep_is_the_users_and_somebody_tells_it_when(
    locks: float, own: bool, number: int
) -> None:
    assert len(facts(service(locks, own=own), WAIT=0.9, BACKWARD=0.1).env_workers) == number


@pytest.mark.parametrize("works", [0.05, 0.3])
def test_waiting_for_processes_that_only_start_is_no_training(works: float) -> None:
    other = lane(102, Kind.WORKER, "worker 2", OTHER=works, START_UP=0.4, WAIT=0.6 - works)
    verdict = judge(facts(other, WAIT=0.9, OTHER=0.1, counters={"training_began": 0.0}))
    assert verdict.headline.startswith("Training had not begun") == (works < 0.1)
