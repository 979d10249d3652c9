"""returns.gae and returns.explained_variance by the CPU's kernels (headrace.kernels.learning.advantage)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.arguments import gae_columns_fit
from headrace.bindings.digests import DIGESTS
from headrace.core.fused import register
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Native

ANNOUNCEMENT = "compiling the advantage (once, about 1 s) ..."


def _serves(*call: Any) -> bool:
    return gae_columns_fit("cpu", call[:5], call[5:])


@register("returns.gae", _serves, DIGESTS["returns.gae"])
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
    return gae_columns_fit("cpu", (prediction, target, target, valid), ())


@register("returns.explained_variance", _explains, DIGESTS["returns.explained_variance"])
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
