"""hr.compile(): a program depends on the settings that its loss reads, and on no others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import headrace as hr
from tests.bindings.kept_losses import Disk, net_and_rows


@dataclass(frozen=True)
class Settings:
    """Settings. Each loss below reads some of them."""

    power: int = 2
    steps: int = 128
    sizes: tuple[int, ...] = (64, 64)
    entropy: bool = False
    coef: float = 0.5


def reading_one(net: nn.Module, x: Tensor, settings: Settings) -> Tensor:
    return settings.coef * (net(x) ** settings.power).mean()


def reading_by_another(net: nn.Module, x: Tensor, settings: Settings) -> Tensor:
    return net(x).square().mean() * settings.coef * (settings.steps if settings.entropy else 1)


def reading_all(net: nn.Module, x: Tensor, settings: Settings) -> Tensor:
    return net(x).square().mean() * sum(vars(settings)["sizes"])


def reading_a_copy(net: nn.Module, x: Tensor, settings: Settings) -> Tensor:
    assert isinstance(settings, Settings) and settings == replace(settings)
    return net(x).square().mean() * replace(settings, power=3).power


def test_settings_that_a_loss_does_not_read_are_no_part_of_its_key(disk: Disk) -> None:
    def traced(loss: Callable[..., Any], **changes: Any) -> bool:
        return disk.traced(loss, *net_and_rows(), Settings(**changes))

    assert traced(reading_one) and not traced(reading_one, steps=64, sizes=(3,), entropy=True, coef=0.7)
    assert traced(reading_one, power=3) and not traced(reading_one, power=3, steps=1) and not traced(reading_one)
    assert traced(reading_by_another) and not traced(reading_by_another, steps=64)
    assert traced(reading_by_another, entropy=True) and traced(reading_by_another, entropy=True, steps=64)
    assert not traced(reading_by_another, steps=32) and not traced(reading_by_another, entropy=True, power=3)
    assert traced(reading_all) and traced(reading_all, steps=64) and not traced(reading_all)
    assert traced(reading_a_copy) and traced(reading_a_copy, steps=64)


def test_a_program_serves_settings_that_its_loss_does_not_read() -> None:
    step, (net, x) = hr.compile(reading_by_another), net_and_rows()
    for changes in ({}, {"steps": 64}, {"entropy": True}, {"power": 9}, {"entropy": True, "steps": 5}, {"coef": 2.0}):
        settings = Settings(**changes)  # type: ignore[arg-type]
        torch.testing.assert_close(step(net, x, settings), reading_by_another(net, x, settings).detach())
        assert step.why_not(net, x, settings) is None
    assert len(step._programs) == 3


@dataclass(frozen=True)
class Numbers:
    """Floats. Losses below ask for some of them."""

    scale: float = 0.5
    penalty: float = 0.0
    power: float = 2.0


def choosing(net: nn.Module, x: Tensor, numbers: Numbers) -> Tensor:
    loss = net(x).square().mean() * numbers.scale
    if numbers.penalty:
        loss = loss + numbers.penalty * net(x).abs().mean()
    return loss * math.exp(max(numbers.power, 1.0))


def test_settings_that_a_loss_asks_for_are_constants_and_others_are_inputs(disk: Disk) -> None:
    def traced(**changes: Any) -> bool:
        return disk.traced(choosing, *net_and_rows(), Numbers(**changes))

    assert traced() and not traced(scale=0.7)
    assert traced(penalty=0.3) and not traced(penalty=0.3, scale=0.1)
    assert traced(power=3.0) and not traced(power=3.0, scale=9.0)


def test_what_is_computed_of_settings_and_rows_is_no_setting(disk: Disk) -> None:
    def loss(net: nn.Module, x: Tensor, coef: float) -> Tensor:
        return net(x).mean() if (net(x).mean() * coef) > 0 else net(x).sum()

    reason = disk.compile(loss).why_not(*net_and_rows(), 0.5)
    assert reason is not None and "chooses by the data" in reason
