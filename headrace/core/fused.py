"""The registry of kernels that replace plain functions.

`@fused("returns.gae", "headrace.bindings.returns_cpu")` on a plain torch function makes it the reference implementation
and the fallback, and names the module that binds its kernel. That module is imported at the first call; it registers a
kernel of the same signature and says which arguments the kernel serves. Tests hold the two equal. A kernel may state
the digest of the source it was written after: once that source is edited or patched, the plain function runs.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from headrace.core.source_text import source_text, without_comments
from headrace.core.terminal import tell

P = ParamSpec("P")
R = TypeVar("R")
Function: TypeAlias = Callable[..., Any]  # plain functions and kernels of any signature
Serves: TypeAlias = Callable[..., bool | str]
Methods: TypeAlias = tuple[tuple[type | ModuleType, str], ...]  # functions named by (class or module, name)
Names: TypeAlias = list[tuple[Mapping[str, object], str, object]]  # (namespace, name, value) of what may be replaced


class _Kernel(NamedTuple):
    serves: Serves
    call: Function
    digest: str | None
    also: Methods


_kernels: dict[str, list[_Kernel]] = {}
_digests: dict[tuple[Function, Methods], tuple[str, Names]] = {}  # digests, and the names they depend on
_said: set[tuple[str, str]] = set()  # (name, reason) that were printed
_bind = functools.cache(import_module)
_enabled = True


def fused(name: str, binding: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let kernels registered under `name` replace this function. The plain function stays available as `.plain`.

    binding: the module that registers them, imported at the first call.
    """

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        candidates = _kernels.setdefault(name, [])

        @functools.wraps(plain)
        def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
            if kwargs:  # kernels take arguments by position
                given = inspect.signature(plain).bind(*args, **kwargs)
                given.apply_defaults()
                return dispatch(*given.args)  # type: ignore[call-arg]
            return (serving(*args, **kwargs) or plain)(*args, **kwargs)

        def serving(*args: P.args, **kwargs: P.kwargs) -> Callable[P, R] | None:
            if not _enabled:
                return None
            _bind(binding)
            for kernel in candidates:
                if _serves(name, plain, kernel, kernel.serves(*args, **kwargs)):
                    return kernel.call
            return None

        dispatch.plain, dispatch.serving = plain, serving  # type: ignore[attr-defined]
        return dispatch

    return decorate


def register(
    name: str, serves: Serves, digest: str | None = None, also: Methods = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register this function as a kernel `name` for calls where serves(*args, **kwargs) is True.

    The kernel registered last is tried first. serves may return the reason why not, which is printed once on stderr.
    digest: source_digest(plain, also) when the kernel was written.
    """

    def decorate(kernel: Callable[P, R]) -> Callable[P, R]:
        _kernels.setdefault(name, []).insert(0, _Kernel(serves, kernel, digest, also))
        return kernel

    return decorate


def kernel_of(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Callable[P, R] | None:
    """The kernel that would serve this call of a @fused function; None where the plain function would run."""
    return function.serving(*args, **kwargs)  # type: ignore[attr-defined, no-any-return]


@contextmanager
def plain_only() -> Iterator[None]:
    """Within this block plain functions run instead of kernels."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def source_digest(plain: Function, also: Methods = ()) -> str:
    """Digest of the source of `plain`, of the functions of its own module that it calls by name, of functions patched
    into that module from outside its package, and of the functions `also`. Comments, docstrings and blank lines do
    not count."""
    digest, names = _digests.get((plain, also), ("", []))
    if not digest or any(space.get(name) is not value for space, name, value in names):
        functions: list[FunctionType] = []
        names = _reach(inspect.unwrap(plain), functions)
        for owner, name in also:
            names.append((vars(owner), name, vars(owner)[name]))
            functions.append(inspect.unwrap(vars(owner)[name]))
        text = "\n".join(_source(function) for function in functions)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        _digests[plain, also] = digest, names
    return digest


def _serves(name: str, plain: Function, kernel: _Kernel, answer: bool | str) -> bool:
    """Whether a kernel that gave this answer serves; prints the reason where it does not, once."""
    if answer is True and kernel.digest and kernel.digest != source_digest(plain, kernel.also):
        answer = "the plain function is not the one its kernel was written after; running that instead"
    if isinstance(answer, str) and (name, answer) not in _said:
        _said.add((name, answer))
        tell(f"{name} not fused: {answer}")
    return answer is True


def _reach(function: FunctionType, found: list[FunctionType]) -> Names:
    """Append the function, and those it calls by name, in the order of their names, to `found`. Returns the names."""
    found.append(function)
    space, module = function.__globals__, function.__module__
    names: Names = [(space, name, space[name]) for name in function.__code__.co_names if name in space]
    for _, _, value in list(names):
        other = inspect.unwrap(value) if callable(value) else value
        if not isinstance(other, FunctionType) or other in found:
            continue
        if other.__module__ == module:
            names += _reach(other, found)
        elif other.__module__.partition(".")[0] != module.partition(".")[0]:
            found.append(other)
    return names


def _source(function: FunctionType) -> str:
    """The function's source without comments and docstring; of one that has no file, its bytecode."""
    try:
        return without_comments(source_text(function))
    except (OSError, TypeError):
        return function.__code__.co_code.hex() + repr(function.__code__.co_consts)
