"""`--pid`: measures a script that runs already, from outside, by py-spy. The script is not stopped."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from headrace.diagnose.profile.profile import Ending, Exit, Profile
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.record import build_profile
from headrace.diagnose.record.gpu import GpuMonitor
from headrace.diagnose.record.outside import OutsideRecorder, find
from headrace.diagnose.record.processes import PROC, ProcessMonitor

POLL_EVERY = 0.05  # s


def measure(pid: int, *, seconds: float, hints: Path | None = None) -> Profile:
    """The profile of the next `seconds` of a running Python process and its children.

    Raises ModuleNotFoundError without py-spy, ProcessLookupError if no process has the pid, and PermissionError, with
    advice, if the system does not let py-spy read the process.
    """
    if find() is None:
        raise ModuleNotFoundError("--pid requires py-spy: `pip install py-spy`")
    if not (PROC / str(pid)).is_dir():
        raise ProcessLookupError(f"--pid {pid}: there is no such process")
    known, folder = Hints(hints), Path(tempfile.mkdtemp(prefix="headrace-diagnose-"))
    try:
        monitor = ProcessMonitor(pid)
        outside, gpu = OutsideRecorder(monitor, folder, after=0.0), GpuMonitor()
        window, exit = _watch(monitor, outside, gpu, seconds)
        outside.finish()
        if not any(process.pid == pid for process in outside.with_recorded([])):
            raise PermissionError(f"--pid {pid} was not measured: {outside.missed.get(pid, 'it is no Python process')}")
        command = (PROC / str(pid) / "cmdline").read_text().split("\0")[:-1] if exit.ending is not Ending.EXIT else []
        return build_profile.build(
            build_profile.Recording(folder, monitor, outside, gpu, window, command or [f"process {pid}"], exit), known
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _watch(
    monitor: ProcessMonitor, outside: OutsideRecorder, gpu: GpuMonitor, seconds: float
) -> tuple[build_profile.Window, Exit]:
    started_at, started = time.time(), time.monotonic()
    exit = Exit(Ending.RUNNING)
    try:
        while time.monotonic() < started + seconds:
            for part in (monitor, outside):
                part.poll()
            gpu.poll(monitor.parents)
            if monitor.root not in monitor.alive():
                exit = Exit(Ending.EXIT)
                break
            time.sleep(POLL_EVERY)
    except KeyboardInterrupt:  # the user has seen enough
        pass
    return build_profile.Window(started_at, started, time.monotonic(), 0.0), exit
