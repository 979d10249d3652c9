"""The registry of kernels that replace plain functions.

`@fused("returns.gae", "headrace.bindings.rng_returns_cpu")` on a plain torch function makes it the reference
implementation and the fallback, and names the module that binds its kernel. That module is imported at the first call;
it registers a kernel of the same signature and says which arguments the kernel serves. Tests hold the two equal. A
kernel may state the digest of the source it was written after: once that source is edited or patched, the plain
function runs.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from headrace.core.closure import Reach, reach
from headrace.core.looking import is_noted, moment, note, users_code
from headrace.core.terminal import tell

P = ParamSpec("P")
R = TypeVar("R")
Function: TypeAlias = Callable[..., Any]  # plain functions and kernels of any signature
Serves: TypeAlias = Callable[..., bool | str]
Classes: TypeAlias = tuple[type, ...]


class _Kernel(NamedTuple):
    serves: Serves
    call: Function
    digest: str | None
    classes: Classes


_kernels: dict[str, list[_Kernel]] = {}
_reaches: dict[tuple[Function, Classes], Reach] = {}
_said: set[tuple[str, str]] = set()  # (name, reason) that were printed
_bind = functools.cache(import_module)
_signature = functools.cache(inspect.signature)
_enabled, _silent = True, False


class _Here(threading.local):
    """State of one thread."""

    traced = False


_here = _Here()


def fused(name: str, binding: str | None = None, quiet: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let kernels registered under `name` replace this function. The plain function stays available as `.plain`.

    binding: the module that registers the kernels. It is imported at the first call. None: a check of the machine
    (headrace.checks) registers them. quiet: print nothing where no kernel can be used, because the functions that the
    plain function calls have kernels of their own.
    """

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        candidates = _kernels.setdefault(name, [])

        @functools.wraps(plain)
        def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
            if kwargs:  # kernels take arguments by position
                given = _signature(plain).bind(*args, **kwargs)
                given.apply_defaults()
                return dispatch(*given.args)  # type: ignore[call-arg]
            kernel = serving(*args, **kwargs)
            if kernel is not None or moment() is None:
                return (kernel or plain)(*args, **kwargs)
            with users_code():  # which a plain function may call
                return plain(*args, **kwargs)

        def serving(*args: P.args, **kwargs: P.kwargs) -> Callable[P, R] | None:
            if not kernels_serve():
                return None
            if binding is not None:
                _bind(binding)
            for kernel in candidates:
                if _serves(None if quiet else name, plain, kernel, kernel.serves(*args, **kwargs)):
                    return kernel.call
            return None

        dispatch.plain, dispatch.serving = plain, serving  # type: ignore[attr-defined]
        return dispatch

    return decorate


def register(
    name: str, serves: Serves, digest: str | None = None, classes: Classes = (), first: bool = True
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register this function as a kernel `name` for calls where serves(*args, **kwargs) is True.

    The kernel registered last is tried first; last of all with first=False. serves may return the reason why not. It
    is printed once on stderr, unless it is AsChosen, or the function or the process prints none.
    digest: reached(plain, classes).digest when the kernel was written.
    """

    def decorate(kernel: Callable[P, R]) -> Callable[P, R]:
        known = _kernels.setdefault(name, [])
        known.insert(0 if first else len(known), _Kernel(serves, kernel, digest, classes))
        return kernel

    return decorate


def kernel_of(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Callable[P, R] | None:
    """The kernel that would serve this call of a @fused function; None if the plain function would run, or if another
    function has been put in its place."""
    serving = getattr(function, "serving", None)
    return serving and serving(*args, **kwargs)  # type: ignore[no-any-return]


def silence() -> None:
    """Stop printing in this process why kernels do not serve: another process prints it for the same policy."""
    global _silent
    _silent = True


def kernels_serve() -> bool:
    """Tell whether kernels may replace plain functions here. False within plain_only() and traced()."""
    return _enabled and not _here.traced


def is_traced() -> bool:
    """True while the operations of this thread are recorded: within traced()."""
    return _here.traced


@contextmanager
def traced() -> Iterator[None]:
    """Run plain functions instead of kernels in this thread, within this block: their operations are recorded."""
    before, _here.traced = _here.traced, True
    try:
        yield
    finally:
        _here.traced = before


def kept(make: Callable[P, R]) -> Callable[P, R]:
    """Cache the tensors that a function makes of plain values, as functools.cache() does. While operations are recorded
    the function runs again, so that its tensors are recorded as constants."""
    known: Callable[P, R] = functools.cache(make)  # type: ignore[assignment]

    @functools.wraps(make)
    def constants(*args: P.args, **kwargs: P.kwargs) -> R:
        return make(*args, **kwargs) if _here.traced else known(*args, **kwargs)

    return constants


@contextmanager
def plain_only(plain: bool = True) -> Iterator[None]:
    """Run plain functions instead of kernels within this block, also in the actors that collect what is ordered within
    it. plain: False for no change."""
    global _enabled
    before, _enabled = _enabled, _enabled and not plain
    try:
        yield
    finally:
        _enabled = before


def reached(plain: Function, classes: Classes = ()) -> Reach:
    """closure.reach(plain, classes), found again once something in it was replaced."""
    found = _reaches.get((plain, classes))
    if found is None or not (is_noted(found) or found.is_current()):
        found = _reaches[plain, classes] = reach(plain, classes)
    note(found)
    return found


def _follows(plain: Function, kernel: _Kernel) -> bool:
    """Tell whether the plain function is unchanged since the kernel was written."""
    return not kernel.digest or reached(plain, kernel.classes).matches(kernel.digest)


class AsChosen(str):
    """Reason that follows from the user's settings, such as a network of convolutions, for a kernel not to serve. It is
    not printed, since the user has nothing to correct."""


def _serves(name: str | None, plain: Function, kernel: _Kernel, answer: bool | str) -> bool:
    """Tell whether a kernel serves a call, and print the reason once if it does not.

    answer: the result of the kernel's `serves`. name: None to print nothing.
    """
    if answer is True and not _follows(plain, kernel):
        answer = "the plain function is not the one its kernel was written after; running that instead"
    if name is None or _silent or isinstance(answer, AsChosen):
        return answer is True
    if isinstance(answer, str) and (name, answer) not in _said:
        _said.add((name, answer))
        slower = "" if answer.endswith("as fast") else " (slower than its kernel)"
        tell(f"{name} runs in plain PyTorch: {answer}{slower}")
    return answer is True
