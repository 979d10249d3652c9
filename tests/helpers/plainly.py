"""Calls in plain PyTorch from top to bottom."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from headrace.bindings.compiled import compiled_learning, compiled_objectives
from headrace.core.fused import plain_only


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The plain function of a @fused one, with plain functions alone below it: `function.plain` calls kernels, and
    compiles learning."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with plain_only():
            return function(*arguments)

    return call


def compile_no_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let losses be learned in plain PyTorch where no kernel serves: for algorithms whose learning is compiled by what
    a test tries with others."""
    for module in (compiled_learning, compiled_objectives):
        monkeypatch.setattr(
            module, "too_few", lambda rows: f"a test learns minibatches of {rows} rows in plain PyTorch"
        )
