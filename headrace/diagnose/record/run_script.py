"""Runs a training script as it is, for a bounded time, with the sampler in it; gives a profile whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.diagnose.injected.sampler import STOPPING, WRITE_EVERY
from headrace.diagnose.profile.profile import Ending, Exit, Profile
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.record import build_profile
from headrace.diagnose.record.gpu import GpuMonitor
from headrace.diagnose.record.outside import OutsideRecorder
from headrace.diagnose.record.processes import ProcessMonitor

HOOK = Path(__file__).parents[1] / "injected" / "hook"
SECONDS, SKIP, RATE = 60.0, 10.0, 50.0  # s, s, samples a second
POLL_EVERY = 0.05  # s
KERNELS_AFTER = 0.4  # of the window: when the GPU's kernels are looked at, for a moment
GRACE = {signal.SIGINT: 5.0, signal.SIGTERM: 2.0, signal.SIGKILL: 2.0}  # s that each is given to take effect


def measure(
    words: list[str],
    *,
    python: str = sys.executable,
    seconds: float = SECONDS,
    skip: float = SKIP,
    rate: float = RATE,
    hints: Path | None = None,
) -> Profile:
    """Run `python WORDS` for skip + seconds of wall time at most, and say where its time went after the first `skip`.

    words: ["train.py", "--lr", "1"], or ["-m", "package.module", ...]. python: the interpreter. rate: samples a second
    of the main thread. hints: a TOML file, see diagnose.profile.role_patterns. The script's output goes where this
    process's
    goes. When the time is over it gets SIGINT as from Ctrl-C, and later what nobody can refuse.
    Raises FileNotFoundError for a script, interpreter or file of hints that is not there; ValueError for bad numbers.
    """
    _check(words, python, seconds, skip, rate)
    known = Hints(hints)
    folder = Path(tempfile.mkdtemp(prefix="headrace-diagnose-"))
    try:
        run = _Script(words, python, folder, sampled_environment(folder, 1.0 / rate, skip + KERNELS_AFTER * seconds))
        run.until(skip + seconds)
        run.outside.finish()
        return build_profile.profile(
            folder, run.watch, run.outside, run.gpu, run.window(skip), [python, *words], run.exit, known
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(words: list[str], python: str, seconds: float, skip: float, rate: float) -> None:
    if not words:
        raise ValueError("name a script to diagnose, or -m and a module")
    if shutil.which(python) is None:
        raise FileNotFoundError(f"there is no Python interpreter {python!r}")
    if not words[0].startswith("-") and not Path(words[0]).exists():
        raise FileNotFoundError(f"there is no script {words[0]!r}")
    if seconds <= 0 or skip < 0:
        raise ValueError(f"--seconds must be above 0 and --skip not below, got {seconds} and {skip}")
    if not 1 <= rate <= 1000:
        raise ValueError(f"the rate must be 1 .. 1000 samples a second, got {rate}")


class _Script:
    """A script that runs."""

    def __init__(self, words: list[str], python: str, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.exit = Exit(Ending.EXIT)
        self.started_at = time.time()
        self.started = self.ended = time.monotonic()
        self._process = subprocess.Popen([python, *words], env=environment)
        self.watch = ProcessMonitor(self._process.pid)
        self.outside = OutsideRecorder(self.watch, folder)
        self.gpu = GpuMonitor()

    def window(self, skip: float) -> build_profile.Window:
        """From when to when the measurement counts."""
        return build_profile.Window(self.started_at, self.started, self.ended, skip)

    def until(self, limit: float) -> None:
        """Monitor the script until it ends, the time is over or Ctrl-C is pressed; no process of it runs afterwards."""
        with _signals_as_interrupts():
            try:
                self._watch(self.started + limit)
            except KeyboardInterrupt:  # the terminal has told the script, too
                self.ended = time.monotonic()
                self.exit = Exit(Ending.INTERRUPT)
                (self.folder / STOPPING).touch()
                with suppress(KeyboardInterrupt):
                    self._wait(GRACE[signal.SIGINT])
                self._end_quietly()
        self._process.wait()

    def _watch(self, end: float) -> None:
        while self._process.poll() is None:
            now = time.monotonic()
            if now >= end:
                self.ended = now
                self.exit = Exit(Ending.TIME_LIMIT)
                self._end_quietly()
                return
            if now >= end - 3 * WRITE_EVERY:  # in time for every sampler to see it
                (self.folder / STOPPING).touch()
            self.watch.poll()
            self.outside.poll()
            self.gpu.poll()
            time.sleep(POLL_EVERY)
        self.ended = time.monotonic()
        code = self._process.returncode
        self.exit = Exit(Ending.SIGNAL, -code) if code < 0 else Exit(Ending.EXIT, code)

    def _end_quietly(self) -> None:
        """Ask the script to stop as Ctrl-C does, then less politely."""
        with suppress(KeyboardInterrupt):  # a second Ctrl-C goes on with the next step at once
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                self._wait(GRACE[signal.SIGINT])
        self._end_children()

    def _end_children(self) -> None:
        """After a script that was stopped, no process of its stays behind."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.watch.alive():
                return
            with suppress(KeyboardInterrupt):
                self.watch.signal(number)
                self._wait(GRACE[number])

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and (self._process.poll() is None or self.watch.alive()):
            time.sleep(POLL_EVERY)


def sampled_environment(folder: Path, period: float, kernels: float) -> dict[str, str]:
    """Environment variables under which every Python process samples itself, into a folder, each `period` s.

    kernels: s after its start at which a process that uses a GPU has a look at its kernels.
    """
    paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = json.dumps({"folder": str(folder), "period": period, "kernels": kernels})
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(paths), "HEADRACE_DIAGNOSE": settings}


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Let SIGTERM end the measurement as Ctrl-C does: there is a report to be written."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
