"""Looking at functions and modules once, rather than before each call of a kernel.

A kernel computes what plain functions and modules say as long as these are what they were, so they are looked at before
each call. After a short call that takes longer than the call itself. Within looked_once() each is looked at once, and
again after code of the user's has run, which may have changed anything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet


class Moment:
    """A time in which no code of the user's runs. seen: what was looked at in it. over: whether such code has run."""

    def __init__(self) -> None:
        self.seen, self.over = set[object](), False

    def end(self) -> None:
        """Keep nothing any more: others may keep the moment."""
        self.over = True
        self.seen.clear()


class _Here(threading.local):
    """State of one thread. moment: None outside of looked_once(). fixed: that the user's code cannot run."""

    moment: Moment | None = None
    fixed = False


_here, _lock = _Here(), threading.Lock()
_moments: WeakSet[Moment] = WeakSet()  # of all threads, which the user's code may end


@contextmanager
def looked_once(none_of_the_users: bool = False) -> Iterator[None]:
    """Within this block of a thread, what note() was given is not looked at again before users_code().

    none_of_the_users: for a block in which the user's code cannot run, nor change anything: users_code() does nothing.
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
    """Within this block, in which code of the user's may run, all is looked at each time; afterwards a new moment
    begins, in other threads too."""
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
    """A moment that begins."""
    made = Moment()
    if not fixed:
        with _lock:
            _moments.add(made)
    return made


def moment() -> Moment | None:
    """The time since the user's code last ran: the same object as before while it has not; None outside of
    looked_once()."""
    found = _here.moment
    if found is not None and found.over:
        found = _here.moment = _begun(fixed=False)
    return found


def is_noted(thing: object) -> bool:
    """True if a thing was looked at in this moment."""
    found = moment()
    return found is not None and thing in found.seen


def note(thing: object) -> None:
    """Note that a thing was looked at, and is what it was."""
    found = moment()
    if found is not None:
        found.seen.add(thing)
