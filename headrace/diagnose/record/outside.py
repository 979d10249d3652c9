"""Python processes that the sampler cannot enter, recorded from outside by py-spy, where that is installed.

They are those that run no sitecustomize: `python -S` or `-I`, or an environment that was cleared.
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
from typing import Any

from headrace.diagnose.profile.spool import Process
from headrace.diagnose.record.processes import PROC, ProcessMonitor
from headrace.diagnose.record.py_spy import PERIOD, process

AFTER = 2.0  # s without a word from inside, after which a process is recorded from outside
POLL_EVERY = 0.5  # s
MOST = 16  # processes recorded at a time
HOW = ("--format", "chrometrace", "--nonblocking", "--idle", "--threads", "--full-filenames")
GRACE = 5.0  # s for py-spy to write its file
MISSING = "`pip install py-spy`, and they are recorded from outside"
CROWDED = f"no more than {MOST} are recorded from outside"
FORBIDDEN = (
    "py-spy may not read them; allow it by `sudo sysctl kernel.yama.ptrace_scope=0`, or `--cap-add SYS_PTRACE` for a"
    " container"
)


class _Recorder:
    """A py-spy at work on one process."""

    def __init__(self, py_spy: str, pid: int, parent: int, python: str, path: Path) -> None:
        """python: the version that the process runs. path: of the file that py-spy writes when it ends."""
        self.pid, self._parent, self._python, self._path = pid, parent, python, path
        self._events: list[dict[str, Any]] = []
        self._began = time.monotonic()
        command = [py_spy, "record", "--pid", str(pid), "--rate", str(round(1 / PERIOD)), "--output", str(path), *HOW]
        with path.with_suffix(".said").open("w") as said:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)

    @property
    def works(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def finish(self) -> bool:
        """End it, unless its process has ended and it with it; give whether there is a record."""
        with suppress(subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGINT)
            self._process.wait(GRACE)
        self._process.kill()
        self._process.wait()
        with suppress(OSError, json.JSONDecodeError):
            self._events = json.loads(self._path.read_text())
        return bool(self._events)

    def seen(self) -> Process:
        """What it saw."""
        return process(self._events, self.pid, self._parent, self._began, self._python)

    def complaint(self) -> str:
        """Why there is no record."""
        said = self._path.with_suffix(".said").read_text()
        if "permi" in said.lower():
            return FORBIDDEN
        errors = [line.removeprefix("Error: ") for line in said.splitlines() if line.startswith("Error: ")]
        return f"py-spy said {errors[0] if errors else 'nothing'!r}"


class OutsideRecorder:
    """The processes of a family that tell nothing from inside. Call look() often: it begins records where due."""

    def __init__(self, watch: ProcessMonitor, folder: Path) -> None:
        """folder: where the samplers write, and the records are kept."""
        self._watch, self._folder = watch, folder
        self._seen: dict[int, float] = {}  # pid -> when first; s of time.monotonic()
        self._decided: set[int] = set()
        self._recorders: list[_Recorder] = []
        self._missed: dict[int, str] = {}  # pid -> what to do about it
        self._next = 0.0

    def poll(self) -> None:
        """Begin to record the Python processes that have been silent for long enough."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + POLL_EVERY
        for pid in self._watch.parents:
            if pid not in self._decided and now >= self._seen.setdefault(pid, now) + AFTER:
                self._decided.add(pid)
                self._decide(pid)

    def _decide(self, pid: int) -> None:
        python = _python(pid)
        if not python or self._tells(pid):
            return
        py_spy = find()
        if py_spy is None:
            self._missed[pid] = MISSING
        elif sum(recorder.works for recorder in self._recorders) >= MOST:
            self._missed[pid] = CROWDED
        else:
            self._recorders.append(
                _Recorder(py_spy, pid, self._watch.parents[pid], python, self._folder / f"outside-{pid}.json")
            )

    def _tells(self, pid: int) -> bool:
        """Whether a process is sampled from inside."""
        return any(self._folder.glob(f"{pid}-*.jsonl"))

    def finish(self) -> None:
        """Record no more."""
        silent = []
        for recorder in self._recorders:
            recorded = recorder.finish()
            if self._tells(recorder.pid):  # it had only been slow to start
                continue
            if recorded:
                silent.append(recorder)
            else:
                self._missed[recorder.pid] = recorder.complaint()
        self._recorders = silent

    def with_recorded(self, inside: list[Process]) -> list[Process]:
        """The processes that told of themselves and those that were recorded, in the order in which they began."""
        found = [recorder.seen() for recorder in self._recorders]
        return sorted([*inside, *found], key=lambda process: process.began)

    @property
    def missed(self) -> set[int]:
        """The Python processes that were seen by their CPU time alone."""
        return set(self._missed)

    @property
    def limitations(self) -> list[str]:
        """What could not be seen, or not as well as from inside, in plain sentences."""
        who = "of the processes ran Python without site (-S, -I, or a cleared environment)"
        said = [
            f"{number} {who}, seen by CPU time alone: {reason}."
            for reason, number in Counter(self._missed.values()).items()
        ]
        if self._recorders:
            said.append(f"{len(self._recorders)} {who}: recorded from outside by py-spy, {AFTER:g} s after they began.")
        return said


def find() -> str | None:
    """Where py-spy is: beside this interpreter, or on the path."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def _python(pid: int) -> str:
    """The version of the interpreter that a process runs, "3.11"; "" for anything else, and for what has ended."""
    with suppress(OSError):
        name = (PROC / str(pid) / "exe").readlink().name
        return name.removeprefix("python") if name.startswith("python") else ""
    return ""
