"""Numbers that a compiled loss is compared on are such as the loss accepts."""

import pytest
import torch
from torch import nn
from torch.distributions import Beta, Dirichlet

import headrace as hr
from headrace.bindings.compiled.loss_check import _varied


@pytest.mark.parametrize(
    ("column", "low", "high"),
    [
        (torch.linspace(-0.9, 0.95, 50), -0.9, 0.95),  # actions of a tanh
        (torch.linspace(0.1, 0.8, 50), 0.1, 0.8),
        (torch.linspace(0.5, 40, 50), 0.5, 160),
        (torch.linspace(-3, 3, 50), -12, 12),
    ],
)
def test_columns_stay_where_they_have_a_meaning(column, low, high):
    random = torch.randn(50, generator=torch.Generator().manual_seed(0))
    found = _varied(column, random)
    assert low <= found.min() and found.max() <= high and not torch.equal(found, column)
    assert high < 1 or found.max() > column.max()


def beta(net, batch):
    one, other = (nn.functional.softplus(net(batch["x"])) + 1).chunk(2, 1)
    return -Beta(one, other).log_prob(batch["share"]).mean()


def dirichlet(net, batch):
    return -Dirichlet(nn.functional.softplus(net(batch["x"])) + 1).log_prob(batch["simplex"]).mean()


@pytest.mark.parametrize("loss", [beta, dirichlet])
def test_distributions_that_refuse_numbers_are_compiled(loss):
    torch.manual_seed(0)
    net, share, simplex = nn.Linear(4, 4), torch.rand(80, 2).clamp(0.01, 0.99), torch.rand(80, 4).softmax(1)
    batch = {"x": torch.randn(80, 4), "share": share, "simplex": simplex}
    step = hr.compile(loss)
    assert step(net, batch).item() == pytest.approx(loss(net, batch).item(), rel=1e-5)
    assert step.why_not(net, batch) is None
