"""Losses as they are recorded: numbers that depend on the data, numbers of the loss' own, and what Python asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from tests.bindings.kept_losses import Disk

Batch = dict[str, Tensor]


def batch(rows: int = 24) -> Batch:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 6, generator=generator)
    return {"x": x, "some": torch.rand(rows, generator=generator) > 0.4}


def chosen(net: nn.Module, b: Batch) -> Tensor:
    return net(b["x"])[b["some"]]  # type: ignore[no-any-return]


def by_count(net: nn.Module, b: Batch) -> Tensor:
    return chosen(net, b).square().sum() / chosen(net, b).shape[0]


def by_share(net: nn.Module, b: Batch) -> Tensor:
    return chosen(net, b).square().sum() * (0.5 / b["x"][b["some"]].size(0))


def by_one_less(net: nn.Module, b: Batch) -> Tensor:
    kept = chosen(net, b)
    return (kept - kept.mean(0)).square().sum() / (kept.numel() - 2)


def varies(net: nn.Module, b: Batch) -> Tensor:
    return chosen(net, b).var()


def reshapes(net: nn.Module, b: Batch) -> Tensor:
    kept = chosen(net, b)
    return (kept.reshape(kept.shape[0], -1, 1) - kept.new_zeros(kept.shape[0], 3, 1)).square().mean()


def asks_for_numbers_of_its_own(net: nn.Module, b: Batch) -> Tensor:
    weights, twice = torch.tensor([1.0, 2.0, 3.0]), torch.tensor(2.0) * 2
    factor = weights.tolist()[1] * twice.item() * (3.0 if twice > 1 else 1.0)
    return (net(b["x"]) * weights).square().mean() * factor


def asks_after_a_write(net: nn.Module, b: Batch) -> Tensor:
    total = torch.zeros(())
    whole = torch.tensor(1.0)
    whole.view(1).add_(b["x"].mean())
    total += net(b["x"]).square().mean()
    return total * whole.item()


def turns_in_place(net: nn.Module, b: Batch) -> Tensor:
    found = net(b["x"])
    turned = found.detach().clone().t_()
    return (found * turned.t()).mean() + (turned.clone().unsqueeze_(0).shape[0] * found).square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        by_count,
        by_share,
        by_one_less,
        varies,
        reshapes,
        asks_for_numbers_of_its_own,
        asks_after_a_write,
        turns_in_place,
    ],
)
def test_gradients_are_torchs(loss: Callable[..., Tensor]) -> None:
    net, b = nn.Linear(6, 3), batch()
    step = hr.compile(loss)
    assert step.why_not(net, b) is None
    value = step(net, b)
    found = [p.grad for p in net.parameters()]
    net.zero_grad()
    wanted = loss(net, b)
    wanted.backward()
    torch.testing.assert_close(value, wanted.detach(), rtol=1e-5, atol=1e-6)
    for one, p in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad, rtol=1e-4, atol=1e-6)


def asks_for_len(net: nn.Module, b: Batch) -> Tensor:
    return chosen(net, b).sum() / len(chosen(net, b))


def chooses_by_count(net: nn.Module, b: Batch) -> Tensor:
    kept = chosen(net, b)
    return kept.sum() if kept.shape[0] * 2 > 3 else kept.mean()


def chooses_by_share(net: nn.Module, b: Batch) -> Tensor:
    kept = chosen(net, b)
    return kept.sum() * max(1 / kept.numel(), 0.01)


def asks_if_any(net: nn.Module, b: Batch) -> Tensor:
    kept = chosen(net, b)
    return kept.mean() if kept.shape[0] else net(b["x"]).mean()


def takes_the_root(net: nn.Module, b: Batch) -> Tensor:
    return chosen(net, b).sum() / float(chosen(net, b).shape[0])


def takes_more_than_there_are(net: nn.Module, b: Batch) -> Tensor:
    return net(b["x"])[:100_000].mean()  # type: ignore[no-any-return]


def takes_more_than_are_chosen(net: nn.Module, b: Batch) -> Tensor:
    return chosen(net, b)[:5_000_000].mean()


def loops_over_chosen(net: nn.Module, b: Batch) -> Tensor:
    kept = chosen(net, b)
    return sum((kept.mean() for _ in range(kept.shape[0])), torch.zeros(()))


def reads_a_list(net: nn.Module, b: Batch) -> Tensor:
    return net(b["x"]).mean() * sum(b["some"].tolist())  # type: ignore[no-any-return]


def finds_places(net: nn.Module, b: Batch) -> Tensor:
    return net(b["x"])[b["some"].nonzero().squeeze(-1)].mean()  # type: ignore[no-any-return]


CHOOSES = "chooses by the data"
REFUSED = {
    asks_for_len: "asks for len() of what truth values choose; .shape[0] is compiled",
    chooses_by_count: CHOOSES,
    chooses_by_share: CHOOSES,
    asks_if_any: CHOOSES,
    takes_the_root: "out of PyTorch",
    takes_more_than_there_are: "takes some of the rows, by their position",
    takes_more_than_are_chosen: "takes some of the rows, by their position",
    loops_over_chosen: "computes more than 2,000 operations",
    reads_a_list: "reads a number of a tensor",
    finds_places: "whose size depends on the data, by nonzero",
}


@pytest.mark.parametrize("loss", REFUSED)
def test_what_depends_on_the_data_is_refused_with_its_line(
    loss: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.kernels.rows.tracing.graph_recorder.LONGEST", 2_000)
    reason = str(hr.compile(loss).why_not(nn.Linear(6, 3), batch()))
    assert REFUSED[loss] in reason
    assert reason.startswith("test_losses_recorded.py:")


@pytest.mark.parametrize("longest", [50, 200, 500])  # in the loop; in its gradients; never
def test_a_loop_of_too_many_operations_is_refused_with_its_line(
    longest: int, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.kernels.rows.tracing.graph_recorder.LONGEST", longest)

    reason, first = disk.compile(in_a_loop).why_not(nn.Linear(6, 3), batch()), in_a_loop.__code__.co_firstlineno
    if longest == 500:
        assert reason is None
        return
    expected = f"test_losses_recorded.py:{first + 3} computes more than {longest} operations, such as in a long loop"
    assert reason == expected


def in_a_loop(net: nn.Module, b: Batch) -> Tensor:
    x = net(b["x"])
    for _ in range(60):
        x = torch.tanh(x) * 0.9
    return x.mean()  # type: ignore[no-any-return]


def test_a_tensor_that_is_kept_beyond_its_trace_says_so() -> None:
    kept = dict[str, Tensor]()

    def loss(net: nn.Module, b: Batch) -> Tensor:
        kept["last"] = net(b["x"])
        return kept["last"].mean()

    assert "kept" in str(hr.compile(loss).why_not(nn.Linear(6, 3), batch()))
    assert kept == {}
