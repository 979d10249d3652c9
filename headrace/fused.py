"""A registry of kernels that may stand in for plain functions.

`@fused("returns.gae")` on a plain torch function makes it the oracle and the fallback. A kernel of the same signature
registers under that name for the arguments it can serve. Whoever reads the plain function reads what happens; a test
holds the two equal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_kernels: dict[str, list[tuple[Callable[..., bool], Callable[..., Any]]]] = {}


def fused(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a kernel registered under `name` serve calls of this function. The plain function stays as `.plain`."""

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        candidates = _kernels.setdefault(name, [])

        @functools.wraps(plain)
        def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
            for serves, kernel in candidates:
                if serves(*args, **kwargs):
                    return kernel(*args, **kwargs)
            return plain(*args, **kwargs)

        dispatch.plain = plain  # type: ignore[attr-defined]
        return dispatch

    return decorate


def register(name: str, serves: Callable[..., bool]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Offer this function as the kernel `name` wherever serves(*args, **kwargs) is true. The latest offer goes first."""

    def decorate(kernel: Callable[P, R]) -> Callable[P, R]:
        _kernels.setdefault(name, []).insert(0, (serves, kernel))
        return kernel

    return decorate
