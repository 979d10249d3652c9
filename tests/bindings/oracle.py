"""Reference for a compiled loss: the plain function in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr


def as_in_float64(
    loss: Callable[..., Any],
    net: nn.Module,
    batches: Sequence[dict[str, Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    near: float = 2e-5,
) -> None:
    """Assert that a compiled loss, its gradients and its metrics are those of float64, for each minibatch, and that
    its bits are the same with two threads. loss: of a network and a minibatch."""
    step = hr.compile(loss)
    assert step.why_not(net, batches[0]) is None
    for batch in batches:
        found = []
        for threads in ("1", "2"):
            monkeypatch.setenv("HEADRACE_THREADS", threads)
            net.zero_grad()
            returned = step(net, batch)
            gradients = [p.grad for p in net.parameters() if p.requires_grad]
            found.append([*torch.utils._pytree.tree_leaves(returned), *gradients])
        assert all(_same(one, other) for one, other in zip(*found, strict=True))
        exact = copy.deepcopy(net).double()
        exact.zero_grad()
        doubled = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
        wanted = loss(exact, doubled)
        (wanted[0] if isinstance(wanted, tuple) else wanted).backward()
        leaves = torch.utils._pytree.tree_leaves(wanted)
        for mine, other in zip(found[0], leaves, strict=False):
            torch.testing.assert_close(torch.as_tensor(mine).double(), other.detach().double(), rtol=1e-4, atol=1e-5)
        expected = [p.grad for p in exact.parameters() if p.requires_grad]
        largest = max(float(x.abs().max()) for x in expected if x is not None)
        for mine, gradient in zip(found[0][len(leaves) :], expected, strict=True):
            assert (mine is None) == (gradient is None)
            if gradient is not None:
                assert float((mine.double() - gradient).abs().max()) <= near * max(
                    float(gradient.abs().max()), 1e-2 * largest
                )


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else one is other
