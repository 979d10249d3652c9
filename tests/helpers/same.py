"""Comparison of states, bit for bit."""

from __future__ import annotations

from typing import Any

import torch


def same(a: Any, b: Any) -> bool:
    """Equality of nested states, tensors bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def flat_weights(trainer: Any) -> torch.Tensor:
    """All that the optimizers of an off-policy training change."""
    return torch.cat([optimizer.flat for optimizer in trainer.algorithm.optimizers.values()])


def all_weights(trainer: Any) -> torch.Tensor:
    """All that is learned: parameters, and the normalisers' statistics."""
    tensors = (*trainer.policy.parameters(), *trainer.policy.buffers())
    return torch.cat([x.detach().flatten().double() for x in tensors])
