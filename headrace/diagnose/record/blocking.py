"""Corrects what samples say about waiting by what the kernel knows: for how long a thread was blocked.

A thread samples itself by its CPU time, and is looked at from outside while it waits. How long it was blocked in all
is known exactly, so samples of both states are weighted such that their sums are right (post-stratification; Holt and
Smith 1979).
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

UNSEEN = 0.1  # share of the time, from which on blocked time without samples is counted apart
FEWEST = 20  # samples of a state; with fewer, its share says too little
BUSY = 0.2  # share of the time without a core, from which on the machine is busy
MOST = 4.0  # times, at most, that a sample is weighted more or less


def without(samples: Sequence[Sample], still: Sequence[tuple[float, float]]) -> list[Sample]:
    """The samples without the time of some intervals, in which the process did not run."""
    if not still:
        return list(samples)
    inside = ((each, overlap(still, each.end - each.seconds, each.end)) for each in samples)
    return [replace(each, seconds=each.seconds - lost) for each, lost in inside if each.seconds > lost]


def overlap(intervals: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Seconds of some intervals between two moments."""
    return sum(max(min(last, end) - max(first, begin), 0.0) for first, last in intervals)


@dataclass(frozen=True)
class Watched:
    """Samples of a thread between two moments, and what the kernel knows of it meanwhile.

    states: in order of time, when the thread was looked at (s of time.monotonic()) and what it was blocked in, "" while
    it was not. still: s in which the process did not run.
    """

    samples: Sequence[Sample]
    states: Sequence[tuple[float, str]]
    clock: ThreadClock
    begin: float
    end: float
    still: float = 0.0

    def weighted(self) -> list[Sample]:
        """The samples with `seconds` that sum up to the blocked time of the clock, and to what is left.

        Each that was blocked is given what it waited for.
        """
        samples = with_states(self._by_cpu(), self.states)
        found, working = sum(each.seconds for each in samples if each.blocked), len(samples) - self._blocked
        if not self.clock.times or min(self._blocked, working) < FEWEST:
            return samples
        waits, works = _limited(self._exact / found), _limited((self._total - self._exact) / (self._total - found))
        scale = self._total / (waits * found + works * (self._total - found))
        return [replace(each, seconds=each.seconds * scale * (waits if each.blocked else works)) for each in samples]

    def unseen(self) -> dict[str, float]:
        """Object that was waited for -> seconds blocked that no sample shows, where these are too few to be weighted.

        A thread that waits could not be looked at, as where it holds the interpreter's lock meanwhile.
        """
        inside = Counter(state for time, state in self.states if state and self.begin <= time <= self.end)
        lost = self._exact - sum(each.seconds for each in self.samples if each.blocked)
        if not self.clock.times or self._blocked >= FEWEST or lost <= UNSEEN * self._total:
            return {}
        return {what: lost * number / inside.total() for what, number in inside.most_common()}

    def _by_cpu(self) -> Sequence[Sample]:
        """The samples; on a busy machine, those that computed count by their time on a core.

        When a thread without a core gets one again depends on other programs, and not on what it does.
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
        """Blocked seconds, as the clock has them."""
        whole = max(self.end - self.begin - self.still, 1e-9)
        ran = self.clock.cpu_seconds(self.begin, self.end) + self.clock.queued_seconds(self.begin, self.end)
        return min(max(1 - ran / whole, 0.0), 1.0) * self._total


def _limited(weight: float) -> float:
    return min(max(weight, 1 / MOST), MOST)


def with_states(samples: Sequence[Sample], states: Sequence[tuple[float, str]]) -> list[Sample]:
    """The samples, with what was seen from outside last before each that was blocked."""
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
