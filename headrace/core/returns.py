"""Advantages, discounted returns, how much of their variance the values explain, and distributions of returns.

`terminated` and `truncated` are Gymnasium's: after a terminated step the value is 0; a truncated step bootstraps from
the value of its final observation. `next_value[t]` is the value of the observation after step t, before any reset. With
next-step autoreset it is value[t + 1]; results at masked (autoreset) rows are meaningless and enter no other row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace.core.fused import fused

FLAGS = ("terminated", "truncated", "valid")  # columns of bool


@fused("returns.gae", "headrace.bindings.rng_returns_cpu")
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
    next_value[T - 1]. Raises ValueError where the shapes differ, TypeError for flags that are not bool.
    """
    _check("reward", reward, value=value, next_value=next_value, terminated=terminated, truncated=truncated)
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
    """Sum of discounted rewards until the episode ends, float32 [T, N]; truncated steps and the last row bootstrap from
    next_value.

    Raises ValueError where the shapes differ, TypeError for flags that are not bool.
    """
    _check("reward", reward, next_value=next_value, terminated=terminated, truncated=truncated)
    returns = torch.empty(reward.shape, dtype=reward.dtype, device=reward.device)
    following = next_value[-1]
    for t in reversed(range(len(reward))):
        future = torch.where(truncated[t], next_value[t], following)
        following = reward[t] + gamma * torch.where(terminated[t], 0.0, future)
        returns[t] = following
    return returns


def lambda_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, mix: float
) -> Tensor:
    """lambda-return of each step, float32 [T, N]: r + gamma * ((1 - mix) * next_value + mix * the return that follows).

    mix: lambda; 0 looks one step ahead, 1 to the episode's end. Sutton & Barto 2018, eq. 12.18. Truncated
    steps and the last row bootstrap from next_value. Raises ValueError where the shapes differ, TypeError for
    flags that are not bool.
    """
    _check("reward", reward, next_value=next_value, terminated=terminated, truncated=truncated)
    # r + gamma * V + gamma * mix * (following - V): the last term is 0 where the episode ends
    known = reward + gamma * torch.where(terminated, 0.0, next_value)
    decay = torch.where(terminated | truncated, 0.0, gamma * mix)
    returns = torch.empty(reward.shape, dtype=reward.dtype, device=reward.device)
    following = next_value[-1]
    for t in reversed(range(len(reward))):
        following = known[t] + decay[t] * (following - next_value[t])
        returns[t] = following
    return returns


def n_step_returns(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, num_steps: int
) -> Tensor:
    """Discounted rewards of num_steps steps and the value after them, float32 [T, N]. Watkins 1989, p. 86.

    Fewer steps where the episode or the rollout ends before that. Raises ValueError where the shapes differ, or where
    num_steps is below 1; TypeError for flags that are not bool.
    """
    _check("reward", reward, next_value=next_value, terminated=terminated, truncated=truncated)
    if num_steps < 1:
        raise ValueError(f"num_steps must be 1 or more, got {num_steps}")
    ended = terminated | truncated
    first = reward + gamma * torch.where(terminated, 0.0, next_value)
    returns = first
    for _ in range(num_steps - 1):
        # one step more: the reward, then the return of the next row
        longer = reward[:-1] + gamma * returns[1:]
        returns = torch.cat((torch.where(ended[:-1], first[:-1], longer), first[-1:]))
    return returns


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
    *,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace value targets and advantages of steps by an earlier policy, float32 [T, N] each.

    Espeholt et al. 2018, arXiv:1802.01561, eq. 1, with c = gae_lambda * min(clip_c, ratio) (section 4.1, remark 2).
    log_ratio [T, N]: log of the probability of each action under the learning policy over that under the acting policy.
    clip_rho, clip_c: limits of the importance weights rho and c. Advantages are
    rho * (r + gamma * ((1 - gae_lambda) * V' + gae_lambda * v') - V), with the value V' and the target v' of the next
    observation: those of section 4.2 where gae_lambda is 1. For steps by the learning policy itself, with limits of 1
    or more, they are gae()'s, and targets are value + advantage. Raises ValueError where the shapes differ, TypeError
    for flags that are not bool.
    """
    columns = {"value": value, "next_value": next_value, "terminated": terminated, "truncated": truncated}
    _check("reward", reward, log_ratio=log_ratio, **columns)
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=clip_rho), gae_lambda * ratio.clamp(max=clip_c)
    ended = terminated | truncated
    error = reward + gamma * torch.where(terminated, 0.0, next_value) - value
    correction, advantage = torch.empty_like(error), torch.empty_like(error)
    following = torch.zeros_like(error[0])  # v - V of the next row, of the same episode
    for t in reversed(range(len(reward))):
        following = torch.where(ended[t], 0.0, gamma * following)
        advantage[t] = rho[t] * (error[t] + gae_lambda * following)
        following = rho[t] * error[t] + c[t] * following
        correction[t] = following
    return value + correction, advantage


@fused("returns.explained_variance", "headrace.bindings.rng_returns_cpu")
def explained_variance(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """1 - Var(target - prediction) / Var(target) over valid entries: 1 is perfect, 0 no better than a constant.

    valid: bool of their shape. 0 where the target does not vary, such as in a single step. Raises ValueError where the
    shapes differ.
    """
    _check("prediction", prediction, target=target, valid=valid)
    error = target - prediction
    if not error.numel():
        return torch.zeros((), device=error.device)
    wide = double(error)
    counted = valid.to(wide.device)
    variance = _variance(double(target), counted)
    fraction = torch.where(variance > 0, 1 - _variance(wide, counted) / variance, 0.0)
    return fraction.to(error.device, torch.result_type(error, 1.0))


@fused("returns.normalized", "headrace.bindings.rng_returns_cpu")
def normalized(x: Tensor, valid: Tensor) -> Tensor:
    """Normalise to mean 0 and variance 1 over the valid entries; 0 if these are equal. Other entries do not count, even
    if they are infinite or NaN."""
    return normalized_by(lambda *sums: None, x, valid)


def normalized_by(add: Callable[..., None], x: Tensor, valid: Tensor) -> Tensor:
    """normalized() over entries that several learners share. add: adds the other learners' sums to these, in place."""
    wide = double(x)
    counted = valid.to(wide.device)
    count, total = counted.sum(dtype=wide.dtype), torch.where(counted, wide, 0.0).sum()
    add(count, total)
    centred = wide - total / count.clamp(min=1)
    squares = torch.where(counted, centred, 0.0).square().sum()
    add(squares)
    return (centred / ((squares / count.clamp(min=1)).sqrt() + 1e-8)).to(x)


