"""One thing that could be done about a script."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headrace.diagnose.verdict.profile_facts import Facts

MINUTE = "1 minute"
MINUTES = "5 minutes"
HALF_AN_HOUR = "30 minutes"
DAY = "a day"
# A thread that waits, asleep or for a worker, goes on with cold caches. Without the waiting the rest of its work was
# 10 to 24 % faster in the scripts measured; what is promised, and the most that it can be:
WAKING, WAKING_AT_MOST = 0.15, 0.25


@dataclass(frozen=True)
class Remedy:
    """A remedy, its price, and what it brings: wall time before, over wall time after."""

    title: str  # what to do, as an order
    why: str  # what was measured, and what the remedy alters besides speed
    cost: str  # of a person's time
    change: str  # the code or command that does it
    bound: float  # the gain cannot be more
    gain: float | None  # what to expect; None where the profile does not tell

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def with_the_rest(facts: Facts, spent: float, share: float) -> float:
    """Seconds that go when `spent` do, and a share of all else with them, which found its caches cold after it."""
    return spent + share * (facts.base - spent)


def remedy(facts: Facts, title: str, why: str, cost: str, change: str, *, most: float, likely: float | None) -> Remedy:
    """A remedy that saves at most `most` seconds of the driving thread's time, and probably `likely`."""
    bound = facts.bound(most)
    gain = None if likely is None else min(facts.gain(likely), bound)
    return Remedy(title, why, cost, change, bound, gain)
