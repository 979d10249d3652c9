"""hr.compile(): a program depends on the settings that its loss reads, and on no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import headrace as hr
from tests.bindings.kept_losses import Disk, net_and_rows


@dataclass(frozen=True)
class Settings:
    """What losses below read in part."""

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
