"""Monitors a process and its descendants from outside: their pids, and the CPU time of each of their threads.

It reads Linux's /proc. On other systems it finds nothing, and the profile says so.
"""

from __future__ import annotations

import os
import re
import signal
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from headrace.diagnose.profile.profile import SERIES_PERIOD

PROC = Path("/proc")
FAMILY_EVERY = 0.5  # s between searches for new processes
PAUSED = 2.0  # after so many s without a reading, this program did not run either, such as while the machine is paused
COST_OF_THREAD = 1e-3  # s of pause per thread that is read, so that reading takes about 1 % of a core


@dataclass
class ThreadClock:
    """Readings of a thread's CPU time, and of the time for which it waited for a core."""

    name: str = ""  # as the kernel knows it
    times: list[float] = field(default_factory=list)  # s of time.monotonic()
    cpu: list[float] = field(default_factory=list)  # s since the thread began
    queued: list[float] = field(default_factory=list)  # s for which it was ready to run but had no core
    waits: list[float] = field(default_factory=list)  # number of waits so far for something other than a core

    def cpu_seconds(self, begin: float, end: float) -> float:
        """CPU seconds between two times; 0 without readings."""
        return self._at(self.cpu, end) - self._at(self.cpu, begin)

    def queued_seconds(self, begin: float, end: float) -> float:
        """Seconds of waiting for a core between two times; 0 without readings."""
        return self._at(self.queued, end) - self._at(self.queued, begin)

    def wakes(self, begin: float, end: float) -> float:
        """Number of wake-ups between two times, after waits for something other than a core; 0 if not read."""
        return self._at(self.waits, end) - self._at(self.waits, begin)

    def _at(self, values: list[float], moment: float) -> float:
        """The value at a time, interpolated linearly between two readings."""
        index = bisect_left(self.times, moment)
        if index in (0, len(values)):
            return values[max(index - 1, 0)] if values else 0.0
        before, after = self.times[index - 1], self.times[index]
        share = (moment - before) / max(after - before, 1e-9)
        return values[index - 1] + share * (values[index] - values[index - 1])


