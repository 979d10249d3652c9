"""One remedy: a change to a script, and what it can gain."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headrace.diagnose.profile.profile import Role
from headrace.diagnose.verdict.profile_facts import Facts

UNBOUNDED = 50.0  # a bound as high as this has no meaning
MINUTE = "1 minute"
MINUTES = "5 minutes"
HALF_AN_HOUR = "30 minutes"
DAY = "a day"
# After a thread has waited, asleep, for a worker or for a disk, its caches are cold, and the next work is slower.
# Without the waiting, the rest was 10 to 24 % faster with milliseconds of work between two pauses, and 3 to 5 times
# faster with a fraction of one. The expected and the largest saving where wake-ups were not counted:
COLD_CACHES, COLD_CACHES_AT_MOST = 0.15, 0.25
# Where they were: the share of the rest that is saved after pauses of next to nothing, and what is added to it for
# pauses of LONG_PAUSE or more; and what one wake-up costs at most. Expected and largest, fitted to seven scripts of
# benchmarks/diagnose/verdicts.py on processors of three makes: after long pauses 24 to 62 % of the rest were saved, on
# an Intel Xeon from none to 45 %; a wake-up before the updates of two networks cost 1.5 to 2.2 ms.
SHORT, SHORT_AT_MOST = 0.2, 0.45
LONG, LONG_AT_MOST = 0.15, 0.25
LONG_PAUSE = 2e-3  # s
WAKE_UP, WAKE_UP_AT_MOST = 1.1e-3, 2.5e-3  # s


@dataclass(frozen=True)
class Remedy:
    """A remedy, the effort it takes, and its gain: wall time before divided by wall time after."""

    title: str  # what to do, in the imperative
    why: str  # what was measured, and what the remedy changes besides speed
    effort: str  # working time of the user
    change: str  # the code or command
    bound: float  # the gain cannot be larger
    gain: float | None  # the expected gain; None where the profile cannot predict it
    saved: float = 0.0  # share of the time that it saves at most, without the errors of `bound`


def saved_waiting(facts: Facts, spent: float, waited: float | None = None) -> tuple[float, float]:
    """Largest and expected number of seconds saved by removing `spent` seconds, of which `waited` are waiting.

    waited: by default all of `spent`.
    """
    waited = spent if waited is None else waited
    rest, wakes = facts.total - spent, facts.wakes(waited)
    if not wakes:
        return spent + COLD_CACHES_AT_MOST * rest, spent + COLD_CACHES * rest
    work = min(rest, facts.profile.training_thread.cpu_seconds)  # more, if it had no core when it woke up
    length = min(waited / wakes / LONG_PAUSE, 1.0)
    most = min(WAKE_UP_AT_MOST * wakes, (SHORT_AT_MOST + LONG_AT_MOST * length) * work)
    likely = min(WAKE_UP * wakes, (SHORT + LONG * length) * work)
    return spent + most, spent + likely  # other waits stay


def remedy(
    facts: Facts,
    title: str,
    why: str,
    effort: str,
    change: str,
    *,
    most: float,
    likely: float | None = None,
    measured: float | None = None,
    saves: Collection[Role] = (),
) -> Remedy:
    """A remedy that saves at most `most` seconds of the training thread's time, and probably `likely`.

    measured: part of `most` that was sampled; the rest is an estimate. saves: the roles that the remedy shortens. Time
    whose role is guessed or unknown may belong to them, too.
    """
    bound = facts.bound(most, measured, facts.may_be(*saves) if saves else 0.0)
    gain = None if likely is None else min(facts.gain(likely), bound)
    return Remedy(title, why, effort, change, bound, gain, most / facts.total)
