"""The CPU in the place of a GPU: what code does there, on a machine that has none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from headrace.algorithms import on_policy
from headrace.core import fused, rng


@pytest.fixture
def sorted_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permutations are those of a GPU: sorted draws."""
    permutations = rng.permutations

    def draws(seed, purpose, counter, *rest):
        return permutations(seed, purpose, torch.as_tensor(counter), *rest)

    monkeypatch.setattr(rng, "permutations", draws)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, sorted_draws: None) -> Iterator[None]:
    """No kernel of the CPU serves, no flag is known without waiting, and permutations are sorted draws."""
    monkeypatch.setattr(on_policy, "known", lambda flag: False)
    with fused.plain_only():
        yield
