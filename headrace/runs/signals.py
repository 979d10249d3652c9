"""On Ctrl-C, SIGTERM, or when its terminal is closed, a run finishes its iteration and saves."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupts:
    """Inside, the first SIGINT, SIGTERM or SIGHUP is stored in `caught`; the second has its previous effect.

    A SIGHUP that is ignored, as under nohup, stays ignored. Signals reach Python's main thread only: in another thread
    this does nothing. On leaving, the previous handlers are restored.
    """

    def __init__(self) -> None:
        self.caught = ""
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not set from Python, and cannot be set again from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _note(self, number: int, _: FrameType | None) -> None:
        self.caught = signal.Signals(number).name
        if self.caught == "SIGHUP":
            _leave_the_terminal()
        self.__exit__()


@contextmanager
def saying() -> Iterator[None]:
    """For writing to the terminal: continues where that is closed, which may show here before SIGHUP arrives."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        _leave_the_terminal()


def _leave_the_terminal() -> None:
    """Discard further output: writing to a closed terminal is an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        try:
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor)
        except OSError:  # it was closed before
            continue
    os.close(nowhere)
