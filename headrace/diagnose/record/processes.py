"""Watches a process and its descendants from outside: which there are, and the CPU time of each of their threads.

Linux's /proc alone; elsewhere there is nothing to be seen, and the profile says so.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.diagnose.profile.profile import SERIES_PERIOD

PROC = Path("/proc")
FAMILY_EVERY = 0.5  # s between searches for new processes
COST_OF_THREAD = 1e-3  # s of pause for each thread that is read, so that reading takes about a hundredth of a core


@dataclass
class Thread:
    """CPU time of a thread at some moments, and how long it had waited for a core by then."""

    name: str  # as the kernel knows it
    times: list[float] = field(default_factory=list)  # s of time.monotonic()
    cpu: list[float] = field(default_factory=list)  # s since it began
    queued: list[float] = field(default_factory=list)  # s for which it could have run, but others had the cores


class ProcessMonitor:
    """What is known of a family of processes. Call look() often: it does what is due."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.parents: dict[int, int] = {root: os.getpid()}  # pid -> pid of its parent, of all that were ever seen
        self.threads: dict[tuple[int, int], Thread] = {}
        self._alive = {root}
        self._next_family = self._next_threads = 0.0

    def poll(self) -> None:
        """Search for new processes, and read the threads' clocks, where that is due."""
        now = time.monotonic()
        if now >= self._next_family:
            self._next_family = now + FAMILY_EVERY
            self._find_family()
        if now >= self._next_threads:
            count = sum(self._read(pid) for pid in list(self._alive))
            self._next_threads = now + max(SERIES_PERIOD, COST_OF_THREAD * count)

    def alive(self) -> list[int]:
        """The pids of the family that have not ended."""
        self._find_family()
        return sorted(self._alive)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the family that is alive."""
        for pid in self.alive():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def forget(self, pid: int) -> None:
        """Leave a process out of what was seen."""
        self.threads = {key: thread for key, thread in self.threads.items() if key[0] != pid}

    def _find_family(self) -> None:
        """Descendants of the root, orphans too: a process once known as one of the family stays one."""
        parents = {}
        for entry in PROC.iterdir() if PROC.is_dir() else ():
            if entry.name.isdecimal():
                with suppress(OSError, IndexError, ValueError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if fields[0] not in "ZX":  # ended, and waiting for its parent to notice
                        parents[int(entry.name)] = int(fields[1])
        family = {pid for pid in self.parents if pid in parents}
        while True:
            children = {pid for pid, parent in parents.items() if parent in family} - family
            if not children:
                break
            family |= children
            self.parents.update({pid: parents[pid] for pid in children})
        self._alive = family

    def _read(self, pid: int) -> int:
        """Note the CPU time of a process's threads; give how many there are."""
        tasks = PROC / str(pid) / "task"
        try:
            numbers = [int(name) for name in os.listdir(tasks)]
        except OSError:
            return 0
        for number in numbers:
            with suppress(OSError, ValueError, IndexError):
                key = pid, number
                if key not in self.threads:
                    self.threads[key] = Thread((tasks / str(number) / "comm").read_text().strip())
                cpu, queued = _seconds(tasks / str(number))
                self.threads[key].times.append(time.monotonic())
                self.threads[key].cpu.append(cpu)
                self.threads[key].queued.append(queued)
        return len(numbers)


def _seconds(task: Path) -> tuple[float, float]:
    """On a core, and waiting for one: by the scheduler's clock in ns where the kernel keeps one, else by its ticks."""
    with suppress(OSError):
        cpu, queued, _ = (task / "schedstat").read_text().split()
        return int(cpu) / 1e9, int(queued) / 1e9
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 0.0
