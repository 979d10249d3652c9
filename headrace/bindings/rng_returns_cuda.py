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
    fit = draws_fit(seed, purpose, steps, envs, draws, first_env)
    return fit and torch.device(device).type == "cuda" and _counter_fits(first)


def _counter_fits(counter: int | Tensor) -> bool:
    if isinstance(counter, Tensor):  # in a CUDA graph
        return counter.dtype == torch.int64 and counter.numel() == 1 and counter.device.type == "cuda"
    return whole(counter) and 0 <= counter < 1 << 63


def _scattered(seed: int, purpose: int, counter: int | Tensor, number: int, digits: int, device: Device) -> bool:
    fit = whole(digits) and 0 <= digits <= 32 and draws_fit(seed, purpose, 1, number, 1, 0)
    return fit and torch.device(device).type == "cuda" and _counter_fits(counter)


def _columns(*call: Any) -> bool:
    return gae_columns_fit("cuda", call[:5], call[5:])


register("rng.uniform", _draws, DIGESTS["rng.uniform"])(random_and_gae.uniform)
register("returns.gae", _columns, DIGESTS["returns.gae"])(random_and_gae.gae)
register("rng.scattered", _scattered)(random_and_gae.scattered)
