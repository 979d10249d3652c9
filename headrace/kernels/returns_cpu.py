"""The advantage's recursion compiled for the CPU: one pass over the columns, SIMD across environments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace.fused import register


def _serves(reward: Tensor, value: Tensor, next_value: Tensor, *rest: Any, **named: Any) -> bool:
    columns = (reward, value, next_value)
    return (
        reward.dim() == 2
        and all(
            x.device.type == "cpu" and x.dtype == torch.float32 and x.stride(-1) == 1 and x.shape == reward.shape
            for x in columns
        )
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
    columns = (reward, value, next_value, terminated, truncated, advantage)
    _compiled()(*(x.numpy() for x in columns), gamma, gae_lambda)
    return advantage


@functools.cache
def _compiled() -> Callable[..., None]:
    import numba
    import numpy as np

    f32, u64 = np.float32, np.uint64

    @numba.njit(cache=True, error_model="numpy")
    def kernel(reward, value, next_value, terminated, truncated, advantage, gamma, gae_lambda):  # type: ignore[no-untyped-def]
        steps, envs = reward.shape
        decay = f32(gamma * gae_lambda)
        discount = f32(gamma)
        # unsigned indices: signed ones may be negative, and LLVM does not vectorise the wrap-around
        for back in range(u64(steps)):
            t = u64(steps) - u64(1) - back
            for n in range(u64(envs)):
                future = f32(0) if terminated[t, n] else next_value[t, n]
                ended = terminated[t, n] | truncated[t, n]
                following = f32(0) if back == u64(0) else advantage[t + u64(1), n]
                delta = (reward[t, n] + discount * future) - value[t, n]
                advantage[t, n] = delta + (f32(0) if ended else decay) * following

    return kernel
