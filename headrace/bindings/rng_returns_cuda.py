"""Offers the CUDA kernels of numbers_cuda in place of the plain functions; importing this registers them.

They are asked for before (headrace.checks.parity): a machine where they differ from plain torch does not import this.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.core.device import Device
from headrace.core.fused import register
from headrace.kernels.targets.cuda import random_and_gae


def _draws(
    seed: int, purpose: int, first: int | Tensor, steps: int, envs: int, draws: int, device: Device, first_env: int = 0
) -> bool:
    return torch.device(device).type == "cuda" and steps * envs * draws > 0


def _columns(reward: Tensor, *rest: Any) -> bool:
    return reward.device.type == "cuda" and reward.dtype == torch.float32


register("rng.uniform", _draws)(random_and_gae.uniform)
register("returns.gae", _columns)(random_and_gae.gae)
