"""A process that ends a script and its children if the diagnosis is killed.

It notices the diagnosis's death by the end of a pipe, which no signal and no failure of the diagnosis can prevent.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headrace.diagnose.record.processes import ProcessMonitor

EVERY = 1.0  # s between searches for new processes
FORCED = {signal.SIGTERM: 2.0, signal.SIGKILL: 2.0}  # s to wait for each to take effect


@contextmanager
def guarded(pid: int) -> Iterator[None]:
    """End the process `pid` and its children if this process ends before the block does."""
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_DIAGNOSE"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    # in a session of its own: what ends the group of the diagnosis, as Ctrl-C in a terminal, does not end it
    guardian = subprocess.Popen(
        [sys.executable, "-m", __name__, str(pid)],
        env=environment,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with suppress(OSError):
            guardian.communicate(b"done")


def end(monitor: ProcessMonitor) -> None:
    """End all processes of a script that still run."""
    for number, seconds in FORCED.items():
        with suppress(KeyboardInterrupt):  # a further Ctrl-C ends the waiting
            monitor.signal(number)
            until = time.monotonic() + seconds
            while monitor.alive() and time.monotonic() < until:
                time.sleep(0.05)


def main() -> None:
    """Watch until the pipe ends. If the diagnosis has not written "done" to it, end the script."""
    monitor = ProcessMonitor(int(sys.argv[1]))
    while not select.select([sys.stdin], [], [], EVERY)[0]:
        monitor.alive()
    if not sys.stdin.read():
        end(monitor)


if __name__ == "__main__":
    main()
