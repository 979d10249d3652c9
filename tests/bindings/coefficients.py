"""A helper of losses, in another file than theirs."""

from __future__ import annotations

from torch import Tensor

SCALE = 2.0


def scaled(x: Tensor) -> Tensor:
    return SCALE * x
