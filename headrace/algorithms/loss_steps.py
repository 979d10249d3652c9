"""Learning from a loss over rows of a rollout: its gradient, and steps of the optimizer on minibatches.

A loss is a plain function `loss(policy, batch, config)` that returns a scalar and a dict of metrics, scalars too, which
are means over the rows that count. `batch` has the rows of the columns that are learned from, and "weight" [B]: 1 /
number of valid rows, 0 at others, so that `x @ batch["weight"]` is the mean over valid rows. With several learners that
number is of the rows of all, and each one's loss and metrics are its part of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.reduce import Reduce, mean_weights, one_learner
from headrace.core.device import known
from headrace.core.fused import fused
from headrace.data.minibatches import minibatches
from headrace.policies.base import Policy

Batch: TypeAlias = dict[str, Any]
Loss: TypeAlias = Callable[[Any, Batch, Any], tuple[Tensor, dict[str, Tensor]]]
Limit: TypeAlias = tuple[str, float]


@fused("learning", "headrace.bindings.compiled_learning")
def learn_minibatches(
    loss: Loss,
    policy: Policy,
    optimizer: Adam,
    columns: Mapping[str, Any],
    order: Tensor,
    number: int,
    config: Any,
    reduce: Reduce = one_learner,
    limit: Limit | None = None,
) -> dict[str, Tensor]:
    """A step of the optimizer on each of `number` minibatches of an epoch. Returns metrics, [minibatches] each, this
    learner's part of them.

    columns: [R, ...], "valid" among them, float32. order: int64 [epochs, R], of rows; those of a sequence follow each
    other. limit: a metric, and a value; from the minibatch on where it is larger no step is taken, and the epoch is the
    last.
    """
    skip = torch.zeros((), device=order.device) if limit else None
    found: list[dict[str, Tensor]] = []
    for rows in order:
        for batch in minibatches(columns, rows, number, policy.sequence_length):
            value, metrics = loss(policy, batch | {"weight": mean_weights(batch["valid"], reduce)}, config)
            value.backward()
            found.append({name: x.detach() for name, x in metrics.items()})
            if limit is None or skip is None:
                reduce(optimizer.gradient)
            else:
                measured = found[-1][limit[0]].clone()
                reduce(optimizer.gradient, measured)
                skip = torch.maximum(skip, (measured > limit[1]).to(skip.dtype))
            optimizer.step(config.max_grad_norm, skip)
        if skip is not None and known(skip):
            break  # all further steps would be skipped
    return {name: torch.stack([metrics[name] for metrics in found]) for name in found[0]}


@fused("gradient", "headrace.bindings.compiled_learning")
def loss_gradient(
    loss: Loss, policy: Policy, columns: Mapping[str, Any], config: Any, reduce: Reduce = one_learner
) -> dict[str, Tensor]:
    """Add the gradient of a loss over all rows to the parameters' .grad. Returns this learner's part of the metrics."""
    value, metrics = loss(policy, {**columns, "weight": mean_weights(columns["valid"], reduce)}, config)
    value.backward()
    return {name: x.detach() for name, x in metrics.items()}
