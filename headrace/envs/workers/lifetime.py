"""Let a worker process end with its parent, together with all of its own children, and not by signals that its parent
handles.

Ctrl-C, a closed terminal, or a scheduler's SIGTERM may reach every process of a run. The learner's process finishes its
iteration and saves, and needs its workers for that.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from multiprocessing import connection, parent_process

DECIDED_BY_PARENT = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def begin() -> None:
    """Prepare a worker process; called before anything else."""
    os.setpgid(0, 0)  # its children belong to this group, and end with it
    for number in DECIDED_BY_PARENT:
        # a handler: programs that an environment starts would inherit SIG_IGN, and could not be terminated
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)
    os.register_at_fork(after_in_child=end_by_signals)
    _end_with_the_parent()


def end_by_signals() -> None:
    """Let these signals end this process, as they do by default."""
    for number in DECIDED_BY_PARENT:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def end_group(pid: int) -> None:
    """End processes that a worker process has left in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _end_with_the_parent() -> None:
    """End this process group as soon as the parent has ended, even in a step that hangs."""
    import fcntl

    parent = parent_process()
    if parent is None:
        return
    ends = parent.sentinel
    if hasattr(fcntl, "F_SETSIG"):  # Linux: the system does it, also where a step holds Python's lock
        fcntl.fcntl(ends, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(ends, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(ends, fcntl.F_SETFL, fcntl.fcntl(ends, fcntl.F_GETFL) | os.O_ASYNC)

    def wait() -> None:  # elsewhere, or where it ended before
        connection.wait([ends])
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
