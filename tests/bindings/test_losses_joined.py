"""hr.compile() of losses that evaluate a network more than once: one backward pass, and the gradients of float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace.bindings.compiled.compiled_losses import CompiledLoss
from headrace.bindings.compiled.loss_program import Program
from tests.bindings.oracle import as_in_float64


class Residual(nn.Module):
    """LayerNorm and SiLU within a residual block, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(5, 32), nn.LayerNorm(32), nn.Linear(32, 32)
        self.heads = nn.ModuleList(nn.Linear(32, n) for n in (3, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.first(x).relu()
        x = x + nn.functional.silu(self.second(self.norm(x)))
        return [head(x) for head in self.heads]


class Memory(nn.Module):
    """A GRU over three steps, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(1, 16, batch_first=True)
        self.heads = nn.ModuleList(nn.Linear(16, n) for n in (3, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        found, _ = self.memory(x[:, :3, None])
        return [head(found).mean(1) for head in self.heads]


class Entities(nn.Module):
    """Attention between five entities, with a mask of those that look at each other, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(1, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.heads = nn.ModuleList(nn.Linear(8, n) for n in (3, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.embed(x.unsqueeze(-1))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return [head(x.tanh().mean(1)) for head in self.heads]


def batch(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    found = {name: torch.randn(rows, generator=generator) for name in ("gain", "target")}
    action = torch.randint(3, (rows,), generator=generator)
    return found | {"obs": torch.randn(rows, 5, generator=generator), "action": action}


def log_prob(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
    return net(b["obs"])[0].log_softmax(-1).gather(1, b["action"][:, None]).squeeze(1)  # type: ignore[no-any-return]


def once(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
    value = net(b["obs"])[1].squeeze(1)
    return (value - b["target"]).square().mean() - (log_prob(net, b) * b["gain"]).mean()


def value_again(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
    return once(net, b) + 0.1 * net(b["obs"])[1].square().mean()


def thrice(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
    """Twice more: for one term in which each row counts by itself, and one of the batch's standardized gains."""
    gain = (b["gain"] - b["gain"].mean()) / b["gain"].std()
    return value_again(net, b) - 0.3 * (log_prob(net, b).exp() * gain).sum() / len(gain)


def elsewhere(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
    """Loss of once(), added for other inputs: nothing is equal."""
    return once(net, b) + once(net, b | {"obs": b["obs"].square()})


def products(loss: Callable[..., Any], net: nn.Module) -> int:
    """Floating-point operations of the compiled loss's products, for a row."""
    program = CompiledLoss(loss).find((net, batch(8)))
    assert isinstance(program, Program)
    return program.work


@pytest.mark.parametrize(
    ("loss", "network"), [(value_again, Residual), (thrice, Residual), (thrice, Memory), (value_again, Entities)]
)
def test_a_second_evaluation_needs_no_further_products(
    loss: Callable[..., Any], network: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = network()
    assert products(loss, net) == products(once, net)
    as_in_float64(loss, net, [batch(rows) for rows in (64, 3, 150)], monkeypatch)


def test_what_differs_is_computed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = Residual()
    assert products(elsewhere, net) >= 2 * products(once, net)
    as_in_float64(elsewhere, net, [batch(rows) for rows in (64, 150)], monkeypatch)
