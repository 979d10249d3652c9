"""Writing to an output whose reader may go away: a terminal that is closed, `| head -1`, a full disk."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from headrace.core.text import printable

STDOUT, STDERR = 1, 2
LINES = "\n\t"  # what a text of several lines has besides printable characters


@contextmanager
def saying(output: int = STDOUT) -> Iterator[None]:
    """Continue when writing to an output fails within this block. Later text for that output is discarded."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:  # the terminal is closed, which may show here before SIGHUP arrives
            leave_the_terminal()
        else:
            _discard([output])


def tell(text: object) -> None:
    """Print lines to standard error; see printable()."""
    with saying(STDERR):
        print(printable(text, LINES), file=sys.stderr, flush=True)


def say(text: object) -> None:
    """Print lines to standard output; see printable()."""
    with saying():
        print(printable(text, LINES), flush=True)


def leave_the_terminal() -> None:
    """Discard further output to a terminal that is closed."""
    _discard([descriptor for descriptor in range(3) if _is_terminal(descriptor)])


def _is_terminal(descriptor: int) -> bool:
    try:
        return stat.S_ISCHR(os.fstat(descriptor).st_mode)
    except OSError:  # it was closed before
        return False


def _discard(descriptors: Sequence[int]) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        with suppress(OSError):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)
