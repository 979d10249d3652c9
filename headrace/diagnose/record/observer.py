"""Watches a process that samples itself while it runs a piece of code: a notebook's kernel during a cell.

The watcher is a process of its own, `python -m headrace.diagnose.record.observer ORDER`, because ticks from a thread of
the kernel would have to wait until the cell's code releases the interpreter's lock. ORDER is a JSON object, see
Observer. The process prints a line once it watches, and writes the profile when it receives a line from
Observer.finish().
"""

from __future__ import annotations

import json
import linecache
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.diagnose.profile.profile import PROFILE, Ending, Exit, Profile
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.record import build_profile
from headrace.diagnose.record.gpu import GpuMonitor
from headrace.diagnose.record.lanes import Window
from headrace.diagnose.record.outside import OutsideRecorder
from headrace.diagnose.record.processes import ProcessMonitor
from headrace.diagnose.record.ticks import TickSender

POLL_EVERY = 0.05  # s
PATIENCE = 60.0  # s for the process to start, or to write the profile


class Observer:
    """The watched process's side."""

    def __init__(self, folder: Path, seconds: float, skip: float, hints: Path | None) -> None:
        """Start the process, and wait until it watches this one.

        folder: the folder of the sampler's spool files, where the profile is written, too. seconds: time after which
        the piece of code gets SIGINT. Raises RuntimeError if the process does not start.
        """
        self._folder, self.until = folder, time.monotonic() + skip + seconds
        order = {"folder": str(folder), "pid": os.getpid(), "seconds": skip + seconds, "skip": skip}
        words = [sys.executable, "-m", __name__, json.dumps(order | {"hints": str(hints) if hints else ""})]
        environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.pop("HEADRACE_DIAGNOSE", None)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the process that watches ended at its start, with code {self._process.wait()}")
        self.started_at, self.started = time.time(), time.monotonic()

    def finish(self, exit: Exit, sources: Mapping[str, str]) -> Profile:
        """The profile, once the piece of code has ended. sources: texts of files that only this process can read."""
        ended = {"times": [self.started_at, self.started, time.monotonic()], "sources": dict(sources)}
        ended["exit"] = [exit.ending, exit.code, exit.detail]
        self._process.communicate(json.dumps(ended) + "\n", timeout=PATIENCE)
        if self._process.returncode:
            raise RuntimeError(f"the process that watches failed, with code {self._process.returncode}")
        return Profile.load(self._folder / PROFILE)

    def close(self) -> None:
        """End the process, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def main() -> None:
    """Watch until a line comes, then build the profile. If the watched process ends without a line, build none."""
    order = json.loads(sys.argv[1])
    folder, pid = Path(order["folder"]), order["pid"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the watched process
    hints = Hints(Path(order["hints"]) if order["hints"] else None)
    monitor, gpu, ticks = ProcessMonitor(pid), GpuMonitor(), TickSender(folder)
    print("watching", flush=True)
    end = time.monotonic() + order["seconds"]
    while not select.select([sys.stdin], [], [], POLL_EVERY)[0]:
        monitor.poll()
        gpu.poll(monitor.parents)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGINT)
            end = float("inf")
    line = sys.stdin.readline()
    ticks.stop()
    if not line:
        return
    said = json.loads(line)
    for file, text in said["sources"].items():
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    monitor.forget(os.getpid())
    (started_at, started, ended), (ending, code, detail) = said["times"], said["exit"]
    recording = build_profile.Recording(
        folder,
        monitor,
        OutsideRecorder(monitor, folder),
        gpu,
        Window(started_at, started, ended, order["skip"]),
        ["%%headrace", "diagnose"],
        Exit(Ending(ending), code, detail),
        ticks.states,
    )
    build_profile.build(recording, hints).save(folder)


if __name__ == "__main__":
    main()
