"""Switch for one thread alone: distributions do not check their arguments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributions import Distribution

_here = threading.local()


class _Validation:
    """Distribution._validate_args while any thread traces: False there, elsewhere what it was."""

    def __init__(self, usual: bool) -> None:
        self.usual = usual

    def __get__(self, owner: object, kind: type) -> bool:
        return self.usual and not getattr(_here, "traces", False)


_lock, _tracing = threading.Lock(), 0


@contextmanager
def unchecked() -> Iterator[None]:
    """Keep distributions from checking their arguments by themselves, within this block, in this thread."""
    before = getattr(_here, "traces", False)
    _count(1)
    _here.traces = True
    try:
        yield
    finally:
        _here.traces = before
        _count(-1)


def _count(change: int) -> None:
    """Count a thread that begins or ends tracing. The first and the last change what all threads share."""
    global _tracing
    with _lock:
        _tracing += change
        own = vars(Distribution)["_validate_args"]
        if change > 0:
            if not isinstance(own, _Validation):
                Distribution._validate_args = _Validation(own)  # type: ignore[assignment]
        elif not _tracing and isinstance(own, _Validation):  # else somebody has called set_default_validate_args()
            Distribution._validate_args = own.usual
