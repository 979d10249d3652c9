"""Terms that a simulator logs, such as those of its reward: their means over a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Terms:
    """Sums of numbers by name, on a device: nothing waits for it before mean()."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, tuple[Tensor, int]] = {}  # a float32 scalar, and how many numbers are in it

    def clear(self) -> None:
        self._sums.clear()

    def add(self, terms: Mapping[str, Any] | None) -> None:
        """Add numbers, or arrays, each by its mean: of Python, torch, NumPy, or with DLPack."""
        for name, value in (terms or {}).items():
            of_others = not isinstance(value, Tensor) and hasattr(value, "__dlpack__")
            array = torch.from_dlpack(value) if of_others else torch.as_tensor(value)
            number = array.to(self._device, torch.float32).mean()
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = number + total, count + 1

    def mean(self) -> dict[str, float]:
        """The mean of each name since clear(), in one transfer. A name without a slash has `log/` before it, so that it
        is that of no other column of a run's metrics."""
        if not self._sums:
            return {}
        means = torch.stack([total / count for total, count in self._sums.values()]).tolist()
        names = (name if "/" in name else f"log/{name}" for name in self._sums)
        return dict(zip(names, means, strict=True))
