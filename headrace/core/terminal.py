"""Writing to an output whose reader may go away: a terminal that is closed, `| head -1`, a full disk."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

STDOUT, STDERR = 1, 2


@contextmanager
def saying(output: int = STDOUT) -> Iterator[None]:
    """For writing to an output: where that fails, what is written there from now on is discarded, and work goes on."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO:  # the terminal is closed, which may show here before SIGHUP arrives
            leave_the_terminal()
        else:
            _discard([output])


def tell(text: str) -> None:
    """Print a line to standard error."""
    with saying(STDERR):
        print(text, file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print a line to standard output."""
    with saying():
        print(text, flush=True)


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
