"""One remedy: a change to a script, and what it can gain."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.diagnose.verdict.profile_facts import Facts

MINUTE = "1 minute"
MINUTES = "5 minutes"
HALF_AN_HOUR = "30 minutes"
DAY = "a day"
# After a thread has waited, asleep, for a worker or for a disk, its caches are cold, and the next work is slower.
# Without the waiting, the rest was 10 to 24 % faster with milliseconds of work between two pauses, and 3 to 5
# times faster with a fraction of one. The expected and the largest saving where wake-ups were not counted:
COLD_CACHES, COLD_CACHES_AT_MOST = 0.15, 0.25
# Where they were: what one costs, as a multiple of cold_start.measure(), whose code is smaller than a training loop's,
# and the share of the work that is left at least. Expected and largest, fitted to three scripts of the open half of
# benchmarks/verdicts.py.
COSTS, COSTS_AT_MOST = 4.0, 5.0
LEFT, LEFT_AT_LEAST = 1 / 4.5, 1 / 6


@dataclass(frozen=True)
class Remedy:
    """A remedy, the effort it takes, and its gain: wall time before divided by wall time after."""

    title: str  # what to do, in the imperative
    why: str  # what was measured, and what the remedy changes besides speed
    effort: str  # working time of the user
    change: str  # the code or command
    bound: float  # the gain cannot be larger
    gain: float | None  # the expected gain; None where the profile cannot predict it


def saved_waiting(facts: Facts, spent: float) -> tuple[float, float]:
    """The most seconds, and the likely ones, that are saved without `spent` seconds of waiting."""
    rest, wakes = facts.total - spent, facts.wakes(spent)
    if not wakes or not facts.wake_up:
        return spent + COLD_CACHES_AT_MOST * rest, spent + COLD_CACHES * rest
    most = min(COSTS_AT_MOST * facts.wake_up * wakes, (1 - LEFT_AT_LEAST) * rest)
    likely = min(COSTS * facts.wake_up * wakes, (1 - LEFT) * rest)
    return spent + most, spent + likely


def remedy(
    facts: Facts, title: str, why: str, effort: str, change: str, *, most: float, likely: float | None = None
) -> Remedy:
    """A remedy that saves at most `most` seconds of the training thread's time, and probably `likely`."""
    bound = facts.bound(most)
    gain = None if likely is None else min(facts.gain(likely), bound)
    return Remedy(title, why, effort, change, bound, gain)
