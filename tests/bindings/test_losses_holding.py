"""hr.compile(): tensors and modules in lists, dicts and objects that a module, or the loss, holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from tests.bindings.test_compiled_losses_kept import agrees


class Statistics:
    """Numbers of observations, in an object that is no module."""

    def __init__(self) -> None:
        self.mean = torch.full((4,), 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        return x - self.mean


class Net(nn.Module):
    """Subtracts numbers that it holds in some way."""

    def __init__(self, held: Any, subtract: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.held, self.subtract = nn.Linear(4, 1), held, subtract

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.subtract(self.held, x))  # type: ignore[no-any-return]


class Inside:
    def __init__(self) -> None:
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]


def numbers() -> Tensor:
    return torch.full((4,), 0.5)


HELD: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Tensor]]] = {
    "a dict": (lambda: {"mean": numbers()}, lambda held, x: x - held["mean"]),
    "a list": (lambda: [numbers(), 3], lambda held, x: x - held[0]),
    "an object": (Statistics, lambda held, x: x - held.mean),
    "an object that is called": (Statistics, lambda held, x: held(x)),
    "a dict in an object in a list": (lambda: [{"of": Statistics()}], lambda held, x: x - held[0]["of"].mean),
}


def loss(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().mean()


@pytest.mark.parametrize("name", HELD)
def test_numbers_that_a_module_holds_are_read_anew_at_each_call(name: str) -> None:
    make, subtract = HELD[name]
    net, x = Net(make(), subtract), torch.randn(20, 4)
    step = hr.compile(loss)
    assert agrees(step, net, x) is None
    tensor = next(iter_tensors(net.held))
    with torch.no_grad():
        tensor.mul_(5)
    assert agrees(step, net, x) is None
    assert len(step._programs) == 1


def iter_tensors(held: Any) -> Any:
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, list | dict):
        for part in held.values() if isinstance(held, dict) else held:
            yield from iter_tensors(part)
    elif hasattr(held, "__dict__"):
        yield from iter_tensors(vars(held))


def test_numbers_that_are_replaced_count() -> None:
    net, x = Net({"mean": numbers()}, HELD["a dict"][1]), torch.randn(20, 4)
    step = hr.compile(loss)
    for value in (0.5, -2.0):
        net.held["mean"] = torch.full((4,), value)
        assert agrees(step, net, x) is None


def test_modules_in_an_objects_list_are_learned() -> None:
    held = Inside()
    net, x = Net(held, lambda held, x: held.layers[1](held.layers[0](x).tanh())), torch.randn(20, 4)
    step = hr.compile(loss)
    step(net, x)
    parameters = [parameter for layer in held.layers for parameter in layer.parameters()]
    found = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    loss(net, x).backward()
    for own, parameter in zip(found, parameters, strict=True):
        torch.testing.assert_close(own, parameter.grad)
    assert step.why_not(net, x) is None


def test_numbers_that_a_module_writes_to_are_written() -> None:
    def count(held: Any, x: Tensor) -> Tensor:
        held["seen"].add_(x.mean(0))
        return x + held["seen"]

    net, x = Net({"seen": torch.zeros(4)}, count), torch.randn(20, 4)
    step = hr.compile(loss)
    step(net, x)
    torch.testing.assert_close(net.held["seen"], x.mean(0))
    step(net, x)
    torch.testing.assert_close(net.held["seen"], 2 * x.mean(0))


def test_a_list_in_the_enclosing_function_is_looked_into() -> None:
    scales = [torch.tensor(2.0), torch.tensor(3.0)]

    def of_scales(net: nn.Module, x: Tensor) -> Tensor:
        return (net(x) * scales[1]).square().mean()

    net, x = nn.Linear(4, 1), torch.randn(20, 4)
    step = hr.compile(of_scales)
    assert agrees(step, net, x) is None
    scales[1] = torch.tensor(-1.0)
    assert agrees(step, net, x) is None
    scales[1].fill_(0.25)
    assert agrees(step, net, x) is None


def test_a_tensor_in_a_tuple_is_refused_with_the_line() -> None:
    net, x = Net((numbers(),), lambda held, x: x - held[0]), torch.randn(20, 4)
    reason = hr.compile(loss).why_not(net, x)
    assert reason is not None and "test_losses_holding.py" in reason and "not the loss' to see" in reason
