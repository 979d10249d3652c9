"""Checks that tensors are what a kernel reads. Kernels trust dtypes, shapes and devices: others would be read as
garbage, or beyond their end. Where something does not fit the plain function runs, which converts it or says what is
wrong."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.core.device import Device
from headrace.core.rng import MASK

MISFIT = "its arguments are not of the dtypes and shapes that it was written for"


def fits(x: Tensor, dtype: torch.dtype, *shape: int, device: Device = "cpu") -> bool:
    """Tell whether x is a tensor of this dtype, shape and device; "cuda" stands for any GPU."""
    if not isinstance(x, Tensor) or x.dtype != dtype or x.shape != shape or x.layout != torch.strided:
        return False
    on = x.device
    return on.type == device or on == device


def whole(*numbers: int | Tensor | Device) -> bool:
    """Tell whether all of these are whole numbers."""
    return all(isinstance(x, int | np.integer) for x in numbers)


def gae_columns_fit(device: str, columns: tuple[Tensor, ...], numbers: tuple[float, ...]) -> bool:
    """Tell whether reward, value, next_value, terminated, truncated and the numbers are what gae()'s kernels read."""
    reward, *_ = columns
    if not isinstance(reward, Tensor) or reward.dim() != 2 or reward.device.type != device or not reward.numel():
        return False
    shape, on = reward.shape, reward.device
    for place, x in enumerate(columns):
        if not isinstance(x, Tensor) or x.dtype is not (torch.float32 if place < 3 else torch.bool):
            return False
        if x.shape != shape or x.device != on or x.requires_grad or x.layout is not torch.strided:
            return False
    return all(isinstance(x, int | float) for x in numbers)


def draws_fit(seed: int, purpose: int, steps: int, envs: int, draws: int, first_env: int) -> bool:
    """Tell whether a kernel can number these draws: it counts environments in 32 bits."""
    if not whole(seed, purpose, steps, envs, draws, first_env):
        return False
    return min(steps, envs, draws) > 0 and 0 <= purpose <= MASK and 0 <= first_env <= MASK + 1 - envs
