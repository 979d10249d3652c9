"""Report exceptions of environments, also those that would end the process."""

from __future__ import annotations

import signal
from collections.abc import Callable

import gymnasium


def made(factory: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    """Call a function, and return its result. Raises its exception, see failure_of()."""
    try:
        return factory()
    except BaseException as raised:
        if (error := failure_of(raised)) is raised:
            raise
        raise error from raised


def failure_of(raised: BaseException) -> Exception:
    """An environment's exception, or a RuntimeError in place of one that would end the process: sys.exit() and
    KeyboardInterrupt. A user's Ctrl-C is raised again."""
    if isinstance(raised, Exception):
        return raised
    ctrl_c = isinstance(raised, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ctrl_c or not isinstance(raised, SystemExit | KeyboardInterrupt):
        raise raised
    return RuntimeError(f"the environment raised {raised!r}, which would end the whole run")
