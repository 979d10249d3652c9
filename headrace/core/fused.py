"""A registry of kernels that may stand in for plain functions.

`@fused("returns.gae", "headrace.bindings.returns_cpu")` on a plain torch function makes it the oracle and the fallback,
and names the module that binds its kernel: imported at the first call, it registers a kernel of the same signature for
the arguments that this can serve. Whoever reads the plain function
reads what happens; a test holds the two equal. A kernel may name the source it was written after, by digest: once that
is edited or patched, the plain function runs.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from headrace.core.source_text import source_text

P = ParamSpec("P")
R = TypeVar("R")


Methods = tuple[tuple[type, str], ...]


class _Kernel(NamedTuple):
    serves: Callable[..., bool | str]
    call: Callable[..., Any]
    digest: str | None
    also: Methods


class _Watch(NamedTuple):
    """A digest, and what it was taken of: (namespace, name, value) wherever a value may be replaced."""

    digest: str
    names: list[tuple[Mapping[str, Any], str, Any]]


_kernels: dict[str, list[_Kernel]] = {}
_watches: dict[tuple[Callable[..., Any], Methods], _Watch] = {}
_said: set[tuple[str, str]] = set()
_bound: set[str] = set()  # bindings that have been imported
_enabled = True


def fused(name: str, binding: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a kernel registered under `name` serve calls of this function. The plain function stays as `.plain`.

    binding: the module that registers it, imported at the first call.
    """

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        candidates = _kernels.setdefault(name, [])

        @functools.wraps(plain)
        def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
            return (serving(*args, **kwargs) or plain)(*args, **kwargs)

        def serving(*args: Any, **kwargs: Any) -> Callable[..., Any] | None:
            if not _enabled:
                return None
            if binding not in _bound:
                import_module(binding)
                _bound.add(binding)
            for kernel in candidates:
                if _serves(name, kernel, plain, args, kwargs):
                    return kernel.call
            return None

        dispatch.plain, dispatch.serving = plain, serving  # type: ignore[attr-defined]
        return dispatch

    return decorate


def register(
    name: str,
    serves: Callable[..., bool | str],
    digest: str | None = None,
    also: Methods = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Offer this function as the kernel `name` wherever serves(*args, **kwargs) is true. The latest offer goes first.

    serves may give a reason why not, which is then said once on stderr. digest: source_digest(plain, also) as the
    kernel was written.
    """

    def decorate(kernel: Callable[P, R]) -> Callable[P, R]:
        _kernels.setdefault(name, []).insert(0, _Kernel(serves, kernel, digest, also))
        return kernel

    return decorate


def kernel_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any] | None:
    """The kernel that would serve this call of a @fused function; None where the plain function would run."""
    return function.serving(*args, **kwargs)  # type: ignore[attr-defined]


@contextmanager
def plain_only() -> Iterator[None]:
    """Within this block no kernel stands in: plain functions run."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def source_digest(plain: Callable[..., Any], also: Methods = ()) -> str:
    """Digest of the source of `plain`, of the functions it reaches by name in its own module, of functions that were
    patched into that module from outside its package, and of methods `also`, (class, name). Comments, docstrings and
    layout do not count."""
    watch = _watches.get((plain, also))
    if watch is None or any(space.get(name) is not value for space, name, value in watch.names):
        functions: list[FunctionType] = []
        names = _reach(inspect.unwrap(plain), functions)
        for owner, name in also:
            names.append((vars(owner), name, vars(owner)[name]))
            functions.append(inspect.unwrap(vars(owner)[name]))
        text = "\n".join(_source(function) for function in functions)
        watch = _watches[plain, also] = _Watch(hashlib.sha256(text.encode()).hexdigest()[:16], names)
    return watch.digest


def _serves(
    name: str, kernel: _Kernel, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    answer = kernel.serves(*args, **kwargs)
    if answer is True and kernel.digest and kernel.digest != source_digest(plain, kernel.also):
        answer = "the plain function is not the one its kernel was written after; running that instead"
    if isinstance(answer, str) and (name, answer) not in _said:
        _said.add((name, answer))
        print(f"{name} not fused: {answer}", file=sys.stderr, flush=True)
    return answer is True


def _reach(function: Any, found: list[FunctionType]) -> list[tuple[Mapping[str, Any], str, Any]]:
    """Add the function to `found`, and those it names, in the order in which it names them. Gives the names."""
    found.append(function)
    space, module = function.__globals__, function.__module__
    names = [(space, name, space[name]) for name in function.__code__.co_names if name in space]
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
        tree = ast.parse(textwrap.dedent(source_text(function)))
    except (OSError, TypeError, SyntaxError):
        return function.__code__.co_code.hex() + repr(function.__code__.co_consts)
    definition = tree.body[0]
    if isinstance(definition, ast.FunctionDef) and ast.get_docstring(definition) is not None:
        definition.body = definition.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
