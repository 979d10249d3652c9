"""hr.compile() of layers and functions that move, mask and normalise features: the gradients of float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import headrace as hr
from tests.bindings.oracle import as_in_float64


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.embed = nn.Linear(4, 12), nn.GroupNorm(3, 12), nn.Linear(1, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)


def batch(rows: int) -> dict[str, Tensor]:
    return {"x": torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))}


def weights(x: Tensor) -> Tensor:
    return torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)


def rolled(net: Net, b: dict[str, Tensor]) -> Tensor:
    """Loss with roll along one dimension, along several, and over all numbers of a matrix."""
    x = net.first(b["x"])
    matrix = torch.arange(12, dtype=x.dtype).view(3, 4).roll(5)
    several = x.view(-1, 3, 4).roll((1, -2), (1, 2)) * matrix
    return ((x.roll(-5, 1) * weights(x)).square() + several.flatten(1)).square().mean()


def group_norm(net: Net, b: dict[str, Tensor]) -> Tensor:
    x = net.norm(net.first(b["x"]))
    return (x * weights(x)).tanh().sum(1).square().mean()


def erfc(net: Net, b: dict[str, Tensor]) -> Tensor:
    """Loss with erfc over its whole range, from where it is 2 to where it is almost 0."""
    return torch.special.erfc(5 * net.first(b["x"]).tanh()).log().square().mean()


def masks(net: Net, b: dict[str, Tensor]) -> Tensor:
    """Masks that are put together: of rows, of an identity matrix, of a triangle."""
    x, seen = net.embed(b["x"].unsqueeze(-1)), (b["x"] > -0.5)[:, None, :] | torch.eye(4, dtype=torch.bool)
    scores = (x @ x.mT).masked_fill(~seen | torch.ones(4, 4, dtype=torch.bool).triu(2), -1e9)
    one = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=seen)
    hidden = (b["x"] > 1) | (b["x"] < -1) & (b["x"][:, :1] > 0)
    both = net.attention(x, x, x, key_padding_mask=hidden & (b["x"].sum(1, True) > 0), need_weights=False)[0]
    return (scores.softmax(-1) @ x + one + both).square().mean()


def triangular(net: Net, b: dict[str, Tensor]) -> Tensor:
    """A normal distribution whose covariance differs from row to row, and systems of equations of each kind."""
    x = net.first(b["x"])
    scale = 0.3 * x[:, :9].view(-1, 3, 3).tril(-1) + torch.eye(3) * (1 + x[:, 9:].square())[:, None]
    likely = torch.distributions.MultivariateNormal(x[:, :3], scale_tril=scale).log_prob(b["x"][:, 1:])
    right = torch.linalg.solve_triangular(scale.mT, x[:, :6].view(-1, 2, 3), upper=True, left=False)
    unit = torch.linalg.solve_triangular(scale, x[:, 3:6, None], upper=False, unitriangular=True)
    return likely.mean() + right.square().mean() + (unit.flatten(1) * weights(unit[:, :, 0])).square().mean()


class Normed(nn.Module):
    """A loss that is a module, of layers whose weights are computed from others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = weight_norm(nn.Conv1d(2, 5, 3)), weight_norm(nn.Linear(10, 3), dim=1)

    def forward(self, b: dict[str, Tensor]) -> Tensor:
        x = torch.relu(self.first(torch.stack([b["x"], b["x"].sin()], 1)))
        return self.last(x.flatten(1)).tanh().square().mean()  # type: ignore[no-any-return]


def test_a_module_is_a_loss_and_weight_norm_is_compiled() -> None:
    net, b = Normed(), batch(37)
    step = hr.compile(net)
    assert step.why_not(b) is None
    step(b)
    found = [p.grad for p in net.parameters()]
    net.zero_grad()
    net.double()({"x": b["x"].double()}).backward()
    for one, p in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [rolled, group_norm, erfc, masks, triangular])
def test_gradients_are_those_of_float64(loss: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    as_in_float64(loss, Net(), [batch(rows) for rows in (64, 3, 150)], monkeypatch)


def test_large_systems_of_equations_are_refused_by_name() -> None:
    def loss(net: Net, b: dict[str, Tensor]) -> Tensor:
        system = torch.eye(20) * (2 + net.first(b["x"])[:, :1, None])
        return torch.linalg.solve_triangular(system, system, upper=True).square().mean()

    assert "uses linalg_solve_triangular" in str(hr.compile(loss).why_not(Net(), batch(8)))


def over_rows(net: Net, b: dict[str, Tensor]) -> Tensor:
    x = net.first(b["x"])
    return (x * x.roll(1, 0)).mean()


def over_all(net: Net, b: dict[str, Tensor]) -> Tensor:
    x = net.first(b["x"])
    return (x * x.roll(1)).mean()


@pytest.mark.parametrize("loss", [over_rows, over_all])
def test_rows_are_not_rolled(loss: Callable[..., Any]) -> None:
    assert "rolls over the rows" in str(hr.compile(loss).why_not(Net(), batch(8)))


def test_numbers_of_random_and_time_are_named() -> None:
    found = iter([0.31, 0.74, 0.13, 0.52])

    def loss(net: Net, b: dict[str, Tensor]) -> Tensor:
        return net.first(b["x"]).square().mean() * next(found)  # type: ignore[no-any-return]

    assert "differs between calls (such as of random or time)" in str(hr.compile(loss).why_not(Net(), batch(8)))
