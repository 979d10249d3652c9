"""hr.compile(): what was compiled serves as long as what the trace read is what it was, and tracing changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from tests.bindings import coefficients
from tests.bindings.losses import mlp


def agrees(step: Any, *arguments: Any) -> str | None:
    """Check a loss and its gradients against plain PyTorch's. Returns why it is not compiled."""
    learned = [p for x in arguments if isinstance(x, nn.Module) for p in x.parameters() if p.requires_grad]
    wanted = step.plain(*arguments)
    gradients = torch.autograd.grad(wanted, learned)
    for parameter in learned:
        parameter.grad = None
    why: str | None = step.why_not(*arguments)
    torch.testing.assert_close(step(*arguments), wanted.detach(), rtol=1e-4, atol=1e-6)
    for parameter, gradient in zip(learned, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
    return why


def squares(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().mean()


class Holding(nn.Module):
    """Computes with something that is no tensor of a module's, and may be changed in place."""

    def __init__(self, kept: Any, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.net, self.kept, self.read = mlp(3, 8, 1), kept, [read]

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.read[0](self.kept)


def in_list(kept: Any, number: float) -> None:
    kept[0] = number


def in_dict(kept: Any, number: float) -> None:
    kept["scale"] = number


def in_object(kept: Any, number: float) -> None:
    kept.scale = number


def in_array(kept: Any, number: float) -> None:
    kept[:] = number


KEPT: list[tuple[Any, Callable[[Any], Any], Callable[[Any, float], None]]] = [
    ([1.0, 2.0], lambda kept: kept[0], in_list),
    ({"scale": 1.0}, lambda kept: kept["scale"], in_dict),
    (SimpleNamespace(scale=1.0), lambda kept: kept.scale, in_object),
    (np.ones(1, np.float32), lambda kept: float(kept[0]), in_array),
]


@pytest.mark.parametrize(("kept", "read", "change"), KEPT, ids=lambda x: getattr(x, "__name__", ""))
def test_what_a_module_holds_may_change_in_place(kept: Any, read: Any, change: Any) -> None:
    net, x, step = Holding(kept, read), torch.randn(20, 3), hr.compile(squares)
    assert agrees(step, net, x) is None
    change(net.kept, 4.0)
    assert agrees(step, net, x) is None


class Schedule:
    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


def test_settings_that_are_called_may_change() -> None:
    schedule, net, x = Schedule(), mlp(3, 8, 1), torch.randn(20, 3)
    step = hr.compile(lambda net, x, coef: coef() * net(x).square().mean())
    assert agrees(step, net, x, schedule) is None
    schedule.now = 3.0
    assert agrees(step, net, x, schedule) is None


def test_closures_lists_and_helpers_of_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    scales, coef = [1.0, 2.0], 0.5

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return coefficients.scaled(net(x)).square().mean() * scales[0] * coef

    net, x, step = mlp(3, 8, 1), torch.randn(20, 3), hr.compile(loss)
    assert agrees(step, net, x) is None
    scales[0] = 5.0
    assert agrees(step, net, x) is None
    coef = 0.1
    assert agrees(step, net, x) is None
    monkeypatch.setattr(coefficients, "SCALE", 7.0)
    assert agrees(step, net, x) is None
    monkeypatch.setattr(coefficients, "scaled", lambda y: y + 1)
    assert agrees(step, net, x) is None


class Algorithm:
    """Holds its networks, as an algorithm of a user's does."""

    def __init__(self) -> None:
        self.net, self.targets, self.coef = mlp(3, 8, 1), [mlp(3, 8, 1), mlp(3, 8, 1)], 0.5
        self.offset = torch.zeros(1)

    def loss(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = torch.min(*[target(x) for target in self.targets]) + self.offset
        return self.coef * (self.net(x) - wanted).square().mean()

    def __call__(self, x: Tensor) -> Tensor:
        return self.loss(x)


@pytest.mark.parametrize("of", [lambda a: a.loss, lambda a: a], ids=["method", "object"])
def test_networks_of_the_object_whose_method_it_is(of: Any) -> None:
    algorithm, x = Algorithm(), torch.randn(20, 3)
    step = hr.compile(of(algorithm))
    for change in (
        lambda: None,
        lambda: algorithm.targets[0][0].weight.data.mul_(3),
        lambda: algorithm.offset.add_(2),
        lambda: setattr(algorithm, "coef", 2.0),
        lambda: algorithm.targets.__setitem__(1, mlp(3, 8, 1)),
    ):
        change()
        algorithm.net.zero_grad()
        wanted = algorithm.loss(x)
        gradient = torch.autograd.grad(wanted, algorithm.net[0].weight)[0]
        if of(algorithm) is not algorithm:  # whose __call__() calls a method that reads self in another function
            assert step.why_not(x) is None
        torch.testing.assert_close(step(x), wanted.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(algorithm.net[0].weight.grad, gradient, rtol=1e-3, atol=1e-6)


def test_partial() -> None:
    target, net, x = mlp(3, 8, 1), mlp(3, 8, 1), torch.randn(20, 3)

    def loss(target: nn.Module, net: nn.Module, x: Tensor, coef: float) -> Tensor:
        return coef * (net(x) - target(x).detach()).square().mean()

    step = hr.compile(functools.partial(loss, target, coef=0.5))
    assert agrees(step, net, x) is None
    target[0].weight.data.mul_(3)
    assert agrees(step, net, x) is None


def test_dropout_is_compiled_in_evaluation_mode() -> None:
    net, x = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)), torch.randn(20, 3)
    step = hr.compile(squares)
    assert "draws random numbers" in str(step.why_not(net, x))
    assert agrees(step, net.eval(), x) is None
    assert "draws random numbers" in str(step.why_not(net.train(), x))


def test_a_choice_by_the_number_of_rows_is_refused() -> None:
    step = hr.compile(lambda net, x: net(x).square().mean() * (2.0 if len(x) > 64 else 1.0))
    net = mlp(3, 8, 1)
    for rows in (100, 40):
        assert "rows" in str(agrees(step, net, torch.randn(rows, 3)))


def test_few_rows_are_computed_as_they_are_written() -> None:
    step = hr.compile(lambda net, x: net(x).square().sum() * (1.0 if len(x) > 1 else 5.0))
    net = mlp(3, 8, 1)
    for rows in (40, 1, 0, 2, 3):
        assert agrees(step, net, torch.randn(rows, 3)) is None


def test_hooks_of_learned_tensors() -> None:
    net, x, scale = mlp(3, 8, 1), torch.randn(20, 3), torch.ones((), requires_grad=True)
    step = hr.compile(lambda net, scale, x: scale * net(x).square().mean())
    assert step.why_not(net, scale, x) is None
    scale.register_hook(lambda gradient: gradient * 2)
    assert step.why_not(net, scale, x) == "scale has a gradient hook"


def test_metrics_have_the_dtypes_of_the_plain_function() -> None:
    def loss(net: nn.Module, x: Tensor, clip: float) -> tuple[Tensor, dict[str, Any]]:
        y = net(x)
        return clip * y.square().mean(), {"best": y.argmax(1), "above": y[:, 0] > 0, "clip": clip, "mean": y.mean()}

    net, x = mlp(3, 8, 4), torch.randn(20, 3)
    step = hr.compile(loss)
    assert step.why_not(net, x, 0.2) is None
    found, wanted = step(net, x, 0.2)[1], loss(net, x, 0.2)[1]
    assert found["clip"] == 0.2 and type(found["clip"]) is float
    torch.testing.assert_close(
        [found[name] for name in ("best", "above", "mean")],
        [wanted[name].detach() for name in ("best", "above", "mean")],
    )


def test_a_metric_that_counts_rows_is_refused() -> None:
    step = hr.compile(lambda net, x: (net(x).square().mean(), {"rows": len(x)}))
    net = mlp(3, 8, 1)
    assert "depends on the count of rows" in str(step.why_not(net, torch.randn(20, 3)))
    assert step(net, torch.randn(20, 3))[1] == {"rows": 20}


LOGGED: list[Tensor] = []


def logs(net: nn.Module, x: Tensor) -> Tensor:
    loss = net(x).square().mean()
    LOGGED.append(loss.detach())
    return loss


def test_a_loss_that_changes_objects_is_refused_and_they_are_left_as_they_were() -> None:
    net, x, calls, state = mlp(3, 8, 1), torch.randn(20, 3), 0, SimpleNamespace(calls=0)

    def counts(net: nn.Module, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return net(x).square().mean()

    def counts_in_object(net: nn.Module, x: Tensor) -> Tensor:
        state.calls += 1
        return net(x).square().mean()

    for loss, name in ((counts, "calls"), (counts_in_object, "state.calls"), (logs, "LOGGED")):
        step = hr.compile(loss)
        assert f"changes {name}" in str(step.why_not(net, x))
        assert (calls, state.calls, LOGGED) == (0, 0, [])
    step(net, x)
    assert len(LOGGED) == 1 and type(LOGGED.pop()) is Tensor


def test_a_helper_that_changes_objects_is_refused() -> None:
    counts = {"calls": 0}

    def helper() -> None:
        counts["calls"] += 1

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        helper()
        return net(x).square().mean()

    assert "changes" in str(hr.compile(loss).why_not(mlp(3, 8, 1), torch.randn(20, 3)))


TABLE = torch.ones(1)


def looks_up(y: Tensor) -> Tensor:
    return y * TABLE  # looks_up


def test_a_tensor_that_the_trace_does_not_know_is_refused_with_its_line() -> None:
    net, x = mlp(3, 8, 1), torch.randn(20, 3)
    step = hr.compile(lambda net, x: looks_up(net(x)).mean())
    reason = str(agrees(step, net, x))
    assert reason.startswith(f"test_compiled_losses_kept.py:{looks_up.__code__.co_firstlineno + 1} uses a tensor")


def test_one_tensor_that_is_given_twice_may_be_two_later() -> None:
    def loss(net: nn.Module, batch: dict[str, Tensor], other: Tensor) -> Tensor:
        return (net(batch["x"]) - net(batch["y"]) * net(other)).square().mean()

    step, net, x = hr.compile(loss), mlp(3, 8, 1), torch.randn(20, 3)
    for y, other in ((x, x), (torch.randn(20, 3), x), (x, torch.randn(20, 3))):
        assert agrees(step, net, {"x": x, "y": y}, other) is None


class Batch:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def inputs(self) -> Tensor:
        return self.x


class Doubled(Batch):
    def inputs(self) -> Tensor:
        return 2 * self.x


def test_arguments_of_another_class_have_other_methods() -> None:
    step, net, x = hr.compile(lambda net, batch: net(batch.inputs()).square().mean()), mlp(3, 8, 1), torch.randn(20, 3)
    for batch in (Batch(x), Doubled(x)):
        assert agrees(step, net, batch) is None


def test_distributions_that_check_their_arguments_are_refused_with_their_line() -> None:
    def loss(net: nn.Module, x: Tensor, action: Tensor) -> Tensor:
        return -torch.distributions.Categorical(logits=net(x), validate_args=True).log_prob(action).mean()

    step, arguments = hr.compile(loss), (mlp(3, 8, 4), torch.randn(20, 3), torch.randint(4, (20,)))
    reason = str(agrees(step, *arguments))
    assert reason.startswith(f"test_compiled_losses_kept.py:{loss.__code__.co_firstlineno + 1} chooses by the data")


def test_arguments_that_may_be_left_out() -> None:
    def loss(net: nn.Module, x: Tensor, weight: Tensor | None = None) -> Tensor:
        y = net(x).square()
        return (y if weight is None else y * weight).mean()

    step, net, x = hr.compile(loss), mlp(3, 8, 1), torch.randn(20, 3)
    for rest in ((), (torch.rand(20, 1),), (None,), ()):
        assert agrees(step, net, x, *rest) is None


def test_a_gru_of_torch_keeps_its_own_list_of_weights() -> None:
    step, net, x = (
        hr.compile(lambda net, x: net(x)[0].square().mean()),
        nn.GRU(3, 8, batch_first=True),
        torch.randn(9, 4, 3),
    )
    weights = list(net._flat_weights)
    assert agrees(step, net, x) is None
    assert all(one is other for one, other in zip(weights, net._flat_weights, strict=True))
    net.weight_hh_l0.data.mul_(2)
    assert agrees(step, net, x) is None
