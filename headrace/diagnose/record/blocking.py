"""Corrects what samples say about waiting by what the kernel knows: for how long a thread was blocked.

A tick comes late where the core that sends it was idle, and idle cores go with a script that computes: it is then found
in what follows, waiting for its workers. How long it was blocked in all is known exactly, so samples of both states are
weighted such that their sums are right (post-stratification; Holt and Smith 1979).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.roles import Classifier
from headrace.diagnose.profile.spool import Sample
from headrace.diagnose.record.processes import ThreadClock

FEWEST = 20  # samples of a state; with fewer, its share says too little
MOST = 4.0  # times, at most, that a sample is weighted more or less


def weighted(
    samples: Sequence[Sample], states: Sequence[tuple[float, bool]], clock: ThreadClock, begin: float, end: float
) -> list[Sample]:
    """The samples with `seconds` that sum up to the blocked time of `clock`, and to what is left, between two moments.

    states: in order of time, when the thread was ticked (s of time.monotonic()) and whether it was blocked then.
    """
    blocked = _blocked(samples, states)
    total = sum(sample.seconds for sample in samples)
    found = sum(sample.seconds for sample, state in zip(samples, blocked, strict=True) if state)
    known = end - begin - clock.cpu_seconds(begin, end) - clock.queued_seconds(begin, end)
    exact = min(max(known / (end - begin), 0.0), 1.0) * total
    if not clock.times or min(sum(blocked), len(blocked) - sum(blocked)) < FEWEST:
        return list(samples)
    waiting, working = _limited(exact / found), _limited((total - exact) / (total - found))
    scale = total / (waiting * found + working * (total - found))
    weights = (scale * (waiting if state else working) for state in blocked)
    return [replace(each, seconds=each.seconds * weight) for each, weight in zip(samples, weights, strict=True)]


def _limited(weight: float) -> float:
    return min(max(weight, 1 / MOST), MOST)


def _blocked(samples: Sequence[Sample], states: Sequence[tuple[float, bool]]) -> list[bool]:
    """Of each sample, whether the tick that it belongs to, the first after it was due, found the thread blocked."""
    times = [time for time, _ in states]
    indices = (bisect_left(times, sample.end) for sample in samples)
    return [index < len(states) and states[index][1] for index in indices]


def seconds(samples: Sequence[Sample], classifier: Classifier) -> dict[Role, float]:
    """Role -> seconds of samples, largest first."""
    spent: dict[Role, float] = {}
    for sample in samples:
        role = classifier.classify(sample.stack)[0]
        spent[role] = spent.get(role, 0.0) + sample.seconds
    return dict(sorted(spent.items(), key=lambda item: -item[1]))
