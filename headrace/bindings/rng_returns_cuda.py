"""Offers the CUDA kernels of numbers_cuda in place of the plain functions; importing this registers them.

They are asked for before (headrace.checks.parity): a machine where they differ from plain torch does not import this.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.bindings.arguments import draws_fit, gae_columns_fit, whole
from headrace.bindings.digests import DIGESTS
from headrace.core.device import Device
from headrace.core.fused import register
from headrace.kernels.targets.cuda import random_and_gae


def _draws(
    seed: int, purpose: int, first: int | Tensor, steps: int, envs: int, draws: int, device: Device, first_env: int = 0
) -> bool:
    if torch.device(device).type != "cuda" or not draws_fit(seed, purpose, steps, envs, draws, first_env):
        return False
    if isinstance(first, Tensor):  # in a CUDA graph
        return first.dtype == torch.int64 and first.numel() == 1 and first.device.type == "cuda"
    return whole(first) and 0 <= first < 1 << 63


def _columns(*call: Any) -> bool:
    return gae_columns_fit("cuda", call[:5], call[5:])


register("rng.uniform", _draws, DIGESTS["rng.uniform"])(random_and_gae.uniform)
register("returns.gae", _columns, DIGESTS["returns.gae"])(random_and_gae.gae)
