"""Waiting for another process: looking again and again where that costs nobody anything, asleep otherwise.

Waking a sleeper takes 20 to 80 microseconds, a look at a descriptor a third of one (benchmarks/worker_sync.py). But
whoever looks keeps a core busy: it pays only where each process has a core of its own, and for a short while.
"""

from __future__ import annotations

import os
import select
from time import perf_counter

SPIN = 200e-6  # s of looking before going to sleep
PREEMPTED = 1e-3  # s between two looks that tell of other programs that want the core
FIRST_PAUSE, LONGEST_PAUSE = 16, 4096  # waits without looking after that, doubled each time


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spin_of(processes: int) -> float:
    """Seconds for which each of so many processes that wait for each other may look before it sleeps."""
    return SPIN if processes <= cores() else 0.0


class Waiting:
    """Waits on the descriptors of a poll object, awake for at most `spin` seconds, then asleep.

    Gives way: where other programs took the core while it looked, it goes to sleep at once for some waits.
    """

    def __init__(self, spin: float) -> None:
        self.spin = spin
        self._pause, self._sleeps = FIRST_PAUSE, 0

    def poll(self, poll: select.poll, timeout: float) -> list[tuple[int, int]]:
        """What has happened, as soon as something has; nothing after `timeout` seconds."""
        if self._sleeps:
            self._sleeps -= 1
        elif self.spin and timeout:
            events = self._look(poll, min(self.spin, timeout))
            if events:
                return events
        return poll.poll(max(0.0, timeout) * 1000)

    def _look(self, poll: select.poll, seconds: float) -> list[tuple[int, int]]:
        last = began = perf_counter()
        while last - began < seconds:
            events = poll.poll(0)
            if events:
                self._pause = max(FIRST_PAUSE, self._pause - 1)
                return events
            now = perf_counter()
            if now - last > PREEMPTED:
                self._sleeps, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
                return []
            last = now
        return []
