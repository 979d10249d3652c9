"""Runs an unmodified training script for a limited time, with a sampler in each of its processes."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from headrace.diagnose.injected.sampler import STOPPING, WRITE_EVERY
from headrace.diagnose.profile.profile import Ending, Exit, Profile
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.record import build_profile, guardian
from headrace.diagnose.record.command import resolve
from headrace.diagnose.record.gpu import GpuMonitor
from headrace.diagnose.record.outside import OutsideRecorder
from headrace.diagnose.record.processes import ProcessMonitor
from headrace.diagnose.record.ticks import TickSender

HOOK = Path(__file__).parents[1] / "injected" / "hook"
SECONDS, SKIP, RATE = 60.0, 10.0, 50.0  # s, s, samples a second
POLL_EVERY = 0.05  # s
LOOK_EVERY = 2.0  # s between two looks for the start of a training that begins late
KERNELS_AFTER = 0.4  # share of the window after which the GPU's kernels are counted
GRACE = 60.0  # s that a script has to end after SIGINT: long enough for a checkpoint
PATIENCE = 3.0  # s of this time, after which a line tells the user about the waiting


def measure(
    words: list[str],
    *,
    python: str = sys.executable,
    seconds: float = SECONDS,
    skip: float = SKIP,
    start_up: float = 0.0,
    rate: float = RATE,
    hints: Path | None = None,
    grace: float = GRACE,
) -> Profile:
    """Run a script or command for skip + seconds of wall time; return the profile of the time after `skip`.

    start_up: at most so many s are added to the run, where training begins after `skip` or the script has no core for
    part of the time, so that `seconds` of training are measured.
    words: see diagnose.record.command. python: the interpreter of scripts. rate: samples of the main thread per second.
    hints: a TOML file, see diagnose.profile.role_patterns. The script shares this process's
    output. When the time is over it gets SIGINT as from Ctrl-C, `grace` s later SIGTERM, then SIGKILL.
    Raises FileNotFoundError for a missing script, interpreter or hints file; ValueError for bad numbers.
    """
    command = resolve(words, python)
    _check(seconds, skip, rate, start_up)
    known = Hints(hints)
    folder = Path(tempfile.mkdtemp(prefix="headrace-diagnose-"))
    try:
        environment = sampled_environment(folder, 1.0 / rate, skip + KERNELS_AFTER * seconds)
        run = _Script(command, folder, environment, grace)
        try:

            def began() -> float | None:
                return build_profile.training_began(run.recording(skip), known)

            with guardian.guarded(run.monitor.root):
                run.until(skip + seconds, Late(seconds, start_up, began, run.queued))
        finally:
            run.ticks.stop()
        run.outside.finish()
        return build_profile.build(run.recording(skip), known)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(seconds: float, skip: float, rate: float, start_up: float) -> None:
    if start_up < 0:
        raise ValueError(f"--start-up must not be below 0, got {start_up}")
    if seconds <= 0 or skip < 0:
        raise ValueError(f"--seconds must be above 0 and --skip not below, got {seconds} and {skip}")
    if not 1 <= rate <= 1000:
        raise ValueError(f"the rate must be 1 .. 1000 samples a second, got {rate}")


@dataclass(frozen=True)
class Late:
    """Extra time of a script whose training begins late, or that waits for a core on a busy machine."""

    seconds: float  # of training to measure
    most: float  # s
    began: Callable[[], float | None]  # when training began, in s of time.monotonic(); None if it has not
    queued: Callable[[float], float]  # s since a time, for which the script was ready to run but had no core

    def end(self, planned: float, latest: float) -> float:
        """Time at which the measurement ends, or at which to check again; `planned` if nothing delays the end."""
        if planned >= latest:
            return planned
        began = self.began()
        wanted = time.monotonic() + LOOK_EVERY if began is None else began + self.seconds + self.queued(began)
        return min(max(wanted, planned), latest)


class _Script:
    """A running script, and the monitors of its processes."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str], grace: float) -> None:
        self.folder, self._grace = folder, grace
        self.exit = Exit(Ending.EXIT)
        self.started_at = time.time()
        self.started = self.ended = time.monotonic()
        with _interruptible():
            self._process = subprocess.Popen(command, env=environment)
        self._command = command
        self.monitor = ProcessMonitor(self._process.pid)
        self.outside = OutsideRecorder(self.monitor, folder)
        self.ticks = TickSender(folder)
        self.gpu = GpuMonitor()

    def queued(self, since: float) -> float:
        """Seconds since a time for which the script's main thread was ready to run but had no core."""
        return self.monitor.clock(self.monitor.root, self.monitor.root).queued_seconds(since, time.monotonic())

    def recording(self, skip: float) -> build_profile.Recording:
        """The recording so far; the first `skip` seconds are not counted."""
        window = build_profile.Window(self.started_at, self.started, self.ended, skip)
        return build_profile.Recording(
            self.folder, self.monitor, self.outside, self.gpu, window, self._command, self.exit, self.ticks.states
        )

    def until(self, limit: float, late: Late) -> None:
        """Monitor the script until it ends, the time is over or Ctrl-C is pressed; no process of it runs afterwards."""
        try:
            with _signals_as_interrupts():
                self._watch_or_end(limit, late)
        except BaseException:  # the measurement itself failed
            guardian.end(self.monitor)
            raise
        self._process.wait()

    def _watch_or_end(self, limit: float, late: Late) -> None:
        try:
            self._watch(self.started + limit, late)
        except KeyboardInterrupt as interrupt:
            self.ended = time.monotonic()
            self.exit = Exit(Ending.INTERRUPT)
            (self.folder / STOPPING).touch()
            if not isinstance(interrupt, _Terminated) and _is_foreground():
                self._wait_for_end()  # the terminal has interrupted the script: a second SIGINT would end its saving
                guardian.end(self.monitor)
            else:
                self._end_quietly()

    def _watch(self, planned: float, late: Late) -> None:
        end, latest = planned, planned + late.most
        while self._process.poll() is None:
            now = time.monotonic()
            if now >= end:
                self.ended = now
                end = late.end(end, latest)
            if now >= end:
                self.ended = now
                self.exit = Exit(Ending.TIME_LIMIT)
                self._end_quietly()
                return
            if now >= end - 3 * WRITE_EVERY:  # early enough for every sampler to see it
                (self.folder / STOPPING).touch()
            self.monitor.poll()
            self.outside.poll()
            self.gpu.poll(self.monitor.parents)
            time.sleep(POLL_EVERY)
        self.ended = time.monotonic()
        code = self._process.returncode
        self.exit = Exit(Ending.SIGNAL, -code) if code < 0 else Exit(Ending.EXIT, code)

    def _end_quietly(self) -> None:
        """Stop the script by SIGINT, as Ctrl-C does, then by SIGTERM and SIGKILL."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._wait_for_end()
        guardian.end(self.monitor)

    def _wait_for_end(self) -> None:
        """Let the script end by itself, as when it writes a checkpoint; a (further) Ctrl-C stops the waiting."""
        with suppress(KeyboardInterrupt):
            self._wait(min(PATIENCE, self._grace), children=False)
            if self._process.poll() is None and self._grace > PATIENCE:
                print(
                    f"headrace diagnose: waiting up to {self._grace:g} s for the script to end (--grace); Ctrl-C ends "
                    "it now",
                    file=sys.stderr,
                )
                self._wait(self._grace - PATIENCE, children=False)
            self._wait(min(self._grace, PATIENCE))

    def _wait(self, seconds: float, *, children: bool = True) -> None:
        """Wait for the script, and for its children, to end."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (self._process.poll() is None or (children and self.monitor.alive())):
            time.sleep(POLL_EVERY)


def sampled_environment(folder: Path, period: float, kernels: float, progress: bool = False) -> dict[str, str]:
    """Environment variables that make every Python process sample itself every `period` s, into a folder.

    kernels: s after its start at which a process that uses a GPU counts its kernels. progress: whether to count the
    steps of torch's optimizers.
    """
    paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = json.dumps({"folder": str(folder), "period": period, "kernels": kernels, "progress": progress})
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(paths), "HEADRACE_DIAGNOSE": settings}


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let child processes be ended by SIGINT, even if this process ignores it, as background jobs of a shell do."""
    ignored = (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread()
    )
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which only this process got."""


def _is_foreground() -> bool:
    """Tell whether Ctrl-C in a terminal reaches this process, and with it the script."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Let SIGTERM end the measurement as Ctrl-C does, so that the report is still written."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
