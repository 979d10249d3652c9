"""Compiled losses as a GPU computes them, on the CPU: a loop stands for each step's threads."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.bindings.compiled import loss_program
from tests.bindings.losses import ALL
from tests.bindings.test_compiled_losses import test_gradients_are_those_of_autograd


@pytest.fixture(autouse=True)
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_program, "on_gpu", lambda device: True)


@pytest.mark.parametrize("make", ALL)
def test_gradients(make: Any) -> None:
    test_gradients_are_those_of_autograd(make)
    assert hr
