"""Corrects the sampled time of waiting by the kernel's record of how long a thread was blocked.

A thread samples itself at intervals of its CPU time, and is sampled from outside while it waits. The total time for
which it was blocked is known exactly, so samples of both states are weighted such that their sums are right
(post-stratification; Holt and Smith 1979).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.roles import Classifier
from headrace.diagnose.profile.spool import Sample
from headrace.diagnose.record.processes import ThreadClock

UNSEEN = 0.1  # blocked time without samples is counted apart above this share of the time
FEWEST = 20  # samples of a state; with fewer, its share says too little
BUSY = 0.2  # the machine counts as busy from this share of the time on for which the thread waits for a core
MOST = 4.0  # weights of samples lie within 1 / MOST .. MOST


def without(samples: Sequence[Sample], still: Sequence[tuple[float, float]]) -> list[Sample]:
    """The samples without the time of some intervals, in which the process did not run."""
    if not still:
        return list(samples)
    inside = ((each, overlap(still, each.end - each.seconds, each.end)) for each in samples)
    return [replace(each, seconds=each.seconds - lost) for each, lost in inside if each.seconds > lost]


def overlap(intervals: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Seconds of some intervals that lie between two times."""
    return sum(max(min(last, end) - max(first, begin), 0.0) for first, last in intervals)


@dataclass(frozen=True)
class Watched:
    """Samples of a thread between two times, and the kernel's readings of that thread.

    states: in order of time, when the thread was looked at from outside (s of time.monotonic()), and what it was
    waiting for; "" if it was not blocked. still: s for which the process did not run.
    """

    samples: Sequence[Sample]
    states: Sequence[tuple[float, str]]
    clock: ThreadClock
    begin: float
    end: float
    still: float = 0.0

    def weighted(self) -> list[Sample]:
        """The samples, with `seconds` scaled so that blocked samples sum up to the clock's blocked time, and the others
        to the rest.

        `waits_for` is set in each blocked sample.
        """
        samples = with_states(self._by_cpu(), self.states)
        found, working = sum(each.seconds for each in samples if each.blocked), len(samples) - self._blocked
        if not self.clock.times or min(self._blocked, working) < FEWEST:
            return samples
        waits, works = _limited(self._exact / found), _limited((self._total - self._exact) / (self._total - found))
        scale = self._total / (waits * found + works * (self._total - found))
        return [replace(each, seconds=each.seconds * scale * (waits if each.blocked else works)) for each in samples]

    def unseen(self) -> dict[str, float]:
        """Object that was waited for -> blocked seconds that no sample shows; {} where blocked samples are enough to be
        weighted.

        Samples are missing where a waiting thread could not be sampled, such as while it holds the interpreter's lock.
        """
        inside = Counter(state for time, state in self.states if state and self.begin <= time <= self.end)
        lost = self._exact - sum(each.seconds for each in self.samples if each.blocked)
        if not self.clock.times or self._blocked >= FEWEST or lost <= UNSEEN * self._total:
            return {}
        return {what: lost * number / inside.total() for what, number in inside.most_common()}

    def _by_cpu(self) -> Sequence[Sample]:
        """The samples. On a busy machine, samples of computing are weighted by their time on a core.

        Other programs determine when a thread without a core gets one again.
        """
        working = [each for each in self.samples if not each.blocked]
        cpu, queued = sum(each.cpu for each in working), self.clock.queued_seconds(self.begin, self.end)
        if queued < BUSY * self._total or not cpu:
            return self.samples
        scale = sum(each.seconds for each in working) / cpu
        return [each if each.blocked else replace(each, seconds=each.cpu * scale) for each in self.samples]

    @property
    def _total(self) -> float:
        return sum(each.seconds for each in self.samples)

    @property
    def _blocked(self) -> int:
        return sum(each.blocked for each in self.samples)

    @property
    def _exact(self) -> float:
        """Blocked seconds by the kernel's clock."""
        whole = max(self.end - self.begin - self.still, 1e-9)
        ran = self.clock.cpu_seconds(self.begin, self.end) + self.clock.queued_seconds(self.begin, self.end)
        return min(max(1 - ran / whole, 0.0), 1.0) * self._total


def _limited(weight: float) -> float:
    return min(max(weight, 1 / MOST), MOST)


def with_states(samples: Sequence[Sample], states: Sequence[tuple[float, str]]) -> list[Sample]:
    """The samples, each blocked one with the state that was last seen from outside before its end."""
    times = [time for time, _ in states]
    seen = (states[index - 1][1] if (index := bisect_left(times, sample.end)) else "" for sample in samples)
    return [replace(each, waits_for=state) if each.blocked else each for each, state in zip(samples, seen, strict=True)]


def waits(samples: Sequence[Sample]) -> dict[str, float]:
    """Object that was waited for -> seconds, the most first."""
    spent: dict[str, float] = {}
    for sample in samples:
        if sample.waits_for:
            spent[sample.waits_for] = spent.get(sample.waits_for, 0.0) + sample.seconds
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def seconds(samples: Sequence[Sample], classifier: Classifier) -> dict[Role, float]:
    """Role -> seconds of samples, largest first."""
    spent: dict[Role, float] = {}
    for sample in samples:
        role = classifier.classify(sample.stack)[0]
        spent[role] = spent.get(role, 0.0) + sample.seconds
    return dict(sorted(spent.items(), key=lambda item: -item[1]))
