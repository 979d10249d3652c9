"""Looking at functions and modules once, rather than before each call of a kernel.

A kernel may replace plain functions and modules only while these are unchanged, so they are examined before each call.
For a short call the examination takes longer than the call itself. Within looked_once() each is examined once, and
again after the user's code has run, since that may have changed anything. Such a span of time, in which only Headrace's
code has run, is called a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet


class Moment:
    """A time in which no code of the user's runs. seen: what was examined in it. over: whether such code has run."""

    def __init__(self) -> None:
        self.seen, self.over = set[object](), False

    def end(self) -> None:
        """Mark the moment as over and forget what was examined in it: callers may still hold a reference to it."""
        self.over = True
        self.seen.clear()


class _Here(threading.local):
    """State of one thread. moment: None outside of looked_once(). fixed: whether the user's code cannot run."""

    moment: Moment | None = None
    fixed = False


_here, _lock = _Here(), threading.Lock()
_moments: WeakSet[Moment] = WeakSet()  # of all threads: the user's code, in any thread, ends them


@contextmanager
def looked_once(none_of_the_users: bool = False) -> Iterator[None]:
    """Examine what is passed to note() only once in this thread, within this block or until users_code().

    none_of_the_users: True for a block in which no code of the user's can run or change anything; users_code() then
    does not end the moment.
    """
    if _here.moment is not None:
        yield
        return
    _here.moment, _here.fixed = _begun(none_of_the_users), none_of_the_users
    try:
        yield
    finally:
        _here.moment.end()
        _here.moment, _here.fixed = None, False


@contextmanager
def users_code() -> Iterator[None]:
    """Wrap a block in which the user's code may run: within it everything is examined each time. Afterwards a new
    moment begins, in other threads too."""
    before = _here.moment
    if not _here.fixed:
        _here.moment = None
    try:
        yield
    finally:
        _here.moment = before
        with _lock:
            for each in _moments:
                each.end()
            _moments.clear()


def _begun(fixed: bool) -> Moment:
    """Make a moment. fixed: the user's code cannot end it."""
    made = Moment()
    if not fixed:
        with _lock:
            _moments.add(made)
    return made


def moment() -> Moment | None:
    """The current moment: the same object until the user's code runs; None outside of looked_once()."""
    found = _here.moment
    if found is not None and found.over:
        found = _here.moment = _begun(fixed=False)
    return found


def is_noted(thing: object) -> bool:
    """True if a thing was examined in the current moment."""
    found = moment()
    return found is not None and thing in found.seen


def note(thing: object) -> None:
    """Note that a thing was examined and is unchanged."""
    found = moment()
    if found is not None:
        found.seen.add(thing)
