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
from typing import BinaryIO

from headrace.diagnose.injected.ticker import LOOK, SUFFIX, next_due
from headrace.diagnose.record import system_calls
from headrace.diagnose.record.processes import PROC

GIVE_UP = 25  # after so many failed looks in succession, the process has ended or is another program
SEARCH_EVERY = 0.1  # s between searches for processes that ask for ticks
MOST_AT_ONCE = 8  # processes looked at in a period; with more, they take turns
_MACHINE = os.uname().machine if hasattr(os, "uname") else ""
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}.get(_MACHINE)
SLICE = 100_000  # ns: the shortest that Linux takes
MOST_BYTES = 1 << 14  # of a file in /proc


# pid -> when the process was looked at (s of time.monotonic()), and what its main thread waited for, "" if not blocked
States = dict[int, list[tuple[float, str]]]


class _Asking:
    """A process that asks for looks. Its files in /proc stay open: reading one takes a tenth of opening it."""

    def __init__(self, pid: int, background: int, period: float, look_only: bool) -> None:
        """background: native id of its background thread. period: s. look_only: it has no timer, so that it is sampled
        by looks while it computes, too. Raises OSError where the process has ended."""
        self.pid, self.background, self.period, self.look_only = pid, background, period, look_only
        self._files = {name: self._open(name) for name in ("stat", "status", "syscall")}

    def read(self, name: str) -> bytes:
        """Read a file of the main thread. Raises OSError where it has ended, or where the system forbids it."""
        file = self._files[name]
        if file is None:
            raise PermissionError(name)
        return os.pread(file.fileno(), MOST_BYTES, 0)

    def core(self) -> int:
        """Core on which the main thread runs, or ran last."""
        return int(self.read("stat").rpartition(b") ")[2].split(None, 37)[36])

    def blocked_in(self) -> str:
        """Same as system_calls.blocked_in() of the main thread."""
        with suppress(PermissionError):
            return system_calls.waits_for(self.pid, self.read("syscall").decode().split())
        return system_calls.blocked_in(self.pid, self.pid)

    def close(self) -> None:
        """Close the files."""
        for file in filter(None, self._files.values()):
            file.close()

    def _open(self, name: str) -> BinaryIO | None:
        try:
            return (PROC / str(self.pid) / "task" / str(self.pid) / name).open("rb", buffering=0)
        except PermissionError:
            return None


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
        for name in list(self._asking):
            self._forget(name)

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
                    self._forget(file)
                    (self._folder / file).unlink(missing_ok=True)

    def _keep_away_from(self, processes: list[_Asking]) -> None:
        """Run on other cores than the main threads of some processes, if there are others. On the same core, a tick
        would come only when the script sleeps, and would find it asleep too often."""
        with suppress(OSError, ValueError, IndexError, AttributeError):
            taken = {process.core() for process in processes}
            if (free := self._cores - taken) and free != self._free:
                self._free = free
                os.sched_setaffinity(threading.get_native_id(), free)

    def _search(self) -> None:
        with suppress(OSError):
            found = {entry.name for entry in os.scandir(self._folder) if entry.name.endswith(SUFFIX)}
            for name in self._asking.keys() - found:
                self._forget(name)
            for name in found - self._asking.keys():
                with suppress(OSError, ValueError):
                    self._asking[name] = _Asking(*json.loads((self._folder / name).read_text()))

    def _forget(self, name: str) -> None:
        self._asking.pop(name).close()

    def _tick(self, process: _Asking) -> bool:
        """Look at a process; return whether it is still the one that asked."""
        try:
            state = process.blocked_in()
            # read last: between this and the signal, the process could start another program
            if not _listens(process.read("status")):
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


def _listens(status: bytes) -> bool:
    """Tell whether a process ignores LOOK outside its background thread, which means that it is sampled."""
    mask = status.partition(b"\nSigIgn:")[2].split(None, 1)
    return bool(mask and int(mask[0], 16) >> (LOOK - 1) & 1)
