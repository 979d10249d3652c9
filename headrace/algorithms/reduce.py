"""Sums over learners that an algorithm needs, and quantities that follow from such sums.

A learner has a part of the environments' columns. Its losses are means over the rows of all learners, and its gradient
is its part of their sum. Gradients, counts of rows, moments and metrics of all learners are added. A single learner
adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce as fold
from typing import Any

import torch
from torch import Tensor, nn

from headrace.core import returns, rng
from headrace.data.minibatches import count
from headrace.policies.normalization import Moments, normalizers

# Adds tensors, in place, to those of the other learners. All learners call it in the same order for tensors of the same
# shapes, and get the same bits. With several learners it has `rank`, this learner's, `size`, their number, and
# `columns`, the number of columns of each.
Reduce = Callable[..., None]


def loss_and_metrics(returned: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Convert the result of an algorithm's loss, a scalar or a scalar and a dict, to tensors: the loss and its metrics.

    Metrics are tensors or numbers, as of `.item()`; those without dimensions are floats. Raises TypeError for all else.
    """
    loss, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    if not isinstance(loss, Tensor) or loss.dim() or not isinstance(metrics, dict):
        raise TypeError(f"a loss returns a scalar, or (scalar, metrics) with a dict of metrics, got {_kinds(returned)}")
    return loss, {name: _metric(name, x, loss) for name, x in metrics.items()}


def _metric(name: str, value: Any, loss: Tensor) -> Tensor:
    """Convert a metric to a tensor on the loss's device."""
    if isinstance(value, Tensor):
        return value if value.dim() or value.is_floating_point() else value.float()
    try:
        return torch.full((), float(value), device=loss.device)
    except (TypeError, ValueError):
        raise TypeError(
            f"the metric {name!r} of the loss is {value!r}, of the class {type(value).__name__}: give a number or a "
            "tensor, or leave it out"
        ) from None


def _kinds(returned: Any) -> str:
    """Describe what a loss has returned, in words."""
    if isinstance(returned, Tensor):
        return f"a tensor of shape {[*returned.shape]}"
    if isinstance(returned, tuple):
        return f"({', '.join(map(_kinds, returned))})"
    return f"an object of the class {type(returned).__name__}"


def one_learner(*tensors: Tensor) -> None:
    """The Reduce of a single learner, which does not change the tensors."""


def size_of(reduce: Reduce) -> int:
    """The number of learners."""
    return getattr(reduce, "size", 1)


def rank_of(reduce: Reduce) -> int:
    """The number of this learner, 0 to size - 1."""
    return getattr(reduce, "rank", 0)


def of_each(own: Tensor, reduce: Reduce) -> Tensor:
    """Gather a tensor of each learner, in order of rank: [size, ...]. All must have the same shape."""
    each = torch.zeros(size_of(reduce), *own.shape, dtype=own.dtype, device=own.device)
    each[rank_of(reduce)] = own
    reduce(each)
    return each


def gathered(own: Tensor, reduce: Reduce) -> Tensor:
    """Gather the rows of all learners, [R, ...], in order of rank. own: this learner's rows, [r, ...], or none."""
    counts = of_each(torch.tensor(len(own)), reduce).tolist()
    found, first = own.new_zeros(sum(counts), *own.shape[1:]), sum(counts[: rank_of(reduce)])
    if len(found):
        found[first : first + len(own)] = own
        reduce(found)
    return found


def all_agree(own: bool, reduce: Reduce) -> bool:
    """Tell whether the condition is true at all learners, which call this at the same point."""
    if size_of(reduce) == 1:
        return own
    number = torch.tensor(int(own))
    reduce(number)
    return int(number) == size_of(reduce)


def number_of_minibatches(rows: int, minibatch_size: int, unit: int, reduce: Reduce) -> int:
    """minibatches.count() for the rows of all learners. Each has this number of minibatches, of its own rows."""
    if size_of(reduce) == 1:
        return count(rows, minibatch_size, unit)
    columns = reduce.columns  # type: ignore[attr-defined]
    steps = rows // columns[rank_of(reduce)]
    return min(count(steps * sum(columns), minibatch_size, unit), steps * min(columns) // unit)


def mean_weights(valid: Tensor, reduce: Reduce = one_learner) -> Tensor:
    """1 / number of valid rows of all learners, 0 at others: `x @ mean_weights(valid)` is the mean over valid rows."""
    number = valid.sum()
    reduce(number)
    return valid / number.clamp(min=1)


def shuffle_seed(seed: int, reduce: Reduce) -> int:
    """The seed of a learner's shuffles: each has one of its own, the first that of a single learner."""
    return rng.seed(seed, rng.Purpose.SHUFFLE, rank_of(reduce)) if rank_of(reduce) else seed


def normalized(x: Tensor, valid: Tensor, reduce: Reduce = one_learner) -> Tensor:
    """Same as returns.normalized(), over the valid rows of all learners."""
    return returns.normalized(x, valid) if reduce is one_learner else returns.normalized_by(reduce, x, valid)


def means(metrics: Mapping[str, Tensor], last: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """The mean of each metric over all minibatches. last: metrics that are averaged only over a number of last ones."""
    if len({x.shape for x in metrics.values()}) == 1:
        # at once: of tensors this short each call takes longer than its work
        found = dict(zip(metrics, torch.stack([*metrics.values()]).mean(1).unbind(), strict=True))
    else:
        found = {name: x.mean() for name, x in metrics.items()}
    return found | {name: metrics[name][-count:].mean() for name, count in (last or {}).items() if name in metrics}


def merged(moments: Moments, reduce: Reduce) -> Moments:
    """Moments of the rows of all learners, merged in order of rank."""
    if size_of(reduce) == 1:
        return moments
    size = len(moments.mean)
    own = torch.cat((moments.count.view(1), moments.mean, moments.squares))
    parts = (Moments(each[0], each[1 : 1 + size], each[1 + size :]) for each in of_each(own, reduce))
    return fold(Moments.merge, parts)


@contextmanager
def merging(policy: nn.Module, reduce: Reduce) -> Iterator[None]:
    """Update the policy's normalisers within this block with the rows of all learners."""
    if size_of(reduce) == 1:
        yield
        return
    found = normalizers(policy)
    for normalizer in found:
        normalizer.merged = lambda moments: merged(moments, reduce)
    try:
        yield
    finally:
        for normalizer in found:
            del normalizer.merged


def explained(value: Tensor, target: Tensor, valid: Tensor, reduce: Reduce) -> Tensor:
    """core.returns.explained_variance() over the valid rows of all learners; value, target, valid: [T, N]."""
    valued = torch.stack((target, target - value), -1).flatten(0, 1)
    return explained_by(merged(Moments.of(valued, valid.flatten()), reduce)).to(value)


def explained_by(moments: Moments) -> Tensor:
    """The explained variance, float64 [], from the moments of (returns, returns - value)."""
    variance, unexplained = moments.squares
    return torch.where(variance > 0, 1 - unexplained / variance, 0.0)
