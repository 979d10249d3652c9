"""Ctrl-C and SIGTERM let a run finish its iteration and save."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, the first SIGINT or SIGTERM is noted in `caught`; the second does what it did before.

    Signals reach Python's main thread alone: in another this does nothing. On leaving, the old handlers are back.
    """

    def __init__(self) -> None:
        self.caught = ""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not set from Python, and cannot be set again from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _note(self, number: int, _: FrameType | None) -> None:
        self.caught = signal.Signals(number).name
        self.__exit__()
