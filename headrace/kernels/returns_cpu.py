"""returns.gae by the CPU's kernel (headrace.kernels.advantage)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.fused import register
from headrace.kernels.compiled import entry
from headrace.kernels.native import Native


def _serves(reward: Tensor, value: Tensor, next_value: Tensor, *rest: Any, **named: Any) -> bool:
    columns = (reward, value, next_value)
    return (
        reward.dim() == 2
        and all(x.device.type == "cpu" and x.dtype == torch.float32 and x.shape == reward.shape for x in columns)
        and not any(x.requires_grad for x in columns)
    )


@register("returns.gae", _serves)
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """headrace.returns.gae of float32 columns on the CPU: the same operations in the same order, so the same bits."""
    advantage = torch.empty(reward.shape)
    columns = (reward, value, next_value, terminated, truncated)
    arguments = (*(x.contiguous().numpy() for x in columns), advantage.numpy(), float(gamma), float(gae_lambda))
    _entry()(*arguments)
    return advantage


@functools.cache
def _entry() -> Native:
    columns = (np.zeros((1, 1), kind) for kind in (*(np.float32,) * 3, *(np.bool_,) * 2, np.float32))
    return entry("advantage", "gae", (*columns, 0.0, 0.0), "compiling the advantage (once, about 1 s) ...")
