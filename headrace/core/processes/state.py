"""State that a process takes over from the one that starts it: environment variables, working folder and others.

A process of a fork server would otherwise have the state in which the server was started. So the state is sent with
each order.
"""

from __future__ import annotations

import importlib
import locale
import os
import pickle
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (  # of the interpreter and NumPy: get, set
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (sys.getswitchinterval, sys.setswitchinterval),
    (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    (socket.getdefaulttimeout, socket.setdefaulttimeout),
    (np.geterr, lambda how: np.seterr(**how)),
    (np.get_printoptions, lambda how: np.set_printoptions(**how)),
)
if hasattr(os, "nice"):  # not on Windows
    SETTINGS = (*SETTINGS, (lambda: os.nice(0), lambda nice: os.nice(nice - os.nice(0))))


class ProcessState(NamedTuple):
    """State of a process at one moment that environments may depend on."""

    variables: Mapping[str, str]  # os.environ
    folder: str | None  # the working folder; None for one that was removed
    sys_path: tuple[str, ...]
    arguments: tuple[str, ...]  # sys.argv
    umask: int
    locale: str
    cores: tuple[int, ...]  # on which it may run; empty where the system does not say
    limits: Mapping[int, tuple[int, int]]  # soft and hard ones, of resources
    blocked: frozenset[int]  # signals
    settings: tuple[Any, ...]  # of SETTINGS
    filters: tuple[Any, ...]  # of warnings; in what is sent, each is pickled

    @classmethod
    def now(cls) -> ProcessState:
        """The state of this process; within held(), the state at the beginning of that block."""
        held = _held.get()
        if held is not None:
            return held
        folder = _folder()
        return cls(
            variables=dict(os.environ),
            folder=folder,
            sys_path=tuple(os.path.join(folder or "", path) for path in sys.path),
            arguments=tuple(sys.argv),
            umask=_umask(),
            locale=locale.setlocale(locale.LC_ALL),
            cores=tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (),
            limits=_limits(),
            blocked=_blocked(),
            settings=tuple(get() for get, _ in SETTINGS),
            filters=tuple(warnings.filters),
        )

    def sent(self) -> ProcessState:
        """Make a copy for another process. Filters of warnings that cannot be sent are left out."""
        return self._replace(filters=tuple(filter(None, map(_pickled, self.filters))))

    def enter(self) -> None:
        """Take over this state, which sent() returned. What this process may not change, such as a higher limit,
        stays."""
        if dict(os.environ) != self.variables:
            os.environ.clear()
            os.environ.update(self.variables)
            time.tzset()
        if self.folder is not None:
            with suppress(OSError):  # it was removed meanwhile
                os.chdir(self.folder)
        sys.path[:], sys.argv[:] = self.sys_path, self.arguments
        importlib.invalidate_caches()
        os.umask(self.umask)
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, self.locale)
        if self.cores:
            with suppress(OSError):
                os.sched_setaffinity(0, self.cores)
        _set_limits(self.limits)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)
        for (get, put), value in zip(SETTINGS, self.settings, strict=True):
            if get() != value:
                with suppress(OSError):  # only root may be nicer to itself
                    put(value)
        warnings.resetwarnings()
        for pickled in self.filters:
            with suppress(Exception):  # its category is of a module that cannot be imported here
                action, message, category, module, line = pickle.loads(pickled)
                warnings.filterwarnings(action, message, category, module, line, append=True)


_held: ContextVar[ProcessState | None] = ContextVar("held", default=None)


@contextmanager
def held(state: ProcessState | None = None) -> Iterator[ProcessState]:
    """Let other processes carry out this thread's orders in `state`, within this block. None: the state at the
    beginning of the block, since an environment that is made within it may change this process's state."""
    state = state or ProcessState.now()
    token = _held.set(state)
    try:
        yield state
    finally:
        _held.reset(token)


@contextmanager
def same_folder() -> Iterator[None]:
    """Leave the working folder as it was, where an environment that was made within has changed it."""
    folder = _folder()
    try:
        yield
    finally:
        if folder is not None:
            with suppress(OSError):
                os.chdir(folder)


def shown(path: str | Path) -> Path:
    """A path as a user would type it: relative to the working folder, that of the beginning within held(), where it is
    in there."""
    path, folder = Path(path), start_folder()
    return path.relative_to(folder) if path.is_absolute() and path.is_relative_to(folder) else path


def start_folder() -> Path:
    """The working folder; within held() that of its beginning, to which relative names of files belong."""
    state = _held.get()
    return Path((_folder() if state is None else state.folder) or "/")


def _folder() -> str | None:
    with suppress(FileNotFoundError):
        return os.getcwd()
    return None


def _umask() -> int:
    """Read without a change where the system shows it: other threads may be making files."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _blocked() -> frozenset[int]:
    """The signals that this thread blocks; none on Windows."""
    mask = getattr(signal, "pthread_sigmask", None)
    return frozenset(map(int, mask(signal.SIG_BLOCK, ()))) if mask else frozenset()


def _limits() -> dict[int, tuple[int, int]]:
    """Limits of resources; none on Windows."""
    try:
        import resource
    except ImportError:
        return {}
    kinds = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    limits = {}
    for kind in kinds:
        with suppress(OSError, ValueError):
            limits[kind] = resource.getrlimit(kind)
    return limits


def _set_limits(limits: Mapping[int, tuple[int, int]]) -> None:
    import resource

    set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit
    for kind, (soft, hard) in limits.items():
        before = resource.getrlimit(kind)
        if before != (soft, hard):
            try:
                set_limit(kind, (soft, hard))
            except (OSError, ValueError):  # the hard limit of this process is lower
                with suppress(OSError, ValueError):
                    set_limit(kind, (soft, before[1]))


def _pickled(entry: tuple[Any, ...]) -> bytes | None:
    """A filter of warnings, with regular expressions as text; None for one that cannot be sent."""
    action, message, category, module, line = entry
    texts = [getattr(pattern, "pattern", pattern) or "" for pattern in (message, module)]
    with suppress(Exception):
        import cloudpickle

        pickled: bytes = cloudpickle.dumps((action, texts[0], category, texts[1], line))
        return pickled
    return None
