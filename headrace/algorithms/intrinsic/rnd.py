"""Random network distillation: a bonus for observations that are new. Burda et al. 2019, arXiv:1810.12894.

A predictor learns the outputs of a network that stays as it was made. Its error on an observation is the bonus of the
step that led there: it is large where few observations like it were learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import OnPolicy, Targets, learn_minibatches
from headrace.algorithms.reduce import number_of_minibatches, one_learner
from headrace.core import rng
from headrace.core.returns import gae
from headrace.core.text import shown
from headrace.data.rollout import Rollout, flatten
from headrace.data.spaces import Space, is_image, leaves
from headrace.policies.networks import MLP, Readout, make_encoder
from headrace.policies.normalization import Moments, ObservationNormalizer, RunningStatistics

LIMIT = 5.0  # of normalised observations, section 2.4 of the paper
LEARNED_ENVS = 32  # environments of whose rows the predictor learns at most, by default: appendix A.4 of the paper
MINIBATCH = 256  # rows that predictor and critic learn from at a time, where the algorithm has no minibatches
METRICS = ("prediction_loss", "intrinsic_value_loss")


class RNDNetwork(nn.Module):
    """The fixed network, its predictor, and the critic of intrinsic returns, each an MLP of its own.

    hidden: sizes of their hidden layers; the predictor has two layers more, as in the paper. features: outputs of the
    fixed network. with_critic: False where the bonus is part of the reward. Weights are a function of the seed.
    Raises ValueError for observations that are images.
    """

    sequence_length = 1  # rows of each observation alone, also where the policy is recurrent

    def __init__(self, space: Space, hidden: Sequence[int], features: int, seed: int, with_critic: bool = True) -> None:
        super().__init__()
        if any(is_image(leaf) for _, leaf in leaves(space)):
            raise ValueError(f"intrinsic='rnd' is for observations without images, got {shown(space)}: leave it out")
        generator = rng.generator(seed, rng.Purpose.INTRINSIC)
        self.encoder = make_encoder(space, False, generator)
        size, deep = self.encoder.size, (*hidden, hidden[-1], hidden[-1])
        self.normalizer = ObservationNormalizer(size, LIMIT)
        self.target = nn.Sequential(MLP(size, hidden, "relu", generator), Readout(hidden[-1], features, 1.0, generator))
        self.predictor = nn.Sequential(MLP(size, deep, "relu", generator), Readout(deep[-1], features, 1.0, generator))
        self.critic = None
        if with_critic:
            self.critic = nn.Sequential(MLP(size, hidden, "relu", generator), Readout(hidden[-1], 1, 1.0, generator))
        self.target.requires_grad_(False)

    def value(self, seen: Tensor) -> Tensor:
        """Intrinsic value of normalised observations [R, F]: [R]."""
        assert self.critic is not None
        return self.critic(seen).flatten()  # type: ignore[no-any-return]

    def error(self, seen: Tensor, wanted: Tensor) -> Tensor:
        """Mean squared error of the predictor on normalised observations [R, F], of the outputs `wanted` [R, features]
        of the fixed network: [R]."""
        return (self.predictor(seen).t() - wanted).square().mean(1)  # type: ignore[no-any-return]

    def learned(self) -> list[nn.Parameter]:
        """Parameters of predictor and critic."""
        return [*self.predictor.parameters(), *(() if self.critic is None else self.critic.parameters())]


def rnd_loss(network: RNDNetwork, batch: dict[str, Any], config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of predictor and critic on a minibatch, and its parts.

    batch: normalised observations before (`inputs`) and after a step (`next`), `wanted` of the fixed network there,
    `share`: 1 / (share that the predictor learns from) at rows that it learns from, else 0; `returns`, `weight`.
    """
    weight = batch["weight"]
    prediction_loss = (network.error(batch["next"], batch["wanted"]) * batch["share"]) @ weight
    value_loss = (network.value(batch["inputs"]) - batch["returns"]).square() @ weight
    return prediction_loss + value_loss, dict(zip(METRICS, (prediction_loss, value_loss), strict=True))


class RND:
    """The bonus of one algorithm: networks, their optimizer, and the running deviation of the bonus' returns."""

    with_critic = True

    def __init__(self, space: Space, config: Any, seed: int, device: torch.device | str) -> None:
        sizes = (config.intrinsic_hidden, config.intrinsic_features)
        self.seed, self.network = seed, RNDNetwork(space, *sizes, seed, self.with_critic).to(device)
        self.optimizer = Adam(self.network.learned(), config.learning_rate)
        self.statistics = RunningStatistics(1).to(device)
        self.discounted = torch.zeros(0, device=device)  # sum of each environment's bonuses so far, [N]

    def learn(self, algorithm: OnPolicy[Any], rollout: Rollout, targets: Targets) -> tuple[Targets, dict[str, Tensor]]:
        """Let predictor and critic learn from a rollout. Returns targets with the weighted sum of the advantages of
        reward and bonus (section 2.3 of the paper), and metrics."""
        config = algorithm.config
        self.follow()
        bonus, columns, metrics = self.targets(rollout, config, algorithm.iteration)
        # an algorithm without minibatches, such as A2C, takes one gradient step on each rollout
        size = getattr(config, "minibatch_size", MINIBATCH)
        number = number_of_minibatches(bonus.numel(), size, 1, one_learner)
        order = algorithm.permutation(rollout, getattr(config, "epochs", 1))
        found = learn_minibatches(rnd_loss, self.network, self.optimizer, columns, order, number, config)  # type: ignore[arg-type]
        advantage = config.extrinsic_coef * targets.advantage + config.intrinsic_coef * bonus
        return targets._replace(advantage=advantage), metrics | {name: x.mean() for name, x in found.items()}

    @torch.no_grad()
    def targets(
        self, rollout: Rollout, config: Any, iteration: Any
    ) -> tuple[Tensor, dict[str, Any], dict[str, Tensor]]:
        """Intrinsic advantages [T, N], the columns of rnd_loss, and metrics. Updates the statistics with the rollout.

        A reset is a step like others: returns go on over the ends of episodes (section 2.3 of the paper).
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
        """The running deviation of the bonus' discounted returns, by which bonuses are divided."""
        return (self.statistics.variance() + 1e-8).sqrt().float()

    def follow(self) -> None:
        """Learn the parameters that the network has now: its modules and their parameters may have been replaced."""
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
