"""returns.gae and returns.explained_variance by the CPU's kernels (headrace.kernels.learning.advantage)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core.fused import register
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Native

ANNOUNCEMENT = "compiling the advantage (once, about 1 s) ..."


def _serves(reward: Tensor, value: Tensor, next_value: Tensor, *rest: Any, **named: Any) -> bool:
    columns = (reward, value, next_value)
    return (
        reward.dim() == 2
        and all(x.device.type == "cpu" and x.dtype == torch.float32 and x.shape == reward.shape for x in columns)
        and not any(x.requires_grad for x in columns)
    )


@register("returns.gae", _serves)
def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, mix: float
) -> Tensor:
    """headrace.core.returns.gae of float32 columns on the CPU: the same operations in the same order, the same bits."""
    advantage = torch.empty(reward.shape)
    columns = (reward, value, next_value, terminated, truncated)
    inputs = [x.contiguous().numpy() for x in columns]
    _gae()(*inputs, advantage.numpy(), float(gamma), float(mix))
    return advantage


def _explains(prediction: Tensor, target: Tensor, valid: Tensor) -> bool:
    return valid.dim() == 2 and _serves(prediction, target, target) and valid.shape == target.shape


@register("returns.explained_variance", _explains)
def explained_variance(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """headrace.core.returns.explained_variance of float32 columns on the CPU, within rounding."""
    share = torch.empty(1)
    _explained()(*(x.contiguous().numpy() for x in (prediction, target, valid)), share.numpy())
    return share[0]


@functools.cache
def _gae() -> Native:
    columns = (np.zeros((1, 1), kind) for kind in (*(np.float32,) * 3, *(np.bool_,) * 2, np.float32))
    return entry("learning.advantage", "gae", (*columns, 0.0, 0.0), ANNOUNCEMENT)


@functools.cache
def _explained() -> Native:
    columns = (np.zeros((1, 1), kind) for kind in (np.float32, np.float32, np.bool_))
    return entry("learning.advantage", "explained", (*columns, np.zeros(1, np.float32)), ANNOUNCEMENT)
