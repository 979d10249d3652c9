"""Random network distillation: a bonus for new observations. Burda et al. 2019, arXiv:1810.12894.

A predictor learns the outputs of a fixed random network. Its error on an observation is the bonus of the step that led
there. It is large if the predictor has learned from few similar observations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.intrinsic.rnd_network import RNDNetwork
from headrace.algorithms.on_policy import OnPolicy, Targets, learn_minibatches
from headrace.algorithms.reduce import number_of_minibatches, one_learner
from headrace.core import rng
from headrace.core.returns import gae
from headrace.data.rollout import Rollout, flatten
from headrace.data.spaces import Space
from headrace.policies.normalization import Moments, RunningStatistics

LEARNED_ENVS = 32  # default for the number of environments that the predictor learns from: appendix A.4 of the paper
MINIBATCH = 256  # rows of a minibatch of predictor and critic, if the algorithm has no minibatches
EXTRINSIC = 2.0  # weight of the reward's advantages, the paper's
METRICS = ("prediction_loss", "intrinsic_value_loss")


def rnd_loss(network: RNDNetwork, batch: dict[str, Any], config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of predictor and critic on a minibatch, and its parts.

    batch: normalised observations before (`inputs`) and after a step (`next`), `wanted` of the fixed network there,
    `share`: 1 / (share that the predictor learns from) at rows that it learns from, else 0; `returns`, `weight`.
    """
    weight = batch["weight"]
    prediction_loss = (network.error(batch["next"], batch["wanted"]) * batch["share"]) @ weight
    value_loss = (network.value(batch["inputs"]) - batch["returns"]).square() @ weight
    return prediction_loss + value_loss, dict(zip(METRICS, (prediction_loss, value_loss), strict=True))


def learn_from_rows(
    loss: Any, network: Any, optimizer: Adam, columns: dict[str, Any], algorithm: OnPolicy[Any], rollout: Rollout
) -> dict[str, Tensor]:
    """Take gradient steps along a loss of a rollout's rows, in the algorithm's epochs and minibatches. An algorithm
    without these, such as A2C, takes one epoch in minibatches of MINIBATCH rows. Returns the means of the loss's
    metrics."""
    config = algorithm.config
    size, epochs = getattr(config, "minibatch_size", MINIBATCH), getattr(config, "epochs", 1)
    number = number_of_minibatches(rollout.reward.numel(), size, 1, one_learner)
    order = algorithm.permutation(rollout, epochs)
    found = learn_minibatches(loss, network, optimizer, columns, order, number, config)
    return {name: x.mean() for name, x in found.items()}


