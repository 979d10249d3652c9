"""Random network distillation for algorithms with a replay buffer: the bonus is added to the reward at sampling.

A transition gets the bonus of the present predictor, rather than that of the time when it was collected.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.intrinsic.rnd import METRICS, RND
from headrace.algorithms.intrinsic.rnd_network import RNDNetwork
from headrace.algorithms.on_policy import learn_minibatches
from headrace.data.replay import Batch
from headrace.data.rollout import Rollout, flatten


def prediction_loss(network: RNDNetwork, batch: dict[str, Any], config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The predictor's mean squared error on a minibatch of normalised observations `next`, and the same as a metric.

    batch: `wanted`, outputs of the fixed network, and `weight` too."""
    loss = network.error(batch["next"], batch["wanted"]) @ batch["weight"]
    return loss, {METRICS[0]: loss}


class Clipping:
    """The setting that learn_minibatches() reads: no limit of the gradient's norm."""

    max_grad_norm = float("inf")


def learned(
    loss: Any, network: Any, optimizer: Adam, columns: dict[str, Tensor], batches: Batch, bonus: Tensor
) -> dict[str, Tensor]:
    """Take a gradient step on each of the batches [G, B], whose columns are [G * B, ...]. Returns the means of the
    loss' metrics, and of the bonus [G, B] over valid rows."""
    valid = (batches.weight.flatten() > 0).float()
    order = torch.arange(len(valid), device=valid.device).unsqueeze(0)
    given: Any = (network, optimizer, {**columns, "valid": valid}, order, len(bonus), Clipping)
    metrics = {name: x.mean() for name, x in learn_minibatches(loss, *given).items()}
    return {"intrinsic_reward": (bonus.flatten() @ valid) / valid.sum().clamp(min=1), **metrics}


class ReplayRND(RND):
    """The bonus of an algorithm with a replay buffer. Its value is learned by the algorithm's own critics."""

    with_critic = False

    @torch.no_grad()
    def observe(self, rollout: Rollout, gamma: float) -> None:
        """Update the statistics of observations, and of the bonus' returns, with steps that were collected."""
        valid, after = rollout.valid[:-1], self.network.encoder(flatten(rollout.observation[1:]))
        self.network.normalizer.update(after, valid.flatten())
        seen = self.network.normalizer(after)
        error = self.network.error(seen, self.network.target(seen).t())
        self._count(torch.where(valid, error.view(valid.shape), 0.0), gamma)

    def rewarded(self, batches: Batch, config: Any) -> tuple[Batch, dict[str, Tensor]]:
        """Batches [G, B] with the bonus in their rewards, and metrics. The predictor takes a step on each of them."""
        self.follow()
        network, shape = self.network, batches.reward.shape
        with torch.no_grad():
            seen = network.normalizer(network.encoder(flatten(batches.next_observation)))
            wanted = network.target(seen).t().contiguous()
            bonus = network.error(seen, wanted).view(shape) / self.deviation()
        weight = 1.0 if config.extrinsic_coef is None else config.extrinsic_coef
        columns = {"next": seen, "wanted": wanted}
        reward = weight * batches.reward + config.intrinsic_coef * bonus
        metrics = learned(prediction_loss, network, self.optimizer, columns, batches, bonus)
        return batches._replace(reward=reward), metrics
