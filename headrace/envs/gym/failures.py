"""Report exceptions of environments, also those that would end the process."""

from __future__ import annotations

import re
import signal
import traceback
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
        return _of_the_old_api(raised) or raised
    ctrl_c = isinstance(raised, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ctrl_c or not isinstance(raised, SystemExit | KeyboardInterrupt):
        raise raised
    return RuntimeError(f"the environment raised {raised!r}, which would end the whole run")


def _of_the_old_api(error: Exception) -> TypeError | None:
    """The error in place of one that a wrapper or a checker of Gymnasium raises because step() gave another number of
    values than five; None for other errors."""
    frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    names, module = frame.f_locals, frame.f_globals.get("__name__", "")
    if not module.startswith("gymnasium.") or "step" not in frame.f_code.co_name:
        return None
    result, unpacked = names.get("result"), re.search(r"expected 5, got (\d)", str(error))
    count = len(result) if isinstance(result, tuple) else int(unpacked[1]) if unpacked else 5
    if count == 5:
        return None
    env = names.get("env") or getattr(names.get("self"), "env", None)
    return TypeError(
        f"step() of {type(getattr(env, 'unwrapped', env)).__name__} gave {count} values: it must give five, "
        "(observation, reward, terminated, truncated, info)"
    )
