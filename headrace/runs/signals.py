"""Let a run end and save on Ctrl-C, SIGTERM, and when its terminal is closed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import NoReturn

from headrace.core.terminal import leave_the_terminal

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
# s: further signals within this time count as the same request: `timeout` signals a process and its group, systemd may
# send SIGTERM and SIGHUP
ONE_WISH = 1.0


class Interrupts:
    """Store the name of the first SIGINT, SIGTERM or SIGHUP within this block in `caught`. A signal more than a second
    later has its usual effect.

    A SIGHUP that is ignored, as under nohup, stays ignored. Signals reach only Python's main thread. In another thread
    this does nothing, except within heeding(). At the end of the block the previous handlers are restored.
    """

    def __init__(self) -> None:
        self._caught, self._caught_at = "", 0.0
        self._outer = _heeded.get()
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

    @property
    def caught(self) -> str:
        """The name of the signal; empty before one has come."""
        return self._caught or ("" if self._outer is None else self._outer.caught)

    @caught.setter
    def caught(self, name: str) -> None:
        self._caught = name

    def _note(self, number: int, _: FrameType | None) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        if name == "SIGHUP":
            leave_the_terminal()
        if not self.caught:
            self.caught, self._caught_at = name, now
        elif now - self._caught_at > ONE_WISH:
            self.__exit__()
            signal.raise_signal(number)


_heeded: ContextVar[Interrupts | None] = ContextVar("heeded", default=None)


@contextmanager
def heeding(interrupts: Interrupts) -> Iterator[None]:
    """Let Interrupts of this thread also report, within this block, the signal that `interrupts` of the main thread
    have caught."""
    token = _heeded.set(interrupts)
    try:
        yield
    finally:
        _heeded.reset(token)


def raise_caught(name: str, saved: str) -> NoReturn:
    """Raise KeyboardInterrupt for SIGINT and SystemExit for other signals, as if they had not been caught. saved: how
    to go on, for the end of the traceback that Python prints in a script."""
    if name == "SIGINT":
        raise KeyboardInterrupt(saved)
    raise SystemExit(128 + signal.Signals[name])
