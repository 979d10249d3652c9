"""What PettingZoo's own tests say of a parallel environment."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

from headrace.checks.finding import Finding

CYCLES = 100


def said_by_pettingzoo(factory: Callable[[], Any]) -> list[Finding]:
    """Findings of parallel_api_test and parallel_seed_test."""
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    def api() -> None:
        env = factory()
        try:
            parallel_api_test(env, num_cycles=CYCLES)
        finally:
            env.close()

    tests = {"PettingZoo's API test": api, "PettingZoo's seed test": lambda: parallel_seed_test(factory, CYCLES)}
    return [finding for check, test in tests.items() for finding in _said(check, test)]


def _said(check: str, test: Callable[[], Any]) -> list[Finding]:
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            test()
        except Exception as error:
            return [Finding(check, "wrong", f"{type(error).__name__}: {error}")]
    notes = sorted({str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)})
    return [Finding(check, "note", text) for text in notes] or [Finding(check, "ok", "has nothing to say")]
