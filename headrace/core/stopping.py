"""Ending: early, because a user asked for it; and closing, whatever that raises."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

Thing = TypeVar("Thing")


class Stopped(Exception):
    """A rollout or an evaluation was given up between two steps, because of a signal or a limit."""


def close(thing: Any, name: str) -> None:
    """Call close() of an environment or the like. What it raises, Ctrl-C excepted, becomes a warning."""
    try:
        thing.close()
    except (Exception, SystemExit) as error:
        text = f"closing {name} raised {type(error).__name__}: {error}. What it holds stays taken; all else is well"
        warnings.warn(text, stacklevel=2)


def close_each(things: Iterable[Any], name: str) -> None:
    """close() each of them, also where Ctrl-C comes in between."""
    with ExitStack() as stack:
        for thing in things:
            stack.callback(close, thing, name)


@contextmanager
def closed(thing: Thing, name: str) -> Iterator[Thing]:
    """A block after which a thing is closed, see close()."""
    try:
        yield thing
    finally:
        close(thing, name)
