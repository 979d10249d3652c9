"""Wait for another process: by polling if a core is free, then asleep.

Waking a sleeping process takes 20 to 80 microseconds, polling a descriptor a third of one
(benchmarks/speed/worker_sync.py). But polling keeps a core busy. If other programs need that core, the
system takes it away for milliseconds. So polling pays only if each process has its own core, and only for a short time.
"""

from __future__ import annotations

import math
import select
import sys
from time import perf_counter

from headrace.core.cores import cores

SPIN = 200e-6  # s of polling before going to sleep
FIRST_PAUSE, LONGEST_PAUSE = 5e-3, 2.0  # s without polling after the core was taken away, doubled each time
CALM = 10  # after this multiple of the last pause without a loss, the next pause is FIRST_PAUSE again
PERIOD = 10e-3  # s between two checks of how long this thread has waited for a core
SHARE = 0.05  # share of time that a thread waits for a core because of the system itself, without other programs


def spin_of(processes: int) -> float:
    """Seconds for which each of `processes` that wait for each other may poll before it sleeps."""
    return SPIN if processes <= cores() and sys.platform == "linux" else 0.0


class Waiting:
    """Waits on the descriptors of a poll object, awake for at most `spin` seconds, then asleep.

    If other programs took the core from this thread, which is noticed within PERIOD, it sleeps at once.
    """

    def __init__(self, spin: float) -> None:
        self.spin = spin
        self._pause, self._until = FIRST_PAUSE, 0.0  # the last pause, and when it ends
        self._waited, self._noted = _waited() if spin else 0.0, perf_counter()

    def poll(self, poll: select.poll, timeout: float) -> list[tuple[int, int]]:
        """The events, as soon as there are some; none after `timeout` seconds."""
        if self.spin and timeout > 0 and self._alone():
            until = perf_counter() + min(self.spin, timeout)
            while perf_counter() < until:
                events = poll.poll(0)
                if events:
                    return events
        return poll.poll(max(0.0, timeout) * 1000)

    def _alone(self) -> bool:
        """Tell whether no other program has needed the core recently."""
        now = perf_counter()
        if now < max(self._until, self._noted + PERIOD):
            return now >= self._until
        waited = _waited()
        alone = waited - self._waited <= SHARE * (now - self._noted)  # not so where either is infinite
        self._waited, self._noted = waited, now
        if not alone:
            calm = now - self._until > CALM * self._pause
            self._pause = FIRST_PAUSE if calm else min(2 * self._pause, LONGEST_PAUSE)
            self._until = now + self._pause
        return alone


def _waited() -> float:
    """Seconds that this thread has waited for a core; infinite if the system does not report it."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError):
        return math.inf
