"""One remedy: a change to a script, and what it can gain."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.diagnose.verdict.profile_facts import Facts

MINUTE = "1 minute"
MINUTES = "5 minutes"
HALF_AN_HOUR = "30 minutes"
DAY = "a day"
# After a thread has waited, asleep or for a worker, its caches are cold. Without the waiting, the rest of its work was
# 10 to 24 % faster in the scripts that were measured. These are the expected and the largest such saving:
COLD_CACHES, COLD_CACHES_AT_MOST = 0.15, 0.25


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
    rest = facts.total - spent
    return spent + COLD_CACHES_AT_MOST * rest, spent + COLD_CACHES * rest


def remedy(
    facts: Facts, title: str, why: str, effort: str, change: str, *, most: float, likely: float | None = None
) -> Remedy:
    """A remedy that saves at most `most` seconds of the training thread's time, and probably `likely`."""
    bound = facts.bound(most)
    gain = None if likely is None else min(facts.gain(likely), bound)
    return Remedy(title, why, effort, change, bound, gain)
