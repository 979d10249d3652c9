"""Which device collects, learns and evaluates."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace import device


@dataclass(frozen=True)
class Placement:
    """The devices of a run. Nobody else decides where tensors live."""

    collect: torch.device
    learn: torch.device
    evaluate: torch.device

    @classmethod
    def on(cls, name: str | torch.device) -> Placement:
        """Everything on one device. Raises ValueError for a device this machine does not have."""
        here = device.resolve(name)
        return cls(here, here, here)