class ProcessMonitor:
    """A process and its descendants. Call poll() often: it reads when that is due."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.parents: dict[int, int] = {root: os.getpid()}  # pid -> parent's pid, of all processes that ever existed
        self.clocks: dict[tuple[int, int], ThreadClock] = {}  # by pid and native thread id
        self.io: dict[int, list[tuple[float, int, int]]] = {}  # pid -> (s, bytes read, bytes written)
        self._stopped: dict[int, list[tuple[float, float]]] = {}  # pid -> when it was stopped by a signal
        self._alive = {root}
        self._born: dict[int, str] = {}  # pid -> when it began, in the kernel's words: pids are used again
        self._next_family = self._next_threads = 0.0

    def poll(self) -> None:
        """Search for new processes, and read the clocks of the threads, if due."""
        now = time.monotonic()
        if now >= self._next_family:
            self._next_family = now + FAMILY_EVERY
            self._find_family()
        if now >= self._next_threads:
            count = sum(self._read(pid) for pid in list(self._alive))
            self._next_threads = now + max(SERIES_PERIOD, COST_OF_THREAD * count)

    def alive(self) -> list[int]:
        """The pids of the processes that have not ended."""
        self._find_family()
        return sorted(self._alive)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process that is alive."""
        for pid in self.alive():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def clock(self, pid: int, tid: int) -> ThreadClock:
        """The clock of a thread; one without readings for a thread that was not found."""
        return self.clocks.get((pid, tid)) or ThreadClock()

    def still(self, pid: int, looks: Sequence[float] = ()) -> list[tuple[float, float]]:
        """Intervals, in s of time.monotonic(), in which a process did not run because a signal or the machine stopped
        it.

        looks: times at which other threads of this program looked at the process, so that this program ran.
        """
        clock = self.clock(pid, pid)
        gaps = [(a, b) for a, b in pairwise(sorted([*clock.times, *looks])) if b - a > PAUSED]
        ran = [clock.cpu_seconds(a, b) + clock.queued_seconds(a, b) for a, b in gaps]
        paused = [gap for gap, seconds in zip(gaps, ran, strict=True) if seconds < 0.5 * (gap[1] - gap[0])]
        return sorted([*self._stopped.get(pid, ()), *paused])

    def moved(self, pid: int, begin: float, end: float) -> tuple[float, float]:
        """Megabytes that a process read and wrote between two times; 0 where that cannot be read."""
        readings = self.io.get(pid, [])
        inside = [reading for reading in readings if begin <= reading[0] <= end]
        if len(inside) < 2:
            return 0.0, 0.0
        return (inside[-1][1] - inside[0][1]) / 1e6, (inside[-1][2] - inside[0][2]) / 1e6

    def moved_per_second(self, pid: int) -> tuple[float, float]:
        """Megabytes a second that a process has read and written so far; infinite where that cannot be read."""
        readings = self.io.get(pid, [])
        if len(readings) < 2:
            return float("inf"), float("inf")
        seconds = max(readings[-1][0] - readings[0][0], 1e-9)
        read, written = self.moved(pid, readings[0][0], readings[-1][0])
        return read / seconds, written / seconds

    def forget(self, pid: int) -> None:
        """Remove a process's clocks."""
        self.clocks = {key: clock for key, clock in self.clocks.items() if key[0] != pid}

    def _find_family(self) -> None:
        """Find descendants of the root. A descendant stays one when its parent ends."""
        parents, born, stopped = {}, {}, set()
        for entry in PROC.iterdir() if PROC.is_dir() else ():
            if entry.name.isdecimal():
                with suppress(OSError, IndexError, ValueError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if fields[0] not in "ZX":  # zombies
                        parents[int(entry.name)], born[int(entry.name)] = int(fields[1]), fields[19]
                        stopped |= {int(entry.name)} if fields[0] == "T" else set()
        family = {pid for pid in self.parents if pid in parents and self._born.get(pid, born[pid]) == born[pid]}
        while children := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= children
            for pid in children & self.parents.keys():  # another process with the number of an earlier one
                self.forget(pid)
            self.parents.update({pid: parents[pid] for pid in children})
        self._born.update({pid: born[pid] for pid in family})
        self._alive = family
        for pid in stopped & family:
            self._note_stop(pid, time.monotonic())

    def _note_stop(self, pid: int, now: float) -> None:
        intervals = self._stopped.setdefault(pid, [])
        goes_on = intervals and now - intervals[-1][1] < 1.5 * FAMILY_EVERY
        begin = intervals.pop()[0] if goes_on else now
        intervals.append((begin, now))

    def _read(self, pid: int) -> int:
        """Read the clocks of a process's threads; return their number."""
        tasks = PROC / str(pid) / "task"
        try:
            numbers = [int(name) for name in os.listdir(tasks)]
        except OSError:
            return 0
        with suppress(OSError, ValueError, IndexError):
            fields = [int(line.split()[1]) for line in (PROC / str(pid) / "io").read_text().splitlines()]
            self.io.setdefault(pid, []).append((time.monotonic(), fields[0], fields[1]))
        for number in numbers:
            with suppress(OSError, ValueError, IndexError):
                clock = self.clocks.get((pid, number))
                if clock is None:
                    clock = ThreadClock((tasks / str(number) / "comm").read_text().strip())
                    self.clocks[pid, number] = clock
                cpu, queued = _seconds(tasks / str(number))
                clock.times.append(time.monotonic())
                clock.cpu.append(cpu)
                clock.queued.append(queued)
                clock.waits.append(_waits(tasks / str(number)))
        return len(numbers)


def _seconds(task: Path) -> tuple[float, float]:
    """Seconds on a core and waiting for one, from schedstat; else CPU time in ticks and 0."""
    with suppress(OSError):
        cpu, queued, _ = (task / "schedstat").read_text().split()
        return int(cpu) / 1e9, int(queued) / 1e9
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 0.0


def _waits(task: Path) -> float:
    """Number of times that a thread gave up its core voluntarily; losing a core to another program does not count."""
    found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
    return float(found[1]) if found else 0.0
