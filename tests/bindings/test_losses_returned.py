"""hr.compile(): metrics as they are returned, a bound on the programs of a loss, and errors of the compiler."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.bindings.compiled import compiled_losses
from tests.bindings.kept_losses import Disk, net_and_rows
from tests.bindings.losses import mlp
from tests.bindings.test_compiled_losses_kept import agrees


class Metrics(NamedTuple):
    kl: Any
    note: Any


METRICS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda a, b: {"a": a, "none": None, "b": [b, 3, (1.5, "text", True)]},
    lambda a, b: (a, b),
    lambda a, b: Metrics(a, {"b": b, 2: False}),
]


@pytest.mark.parametrize("number", range(len(METRICS)))
def test_metrics_come_back_as_they_are_returned(disk: Disk, number: int) -> None:
    metrics = METRICS[number]

    def loss(net: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        y = net(x)
        return y.square().mean(), metrics(y.mean(), y[:, 0] > 0)

    for _ in range(2):
        net, x = net_and_rows()
        step = disk.compile(loss)
        assert step.why_not(net, x) is None
        found, wanted = step(net, x), loss(net, x)
        assert type(found[1]) is type(wanted[1])
        torch.testing.assert_close(*(torch.utils._pytree.tree_leaves(z[1])[0].detach() for z in (found, wanted)))
        assert str(torch.utils._pytree.tree_structure(found)) == str(torch.utils._pytree.tree_structure(wanted))
        plain = [
            [leaf for leaf in torch.utils._pytree.tree_leaves(z) if not isinstance(leaf, Tensor)]
            for z in (found, wanted)
        ]
        assert plain[0] == plain[1]
    assert disk.traces == 1


def test_an_object_among_the_metrics_is_refused() -> None:
    step = hr.compile(lambda net, x: (net(x).square().mean(), SimpleNamespace(kl=net(x).mean())))
    assert "SimpleNamespace as a metric" in str(step.why_not(*net_and_rows()))


def test_the_order_of_a_dict_counts() -> None:
    def loss(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return net(torch.cat(list(batch.values()), 1)).square().mean()

    step, net, a, b = hr.compile(loss), mlp(4, 8, 1), torch.randn(20, 2), torch.randn(20, 2)
    assert agrees(step, net, {"a": a, "b": b}) is None
    assert agrees(step, net, {"b": b, "a": a}) is None


def test_the_default_dtype_counts() -> None:
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return (net(x) * torch.ones(1)).float().square().mean()

    step, (net, x) = hr.compile(loss), net_and_rows()
    assert step.why_not(net, x) is None
    torch.set_default_dtype(torch.float64)
    try:
        assert "float64" in str(step.why_not(net, x))
    finally:
        torch.set_default_dtype(torch.float32)
    assert step.why_not(net, x) is None


def test_so_many_programs_are_kept(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_losses, "MOST", 2)

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return net(x).square().mean()

    step, nets = hr.compile(loss), {width: mlp(width, 2) for width in (2, 3, 4)}
    for width in (2, 3, 2, 4, 2, 4):  # when 4 comes, 3 is the one that was used the longest ago
        assert agrees(step, nets[width], torch.randn(9, width)) is None
        assert len(step._programs) <= 2
    assert disk.traces == 3 and [step._tries[net].made for net in nets.values()] == [1, 1, 1]
    assert agrees(step, nets[3], torch.randn(9, 3)) is None
    assert disk.traces == 3 and step._tries[nets[3]].made == 2  # made again of what is on disk


def test_machine_code_is_freed_with_its_loss_and_with_programs_that_are_dropped(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return net(x).square().mean()

    monkeypatch.setattr(compiled_losses, "MOST", 2)
    step, natives = disk.compile(loss), list[Any]()
    for width in (2, 3, 4, 5):
        assert agrees(step, mlp(width, 2), torch.randn(9, width)) is None
        native = step._programs[0].code.native
        natives.append(weakref.ref(native._engine))
        del native
    gc.collect()
    assert [engine() is None for engine in natives] == [True, True, False, False]
    del step
    gc.collect()
    assert [engine() is None for engine in natives] == [True] * 4


def test_a_loss_that_is_another_one_at_each_call_gives_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled_losses, "TRIES", 3)

    def loss(net: nn.Module, x: Tensor, mode: int) -> Tensor:
        return mode * net(x).square().mean()

    step, (net, x) = hr.compile(loss), net_and_rows()
    for mode in range(6):
        step(net, x, mode)
        torch.testing.assert_close(step(net, x, mode), loss(net, x, mode).detach())
    assert str(step.why_not(net, x, 9)).endswith("because of mode")
    assert capsys.readouterr().err.count("because of mode") == 1


def test_many_modules_do_not_give_up_and_one_that_changes_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_losses, "TRIES", 2)
    step = hr.compile(lambda net, x, mode: mode * net(x).square().mean())
    nets = [mlp(width, 2) for width in (2, 3, 4, 5, 6)]
    for net in nets:
        assert step.why_not(net, torch.randn(9, net[0].in_features), 1) is None
    for mode in range(2, 6):
        step.why_not(nets[0], torch.randn(9, 2), mode)
    assert "because of mode" in str(step.why_not(nets[0], torch.randn(9, 2), 1))
    for net in nets[1:]:
        assert step.why_not(net, torch.randn(9, net[0].in_features), 1) is None


def test_settings_of_many_calls_do_not_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_losses, "TRIES", 2)
    monkeypatch.setattr(compiled_losses, "CALLS", 5)
    step, (net, x) = hr.compile(lambda net, x, mode: mode * net(x).square().mean()), net_and_rows()
    for mode in range(4):
        for _ in range(8):
            assert step.why_not(net, x, mode) is None


@pytest.mark.parametrize("where", ["targets.cpu.assembly", "cpu_code.object_code"])
def test_errors_of_the_compiler_are_refusals(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("LLVM IR parsing error\n<string>:1:1: error: expected top-level entity")

    monkeypatch.setattr(f"headrace.kernels.rows.{where}", fail)

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return net(x).square().mean()

    net, x = net_and_rows()
    step = disk.compile(loss)
    torch.testing.assert_close(step(net, x), loss(net, x).detach())
    assert net[0].weight.grad is not None
    said = capsys.readouterr().err
    assert "RuntimeError: LLVM IR parsing error" in said and "please report it" in said
    assert disk.compile(loss).why_not(net, x) == step.why_not(net, x)
