"""Objectives of a gradient step on a minibatch of the replay buffer: losses, and the parameters that they train.

Losses are plain functions `loss(networks, batch, config)` that return a scalar and a dict. Scalars of the dict are
metrics: means over valid rows. Its tensors with a number for each row become columns of `batch` for the following
losses. `batch` has the columns of headrace.data.replay.Batch and `random`, uniform draws [B, num_draws()]. Its `weight`
[B] is each row's weight in a mean: `x @ batch["weight"]` is the mean over valid rows. With several learners it is the
mean over the rows of all, and the losses and metrics of each are its part of the sums.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam, backward
from headrace.algorithms.reduce import Reduce, loss_and_metrics, one_learner
from headrace.core.fused import fused
from headrace.data.replay import Batch
from headrace.data.rollout import tree_map
from headrace.policies.base import Policy
from headrace.policies.flat_parameters import polyak

Rows: TypeAlias = dict[str, Any]
OffPolicyLoss: TypeAlias = Callable[[Any, Rows, Any], tuple[Tensor, dict[str, Tensor]]]  # of (networks, batch, config)
TD_ERROR = "td_error"  # the column of a loss that priorities of prioritised replay follow
FEATURES = "features"


class Learned(NamedTuple):
    """The networks that losses receive. target: the target network, or the policy itself if there is none."""

    policy: Any
    target: Any
    log_temperature: nn.Parameter | None = None


class Objective(NamedTuple):
    """A loss, and the optimizers that take steps along its gradient.

    optimizers: each takes a step, with gradients clipped to max_norm. targets: pairs of buffers [P]; after the step the
    first of each, a target network's, moves towards the second by the fraction tau, which may differ between gradient
    steps: [G]. every: number of the algorithm's gradient steps for one step along this loss.
    """

    loss: OffPolicyLoss
    optimizers: tuple[Adam, ...]
    targets: tuple[tuple[Tensor, Tensor], ...] = ()
    tau: float | Tensor = 1.0
    max_norm: float = math.inf
    every: int = 1


@fused("learning from replay", "headrace.bindings.compiled.compiled_objectives")
def take_steps(
    objectives: Sequence[Objective],
    networks: Learned,
    batches: Batch,
    random: Tensor,
    config: Any,
    since: int = 0,
    reduce: Reduce = one_learner,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Take a gradient step on each of G batches [G, B]. Returns the means of the metrics, each over the steps that
    measured it, and the column TD_ERROR [G, B], if a loss has it.

    random: [G, B, draws]. since: number of gradient steps since all objectives last took a step together.
    """
    metrics, errors = dict[str, list[Tensor]](), list[Tensor]()
    for g, batch in enumerate(split_batches(batches)):
        rows: Rows = {**batch._asdict(), "weight": mean_weights(batch.weight, reduce), "random": random[g]}
        del rows["rows"]  # places in the ring
        for objective in objectives:
            if (since + g + 1) % objective.every:
                continue
            loss, found = loss_and_metrics(objective.loss(networks, rows, config))
            backward(loss, [p for optimizer in objective.optimizers for p in optimizer.parameters])
            rows |= {name: x.detach() for name, x in found.items() if x.dim()}
            measured = {name: x.detach().clone() for name, x in found.items() if not x.dim()}
            reduce(*(optimizer.gradient for optimizer in objective.optimizers), *measured.values())
            for optimizer in objective.optimizers:
                optimizer.step(objective.max_norm)
            for target, own in objective.targets:
                polyak(target, own, objective.tau[g] if isinstance(objective.tau, Tensor) else objective.tau)
            for name, x in measured.items():
                metrics.setdefault(name, []).append(x)
        errors += [rows[TD_ERROR]] if TD_ERROR in rows else []
    means = {name: torch.stack(found).mean() for name, found in metrics.items()}
    return means, torch.stack(errors) if errors else None


def mean_weights(weight: Tensor, reduce: Reduce = one_learner) -> Tensor:
    """weight / number of rows with weight, of all learners, [B]: `x @ mean_weights(weight)` is the weighted mean over
    those rows."""
    count = weight.count_nonzero()
    reduce(count)
    return weight / count.clamp(min=1)


def mean_metrics(found: Sequence[tuple[dict[str, Tensor], dict[str, int]]]) -> dict[str, Tensor]:
    """Means of metrics, each of which is the mean over a number of measurements."""
    if len(found) < 2:
        return found[0][0] if found else {}
    totals = sum((Counter(counts) for _, counts in found), Counter[str]())
    parts = {
        name: [metrics[name] * (counts[name] / total) for metrics, counts in found if name in metrics]
        for name, total in totals.items()
    }
    return {name: torch.stack(each).sum(0) for name, each in parts.items()}


def split_batches(batches: Batch) -> list[Batch]:
    """Split batches [G, B] into a list of G batches [B]."""

    def one(g: int) -> Batch:
        return Batch._make(tree_map(lambda x: x[g], column) for column in batches)

    return [one(g) for g in range(len(batches.reward))]


def keep_features(encoded: Tensor) -> dict[str, Tensor]:
    """The column of encoded observations for the following losses, if the encoder is learned. Only the critics' loss
    trains it, and computing the features again would take long."""
    return {FEATURES: encoded.detach()} if encoded.requires_grad else {}


def features(policy: Policy, batch: Rows) -> Tensor:
    """Encoded observations [B, F]. No gradient of them reaches the encoder."""
    if FEATURES in batch:
        return batch[FEATURES]  # type: ignore[no-any-return]
    with torch.no_grad():
        return policy.encoder(batch["observation"])  # type: ignore[no-any-return, operator]
