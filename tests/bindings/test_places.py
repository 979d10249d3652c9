"""The line that a refusal names: of gradients, of what is known of a loss as a whole, of what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr

ROWS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
COUNT = {"n": 0}


def shrinks(net: nn.Module, x: Tensor) -> Tensor:
    z = net(x)
    y = z * 2

    return F.softshrink(y, 0.1).mean()


def shrinks_within(net: nn.Module, x: Tensor) -> Tensor:
    z = net(x)
    (slope,) = torch.autograd.grad(z.square().sum(), [net.weight], create_graph=True)
    y = torch.tanh(z) + 1
    return slope.square().mean() + (F.softshrink(y, 0.1) + y).mean()


def largest_of_all(net: nn.Module, x: Tensor) -> Tensor:
    z = net(x)

    return z.max(0).values.mean()


def writes(net: nn.Module, x: Tensor) -> Tensor:
    COUNT["n"] += 1
    return net(x).mean()


def three(net: nn.Module, x: Tensor) -> Any:
    value = net(x).mean()
    return value, value, value


def one_of_a_tuple(net: nn.Module, x: Tensor) -> Any:
    return (net(x).mean(),)


def rows(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).mean(1)


CASES: list[tuple[Callable[..., Any], int, str]] = [
    (shrinks, 4, "uses the gradient of softshrink, which is not compiled"),
    (shrinks_within, 4, "uses the gradient of softshrink, which is not compiled"),
    (largest_of_all, 3, "takes max over the rows of the minibatch with places, as its gradient does: amax() is"),
    (writes, 0, "changes COUNT.n when it is called"),
    (three, 0, "returns 3 values: a loss returns a scalar, or (scalar, metrics) with all metrics in one dict, list or"),
    (one_of_a_tuple, 0, "returns 1 values: a loss returns a scalar, or (scalar, metrics)"),
    (rows, 0, "returns no scalar loss"),
]


@pytest.mark.parametrize(("loss", "line", "reason"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_refusal_names_the_line(loss: Callable[..., Any], line: int, reason: str) -> None:
    why = hr.compile(loss).why_not(nn.Linear(4, 6), ROWS)
    assert why is not None and why.startswith(f"test_places.py:{loss.__code__.co_firstlineno + line} {reason}")


def test_an_object_that_is_called_has_the_line_of_its_method() -> None:
    class Counting:
        calls = 0

        def __call__(self, net: nn.Module, x: Tensor) -> Tensor:
            self.calls += 1
            return net(x).mean()  # type: ignore[no-any-return]

    why = hr.compile(Counting()).why_not(nn.Linear(4, 6), ROWS)
    assert why is not None and why.startswith(f"test_places.py:{Counting.__call__.__code__.co_firstlineno} changes ")


@pytest.mark.skipif(torch.__version__ < "2.12", reason="torch computed these gradients by other operations")
@pytest.mark.parametrize("zeros", [(), (2,), (0, 5)])
def test_products_along_a_dimension_have_gradients(zeros: tuple[int, ...]) -> None:
    net = nn.Linear(4, 6)
    with torch.no_grad():
        for place in zeros:
            net.weight[place], net.bias[place] = 0.0, 0.0

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return (net(x).cumprod(1) * torch.arange(1.0, 7.0)).mean()

    step = hr.compile(loss)
    assert step.why_not(net, ROWS) is None
    found = step(net, ROWS)
    gradients = [p.grad.clone() for p in net.parameters()]  # type: ignore[union-attr]
    net.zero_grad()
    expected = loss(net, ROWS)
    expected.backward()
    torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-6)
    for own, p in zip(gradients, net.parameters(), strict=True):
        torch.testing.assert_close(own, p.grad, rtol=1e-4, atol=1e-5)