class RND:
    """The bonus of an algorithm: networks, their optimizer, and the running deviation of the bonus's returns."""

    with_critic = True

    def __init__(self, space: Space, config: Any, seed: int, device: torch.device | str) -> None:
        sizes = (config.intrinsic_hidden, config.intrinsic_features)
        self.seed, self.network = seed, RNDNetwork(space, *sizes, seed, self.with_critic).to(device)
        self.optimizer = Adam(self.network.learned(), config.learning_rate)
        self.statistics = RunningStatistics(1).to(device)
        self.discounted = torch.zeros(0, device=device)  # sum of each environment's bonuses so far, [N]

    def process(self, algorithm: OnPolicy[Any], rollout: Rollout) -> tuple[Targets, dict[str, Tensor]]:
        """Targets of a rollout with the weighted sum of the advantages of reward and bonus (section 2.3 of the paper),
        and metrics. Predictor and critic learn from the rollout."""
        targets = algorithm.process(rollout)
        config = algorithm.config
        self.follow()
        bonus, columns, metrics = self.targets(rollout, config, algorithm.iteration)
        metrics |= learn_from_rows(rnd_loss, self.network, self.optimizer, columns, algorithm, rollout)
        weight = EXTRINSIC if config.extrinsic_coef is None else config.extrinsic_coef
        return targets._replace(advantage=weight * targets.advantage + config.intrinsic_coef * bonus), metrics

    @torch.no_grad()
    def targets(
        self, rollout: Rollout, config: Any, iteration: Any
    ) -> tuple[Tensor, dict[str, Any], dict[str, Tensor]]:
        """Intrinsic advantages [T, N], the columns of rnd_loss, and metrics. Updates the statistics with the rollout.

        A reset counts as a step: returns continue over the ends of episodes (section 2.3 of the paper).
        """
        network, shape, gamma = self.network, rollout.reward.shape, config.intrinsic_gamma
        encoded = network.encoder(flatten(rollout.observation)).view(shape[0] + 1, shape[1], -1)
        valid = rollout.valid[:-1]
        network.normalizer.update(encoded[1:].flatten(0, 1), valid.flatten())
        seen = network.normalizer(encoded.flatten(0, 1))
        after = seen[shape[1] :]
        wanted = network.target(after).t().contiguous()
        bonus = torch.where(valid, network.error(after, wanted).view(shape), 0.0)
        self._count(bonus, gamma)
        bonus = bonus / self.deviation()
        value, never = network.value(seen).view(-1, shape[1]), torch.zeros(shape, dtype=torch.bool, device=valid.device)
        advantage = gae(bonus, value[:-1], value[1:], never, never, gamma, getattr(config, "gae_lambda", 1.0))
        share = config.intrinsic_share or min(1.0, LEARNED_ENVS / shape[1])
        counted = (iteration * shape[0], shape[0], shape[1], 1)
        drawn = rng.uniform(self.seed, rng.Purpose.INTRINSIC, *counted, valid.device)[..., 0]
        columns = {
            "inputs": seen[: -shape[1]],
            "next": after,
            "wanted": wanted,
            "share": ((drawn < share) & valid).flatten() / share,
            "returns": (advantage + value[:-1]).flatten(),
            "valid": torch.ones(valid.numel(), device=valid.device),  # also at resets
        }
        return advantage, columns, {"intrinsic_reward": bonus.sum() / valid.sum().clamp(min=1)}

    def _count(self, bonus: Tensor, gamma: float) -> None:
        """Update the statistics of returns with the bonuses [T, N] of a rollout; they run forward in time, as in the
        paper's code."""
        if self.discounted.shape != bonus[0].shape:
            self.discounted = torch.zeros_like(bonus[0])
        back = bonus.flip(0)
        back[-1] += gamma * self.discounted
        none = torch.zeros_like(back)
        returns = gae(back, none, none, none.bool(), none.bool(), gamma, 1.0)
        self.discounted.copy_(returns[0])
        self.statistics.merge(Moments.of(returns.view(-1, 1), torch.ones_like(returns, dtype=torch.bool).flatten()))

    def deviation(self) -> Tensor:
        """The running deviation of the bonus's discounted returns, by which bonuses are divided."""
        return (self.statistics.variance() + 1e-8).sqrt().float()

    def follow(self) -> None:
        """Learn the network's present parameters, since its modules and their parameters may have been replaced."""
        if not self.optimizer.follow(self.network.learned()):
            raise ValueError("predictor and critic of an intrinsic bonus have other sizes now: make a new algorithm")

    def state_dict(self) -> dict[str, Any]:
        """Copies of networks, optimizer and statistics."""
        parts = {"network": self.network, "statistics": self.statistics}
        own = {name: {k: x.clone() for k, x in part.state_dict().items()} for name, part in parts.items()}
        return {**own, "optimizer": self.optimizer.state_dict(), "discounted": self.discounted.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from state_dict(), bit for bit."""
        self.network.load_state_dict(state["network"])
        self.statistics.load_state_dict(state["statistics"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.discounted.shape != state["discounted"].shape:
            self.discounted = torch.zeros_like(state["discounted"], device=self.discounted.device)
        self.discounted.copy_(state["discounted"])
