"""Samples are weighted such that a thread is blocked for as long as the kernel says."""

from __future__ import annotations

import pytest

from headrace.diagnose.profile.spool import Code, Place, Sample
from headrace.diagnose.record import blocking
from headrace.diagnose.record.processes import ThreadClock

PERIOD, TICKS = 0.02, 400
SECONDS = PERIOD * TICKS


def weighted(found: float, cpu: float, queued: float) -> tuple[float, float]:
    """Seconds of samples of a thread that was blocked, and of others, where a share `found` of the ticks saw it so."""
    blocked = [tick % 20 < round(20 * found) for tick in range(TICKS)]
    samples = [Sample((1 + tick) * PERIOD, PERIOD, (), state) for tick, state in enumerate(blocked)]
    states = [(sample.end - 0.01 * PERIOD, "a pipe" if sample.blocked else "") for sample in samples]
    clock = ThreadClock("main", [0.0, SECONDS], [0.0, cpu], [0.0, queued], [0.0, 100.0])
    kept = blocking.Watched(samples, states, clock, 0.0, SECONDS).weighted()
    waiting = sum(sample.seconds for sample, state in zip(kept, blocked, strict=True) if state)
    assert blocking.waits(kept).get("a pipe", 0.0) == pytest.approx(waiting)
    return waiting, sum(sample.seconds for sample in kept) - waiting


def test_late_ticks_that_find_a_thread_asleep_too_often_count_less():
    waiting, working = weighted(found=0.5, cpu=0.6 * SECONDS, queued=0.2 * SECONDS)
    assert waiting == pytest.approx(0.2 * SECONDS) and working == pytest.approx(0.8 * SECONDS)


def test_without_the_kernels_clock_or_with_few_samples_of_a_state_nothing_changes():
    assert weighted(found=0.0, cpu=0.5 * SECONDS, queued=0.0) == pytest.approx((0.0, SECONDS))
    samples = [Sample(PERIOD, PERIOD, ())] * 100
    assert blocking.Watched(samples, [(PERIOD, "a pipe")], ThreadClock(), 0.0, SECONDS).weighted() == samples


@pytest.mark.parametrize(("blocked", "cpu", "lost"), [(5, 0.2, 0.75), (5, 0.9, 0.0), (100, 0.2, 0.0)])
def test_blocked_time_without_samples_is_known_from_the_kernel(blocked: int, cpu: float, lost: float) -> None:
    """Looks that could not be taken: samples show 5 of 100 ticks blocked, the kernel four fifths of the time."""
    samples = [Sample((1 + tick) * SECONDS / 100, SECONDS / 100, (), tick < blocked) for tick in range(100)]
    states = [(tick * PERIOD, "a socket" if tick % 4 else "") for tick in range(TICKS)]
    clock = ThreadClock("main", [0.0, SECONDS], [0.0, cpu * SECONDS], [0.0, 0.0], [0.0, 100.0])
    found = blocking.Watched(samples, states, clock, 0.0, SECONDS).unseen()
    assert found.get("a socket", 0.0) == pytest.approx(lost * SECONDS)


@pytest.mark.parametrize(("queued", "share"), [(0.6, 0.5), (0.1, 0.8)], ids=["busy", "idle"])
def test_on_a_busy_machine_samples_count_by_their_time_on_a_core(queued: float, share: float) -> None:
    """Two lines that compute as long as each other; other programs take the core at the first one more often."""
    stacks = tuple((Place(Code("/me/train.py", "<module>", "__main__", 1, ()), line),) for line in (3, 5))
    seconds = (0.8, 0.2)
    samples = [Sample(1.0 + tick, seconds[tick % 2], stacks[tick % 2], cpu=0.1) for tick in range(100)]
    clock = ThreadClock("main", [0.0, 50.0], [0.0, 10.0], [0.0, 50.0 * queued], [0.0, 0.0])
    kept = blocking.Watched(samples, [], clock, 0.0, 50.0).weighted()
    first = sum(each.seconds for each in kept if each.stack == stacks[0])
    assert sum(each.seconds for each in kept) == pytest.approx(50.0) and first == pytest.approx(50.0 * share)
