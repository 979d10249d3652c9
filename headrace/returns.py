"""What a policy gained: advantages, discounted returns, and how well values explain them.

Endings come in as Gymnasium's: a terminated step has no future; a truncated one has the value of its final
observation. `next_value[t]` is the value of what was seen after step t, before any reset. With next-step autoreset it
is value[t + 1], and what these functions give at a dead row means nothing and goes into no other row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.fused import fused


@fused("returns.gae")
def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimate of each step, float32 [T, N]. Schulman et al. 2016, arXiv:1506.02438, eq. 16.

    reward, value, next_value: float32 [T, N]; terminated, truncated: bool [T, N]. The last row bootstraps from
    next_value[T - 1]. Raises ValueError where the shapes differ.
    """
    _same_shape(reward, value=value, next_value=next_value, terminated=terminated, truncated=truncated)
    delta = reward + gamma * torch.where(terminated, 0.0, next_value) - value
    decay = torch.where(terminated | truncated, 0.0, gamma * gae_lambda)
    advantage = torch.empty(reward.shape, dtype=reward.dtype, device=reward.device)
    following = torch.zeros_like(delta[0])
    for t in reversed(range(len(reward))):
        following = delta[t] + decay[t] * following
        advantage[t] = following
    return advantage


def discounted_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float
) -> Tensor:
    """Sum of discounted rewards until the episode ends, float32 [T, N]; a truncated or cut-off one goes on with
    next_value.

    Raises ValueError where the shapes differ.
    """
    _same_shape(reward, next_value=next_value, terminated=terminated, truncated=truncated)
    returns = torch.empty(reward.shape, dtype=reward.dtype, device=reward.device)
    following = next_value[-1]
    for t in reversed(range(len(reward))):
        future = torch.where(truncated[t], next_value[t], following)
        following = reward[t] + gamma * torch.where(terminated[t], 0.0, future)
        returns[t] = following
    return returns


def explained_variance(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """1 - Var(target - prediction) / Var(target) over valid entries: 1 is perfect, 0 no better than a constant.

    0 where the target does not vary, such as that of a single step: a constant explains it.
    """
    variance = _variance(target, valid)
    return torch.where(variance > 0, 1 - _variance(target - prediction, valid) / variance, 0.0)


def _variance(x: Tensor, valid: Tensor) -> Tensor:
    weight = valid / valid.sum().clamp(min=1)
    return ((x - (x * weight).sum()).square() * weight).sum()


def _same_shape(reward: Tensor, **others: Tensor) -> None:
    for name, other in others.items():
        if other.shape != reward.shape:
            raise ValueError(
                f"{name} has shape {tuple(other.shape)}, reward {tuple(reward.shape)}: they go step by step"
                + (" (of a column with edge pass [:-1] as value and [1:] as next_value)" if "value" in name else "")
            )
