"""A folder of compiled losses, for tests: what one process finds there that another has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import headrace as hr
from headrace.bindings.compiled import compiled_losses
from headrace.kernels.rows.targets import records
from headrace.kernels.runtime import cache
from tests.bindings.losses import mlp
from tests.bindings.test_compiled_losses_kept import agrees


class Disk:
    """A folder of compiled losses, and how often one was traced."""

    def __init__(self, place: Path) -> None:
        self.place, self.traces = place, 0

    def records(self) -> list[Path]:
        return sorted(self.place.glob("headrace_loss_*.json"))

    def compile(self, loss: Callable[..., Any]) -> Any:
        """A compiled loss as a new process makes it, which has the files alone."""
        records._known.clear()
        cache._of_texts.clear()
        compiled_losses._compared.clear()
        return hr.compile(loss)

    def traced(self, loss: Callable[..., Any], *arguments: Any) -> bool:
        """Tell whether a new process traces a loss, after a check of what it computes."""
        before = self.traces
        assert agrees(self.compile(loss), *arguments) is None
        return self.traces > before


def net_and_rows() -> tuple[nn.Module, Tensor]:
    return mlp(3, 8, 1), torch.randn(20, 3)
