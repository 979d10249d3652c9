"""Looks from outside at what processes wait for, and makes each waiting process sample its main thread.

The part inside a process is headrace/diagnose/injected/ticker.py. No signal goes to a thread that waits: the process's
background thread receives it.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headrace.diagnose.injected.ticker import LOOK, SUFFIX, next_due
from headrace.diagnose.record import system_calls
from headrace.diagnose.record.processes import PROC

GIVE_UP = 25  # after so many failed looks in succession, the process has ended or is another program
SEARCH_EVERY = 0.1  # s between searches for processes that ask for ticks
MOST_AT_ONCE = 8  # processes looked at in a period; with more, they take turns
_MACHINE = os.uname().machine if hasattr(os, "uname") else ""
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}.get(_MACHINE)
SLICE = 100_000  # ns: the shortest that Linux takes


# pid -> when the process was looked at (s of time.monotonic()), and what its main thread waited for, "" if not blocked
States = dict[int, list[tuple[float, str]]]


class _Asking(NamedTuple):
    """A process that asks for looks."""

    pid: int
    background: int  # native id of its background thread
    period: float  # s
    look_only: bool  # whether it has no timer, so that it is sampled by looks while it computes, too


class TickSender:
    """A thread that looks at all processes that ask for it, and sends LOOK to those whose main thread is blocked."""

    def __init__(self, folder: Path) -> None:
        """folder: of the samplers' spool files."""
        self._folder, self._ended = folder, threading.Event()
        self._asking: dict[str, _Asking] = {}  # by name of file
        self._failed: dict[str, int] = {}  # looks in succession that could not be taken, by name of file
        self.states: States = {}
        self._next_search = 0.0
        self._cores: set[int] = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._free: set[int] = set()  # cores that the thread may run on
        library = ctypes.CDLL(None)
        self._send = getattr(library, "tgkill", None)  # (process, thread, signal); since glibc 2.30
        self._thread = threading.Thread(target=self._run, name="ticks", daemon=True)
        if self._send is not None:
            self._thread.start()

    def stop(self) -> None:
        """Send no more ticks."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        run_at_once()
        turn = 0
        while not self._ended.is_set():
            now = time.monotonic()
            if now >= self._next_search:
                self._next_search = now + SEARCH_EVERY
                self._search()
            asking = list(self._asking.items())
            period = min((process.period for _, process in asking), default=SEARCH_EVERY)
            if self._ended.wait(next_due(now, period) - now):
                return
            groups = -(-len(asking) // MOST_AT_ONCE) or 1
            turn = (turn + 1) % groups
            self._keep_away_from([process for _, process in asking])
            for file, process in asking[turn::groups]:
                self._failed[file] = 0 if self._tick(process) else self._failed.get(file, 0) + 1
                if self._failed[file] == GIVE_UP:
                    self._asking.pop(file, None)
                    (self._folder / file).unlink(missing_ok=True)

    def _keep_away_from(self, processes: list[_Asking]) -> None:
        """Run on other cores than the main threads of some processes, if there are others. On the same core, a tick
        would come only when the script sleeps, and would find it asleep too often."""
        with suppress(OSError, ValueError, IndexError, AttributeError):
            stats = [(PROC / str(x.pid) / "task" / str(x.pid) / "stat").read_text() for x in processes]
            taken = {int(stat.rpartition(") ")[2].split()[36]) for stat in stats}
            if (free := self._cores - taken) and free != self._free:
                self._free = free
                os.sched_setaffinity(threading.get_native_id(), free)

    def _search(self) -> None:
        with suppress(OSError):
            found = {entry.name for entry in os.scandir(self._folder) if entry.name.endswith(SUFFIX)}
            for name in self._asking.keys() - found:
                del self._asking[name]
            for name in found - self._asking.keys():
                with suppress(OSError, ValueError):
                    self._asking[name] = _Asking(*json.loads((self._folder / name).read_text()))

    def _tick(self, process: _Asking) -> bool:
        """Look at a process; return whether it is still the one that asked."""
        folder = PROC / str(process.pid)
        try:
            state = system_calls.blocked_in(process.pid, process.pid)
            # read last: between this and the signal, the process could start another program
            if not _listens((folder / "status").read_text()):
                return False
        except (OSError, ValueError, IndexError):
            return False
        self.states.setdefault(process.pid, []).append((time.monotonic(), state))
        if state or process.look_only:
            self._send(process.pid, process.background, int(LOOK))  # type: ignore[misc]
        return True


def run_at_once() -> None:
    """Let this thread interrupt others when it wakes up, instead of waiting until one of them sleeps.

    Such a wait makes ticks late, and late ticks find scripts asleep too often: on two cores, a script that waited for
    its workers 59 % of the time was found to wait 80 %. Where neither real time nor a higher priority is allowed, a
    shorter slice has the same effect, from Linux 6.12 on.
    """
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)
    if SCHED_SETATTR is not None:
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        # struct sched_attr: size, policy, flags, nice, priority, runtime (here: the slice), deadline, period
        attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, SLICE, 0, 0)
        ctypes.CDLL(None).syscall(SCHED_SETATTR, 0, attributes, 0)


def _listens(status: str) -> bool:
    """Tell whether a process ignores LOOK outside its background thread, which means that it is sampled."""
    masks = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(masks.get("SigIgn", "0").strip(), 16) >> (LOOK - 1) & 1)
