"""Records Python processes into which no sampler can be loaded: from outside, by py-spy if it is installed.

Such processes run no sitecustomize: `python -S` or `-I`, or a cleared environment.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from headrace.diagnose.profile.spool import Process
from headrace.diagnose.record.processes import PROC, ProcessMonitor
from headrace.diagnose.record.py_spy import PERIOD, process

AFTER = 2.0  # s without a spool file, after which a process is recorded from outside
POLL_EVERY = 0.5  # s
MOST = 16  # processes recorded at a time
HOW = ("--format", "chrometrace", "--nonblocking", "--idle", "--threads", "--full-filenames")
GRACE = 5.0  # s for py-spy to write its file
MISSING = "`pip install py-spy` to record them from outside"
TOO_MANY = f"at most {MOST} are recorded from outside"
FORBIDDEN = (
    "py-spy has no permission to read them: allow it by `sudo sysctl kernel.yama.ptrace_scope=0`, or `--cap-add "
    "SYS_PTRACE` for a container"
)


class _Recorder:
    """A py-spy process that records one process."""

    def __init__(self, py_spy: str, pid: int, parent: int, python: str, path: Path) -> None:
        """python: the version of the recorded process. path: of the file that py-spy writes when it ends."""
        self.pid, self._parent, self._python, self._path = pid, parent, python, path
        self._began = time.monotonic()
        command = [py_spy, "record", "--pid", str(pid), "--rate", str(round(1 / PERIOD)), "--output", str(path), *HOW]
        with path.with_suffix(".log").open("w") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)

    @property
    def running(self) -> bool:
        """Tell whether py-spy has not ended."""
        return self._process.poll() is None

    def finish(self) -> Process | None:
        """Stop py-spy if it still runs; return the recorded process, None without a recording."""
        with suppress(subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGINT)
            self._process.wait(GRACE)
        self._process.kill()
        self._process.wait()
        with suppress(OSError, json.JSONDecodeError):
            if events := json.loads(self._path.read_text()):
                return process(events, self.pid, self._parent, self._began, self._python)
        return None

    def failure(self) -> str:
        """The reason why there is no recording."""
        log = self._path.with_suffix(".log").read_text()
        if "permi" in log.lower():
            return FORBIDDEN
        errors = (line.removeprefix("Error: ") for line in log.splitlines() if line.startswith("Error: "))
        return f"py-spy failed: {next(errors, 'it reported no error')}"


class OutsideRecorder:
    """Records processes without a spool file from outside. Call poll() often: it starts recording when that is due."""

    def __init__(self, monitor: ProcessMonitor, folder: Path, after: float = AFTER) -> None:
        """folder: of the samplers' spool files, and for the recordings. after: s to wait for such a file."""
        self._monitor, self._folder, self._after = monitor, folder, after
        self._first_seen: dict[int, float] = {}  # pid -> s of time.monotonic()
        self._handled: set[int] = set()
        self._recorders: list[_Recorder] = []
        self._recorded: list[Process] = []
        self.missed: dict[int, str] = {}  # pid -> why only its CPU time is measured
        self._next = 0.0

    def poll(self) -> None:
        """Start recording the Python processes that have had no spool file for long enough."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + POLL_EVERY
        for pid in self._monitor.parents:
            if pid not in self._handled and now >= self._first_seen.setdefault(pid, now) + self._after:
                self._handled.add(pid)
                self._record(pid)

    def _record(self, pid: int) -> None:
        python = _python(pid)
        if not python or self._is_sampled(pid):
            return
        py_spy = find()
        if py_spy is None:
            self.missed[pid] = MISSING
        elif sum(recorder.running for recorder in self._recorders) >= MOST:
            self.missed[pid] = TOO_MANY
        else:
            self._recorders.append(
                _Recorder(py_spy, pid, self._monitor.parents[pid], python, self._folder / f"outside-{pid}.json")
            )

    def _is_sampled(self, pid: int) -> bool:
        """Tell whether a process is sampled from inside."""
        return any(self._folder.glob(f"{pid}-*.jsonl"))

    def finish(self) -> None:
        """Stop recording."""
        for recorder in self._recorders:
            recorded = recorder.finish()
            if self._is_sampled(recorder.pid):  # it was only slow to start
                continue
            if recorded:
                self._recorded.append(recorded)
            else:
                self.missed[recorder.pid] = recorder.failure()

    def with_recorded(self, inside: list[Process]) -> list[Process]:
        """The sampled processes and those recorded from outside, in the order in which they began."""
        return sorted([*inside, *self._recorded], key=lambda process: process.began)

    @property
    def limitations(self) -> list[str]:
        """Sentences on processes that were not measured, or measured less well than from inside."""
        attached = not self._after
        what = "of the processes " + (
            "already ran" if attached else "ran Python without site (-S, -I, or a cleared environment)"
        )
        notes = [
            f"{number} {what}; only their CPU time was measured: {reason}."
            for reason, number in Counter(self.missed.values()).items()
        ]
        if self._recorded:
            since = "" if attached else f", {self._after:g} s after they began"
            notes.append(f"{len(self._recorded)} {what}: recorded from outside by py-spy{since}.")
        return notes


def find() -> str | None:
    """The path of py-spy: next to this interpreter, or on PATH; None if it is not installed."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def _python(pid: int) -> str:
    """The version of a process's Python, such as "3.11"; "" for other programs and processes that have ended."""
    with suppress(OSError):
        name = (PROC / str(pid) / "exe").readlink().name
        return name.removeprefix("python") if name.startswith("python") else ""
    return ""