def double(x: Tensor) -> Tensor:
    """Convert x to float64. Equal float32 numbers are added without rounding there, so that their mean is exactly that
    number.

    The result is on the same device, or on the CPU for a tensor on Metal, which has no float64.
    """
    return (x.cpu() if x.device.type == "mps" else x).double()


def projected(probability: Tensor, returns: Tensor, atoms: Tensor) -> Tensor:
    """Project a distribution over `returns` onto atoms, [M, B]: eq. 7 of Bellemare et al. 2017, arXiv:1707.06887.

    probability, returns: [M, B], returns between the first and the last atom. atoms: [M] or [M, 1], evenly spaced.
    """
    place = (returns - atoms[0]) * ((len(atoms) - 1) / (atoms[-1] - atoms[0]))
    lower = place.floor().nan_to_num().clamp(0, len(atoms) - 2)  # NaN is no place, and goes on as a probability
    above = probability * (place - lower)
    found = torch.zeros_like(probability).scatter_add(0, lower.long(), probability - above)
    return found.scatter_add(0, lower.long() + 1, above)


def categorical_loss(
    logits: Tensor,
    following: Tensor,
    reward: Tensor,
    discount: Tensor,
    weight: Tensor,
    atoms: Tensor,
) -> Tensor:
    """Sum of the critics' cross-entropies with the target, weighted by row. The target is the distribution of the
    target critic with the lowest value: its returns are reward + discount * atom, projected onto the atoms.

    logits: [C, B, M]. following: logits of the target critics for the next observation and action, without a gradient.
    reward, discount, weight: [B]. atoms: [M].
    """
    probability = following.softmax(2)
    values = (probability * atoms).sum(2)
    lowest, value = probability[0], values[0]
    for other, of_other in zip(probability[1:], values[1:], strict=True):
        lowest = torch.where((of_other < value).unsqueeze(1), other, lowest)
        value = value.minimum(of_other)
    returns = (reward + discount * atoms.unsqueeze(1)).clamp(atoms[0], atoms[-1])
    target = projected(lowest.t(), returns, atoms).t()
    return -((target * logits.log_softmax(2)).sum(2) @ weight).sum()


def _variance(x: Tensor, valid: Tensor) -> Tensor:
    """Variance over the valid entries, float64; the other entries may be infinite or NaN."""
    # the largest is subtracted first, so that equal entries have a variance of exactly 0
    x = torch.where(valid, x - torch.where(valid, x, -torch.inf).max(), 0.0)
    count = valid.sum().clamp(min=1)
    return torch.where(valid, x - x.sum() / count, 0.0).square().sum() / count


def _check(name: str, first: Tensor, **others: Tensor) -> None:
    """Raise ValueError where another column has not the first one's shape, TypeError where flags are not bool."""
    hint = " (of a column with a bootstrap row pass [:-1] as value and [1:] as next_value)"
    for other, column in others.items():
        if column.shape != first.shape:
            raise ValueError(
                f"{other} has shape {tuple(column.shape)}, {name} {tuple(first.shape)}: they must be equal"
                + (hint if "value" in other else "")
            )
        if other in FLAGS and column.dtype != torch.bool:
            raise TypeError(f"{other} has the dtype {column.dtype}: flags are torch.bool, as {other}.bool() gives them")
