"""TQC: SAC with critics that predict quantiles of the return. Targets leave out the largest of all critics' quantiles.

Kuznetsov et al. 2020, "Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional Quantile
Critics", arXiv:2005.04269.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import (
    ActorQConfig,
    EntropyConfig,
    OffPolicyConfig,
    StochasticActorConfig,
    TargetNetworkConfig,
)
from headrace.algorithms.objectives import Learned, Objective, OffPolicyLoss, Rows, features, keep_features
from headrace.algorithms.off_policy import OffPolicy, actor_q, make_networks
from headrace.algorithms.sac import objectives, with_temperature
from headrace.core.types import Json
from headrace.data.spaces import Box, Space
from headrace.policies.actor_q import ActorQ


@dataclass(frozen=True, kw_only=True)
class TQCConfig(EntropyConfig, StochasticActorConfig, TargetNetworkConfig, ActorQConfig, OffPolicyConfig):
    """TQC's settings. Raises ValueError for one out of range."""

    learning_rate: float = 3e-4  # of Adam, for actor, critics and temperature, at the start of training
    critics: int = 5  # number of critics, N in the paper
    quantiles: int = 25  # of the return's distribution, that each critic predicts, M in the paper
    dropped_quantiles: int = 2  # for each critic, of the largest of all critics together, left out of targets
    critic_hidden: tuple[int, ...] = (512, 512, 512)  # sizes of the critics' hidden layers; hidden: the actor's

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        if self.quantiles < 2:
            raise ValueError(f"quantiles must be 2 or more, got {self.quantiles}: sac has critics of one value")
        if not 0 <= self.dropped_quantiles < self.quantiles:
            given = f"{self.dropped_quantiles} with quantiles={self.quantiles}"
            raise ValueError(f"dropped_quantiles must be 0 or more and fewer than the quantiles, got {given}")


class TQC(OffPolicy[TQCConfig]):
    """Learns a stochastic policy from a replay buffer, with truncated targets in place of a minimum of critics."""

    name = "tqc"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)
    policy_arguments: ClassVar[Json] = {"deterministic": False}
    policy: ActorQ
    config = TQCConfig()
    critic_loss: OffPolicyLoss | None = None  # in place of the function of that name: a staticmethod of a subclass
    actor_loss: OffPolicyLoss | None = None

    def __init__(self, policy: ActorQ, config: TQCConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.log_temperature = nn.Parameter(torch.full_like(policy.center[:1], math.log(self.config.temperature)))
        self.networks = networks = make_networks(
            policy, self.config, deterministic=False, quantiles=self.config.quantiles
        )
        self.temperature = Adam([self.log_temperature], self.config.learning_rate, 1e-8)
        optimizers = (networks.actor_optimizer, networks.critic_optimizer, self.temperature)
        self.optimizers = dict(zip(("actor", "critics", "temperature"), optimizers, strict=True))
        self.buffers = {"target": networks.target_critics, "log_temperature": self.temperature.flat}
        self.explore()

    @classmethod
    def make_policy(cls, config: TQCConfig, observation_space: Space, action_space: Space, seed: int) -> ActorQ:
        own = {name: getattr(config, name) for name in ("critics", "quantiles")}
        return actor_q(config, observation_space, action_space, seed, **cls.policy_arguments, **own)

    def num_draws(self) -> int:
        return 2 * self.policy.num_draws

    def explore(self) -> None:
        """Random actions until learning starts, unless use_sde_at_warmup; then the policy's own."""
        self.policy.random.fill_((self.rows < self.config.learning_starts) * (not self.config.use_sde_at_warmup))

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return self.networks.learned()

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        own = self.critic_loss or critic_loss, self.actor_loss or actor_loss
        return objectives(self.networks, self.temperature, self.config, *own)


def critic_loss(networks: Learned, batch: Rows, config: TQCConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the critics and the encoder, towards the targets y of section 3.3.

    random: of the next actions, then of the current ones.
    """
    policy, target, log_temperature = networks
    weight, temperature = batch["weight"], log_temperature.detach().exp()  # type: ignore[union-attr]
    observation = policy.encoder(batch["observation"])
    with torch.no_grad():
        next_observation = policy.encoder(batch["next_observation"])
        next_action, next_log_prob = policy.sample(next_observation, batch["random"][:, : policy.num_draws])
        pooled = target.critics(target.encoder(batch["next_observation"]), next_action)
        next_value = truncated(pooled, config.dropped_quantiles) - (temperature * next_log_prob).unsqueeze(1)
        td_target = batch["reward"].unsqueeze(1) + batch["discount"].unsqueeze(1) * next_value
    quantiles = policy.critics(observation, policy.normalize_action(batch["action"]))
    loss = quantile_huber_loss(quantiles, td_target) @ weight
    return loss, {"critic_loss": loss, "ent_coef": (temperature * weight).sum()} | keep_features(observation)


def actor_loss(networks: Learned, batch: Rows, config: TQCConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of the actor and of the temperature, as SAC's, by the mean of all quantiles."""
    policy, _, log_temperature = networks
    assert log_temperature is not None
    observation, weight = features(policy, batch), batch["weight"]
    action, log_prob = policy.sample(observation, batch["random"][:, policy.num_draws :])
    value = policy.critics(observation, action).mean((0, 2))
    loss = (log_temperature.detach().exp() * log_prob - value) @ weight
    return with_temperature(loss, log_temperature, log_prob, policy.action_size, weight, config)


def truncated(quantiles: Tensor, dropped: int) -> Tensor:
    """The smallest of each row's pooled quantiles, [B, C * (M - dropped)]. quantiles: of C critics, [C, B, M]."""
    pooled = quantiles.transpose(0, 1).flatten(1)
    return pooled.sort(1).values[:, : pooled.shape[1] - dropped * len(quantiles)]


def quantile_huber_loss(quantiles: Tensor, td_target: Tensor) -> Tensor:
    """Sum over critics of the mean quantile Huber loss of all pairs of a quantile and a target, [B].

    quantiles: [C, B, M], of the fractions (m - 1/2) / M; td_target: [B, K]. Dabney et al. 2018, arXiv:1710.10044,
    eq. 10, with kappa 1.
    """
    fraction = ((torch.arange(quantiles.shape[2], device=quantiles.device) + 0.5) / quantiles.shape[2]).unsqueeze(1)
    error = td_target.unsqueeze(1) - quantiles.unsqueeze(3)  # [C, B, M, K]
    with torch.no_grad():  # the Huber loss of u is c (u - c / 2), and its derivative c, for c = clip(u, -1, 1)
        clipped = error.clamp(-1, 1)
        slope = torch.where(error < 0, 1 - fraction, fraction).mul_(clipped)
    return torch.sub(error, clipped, alpha=0.5).mul(slope).mean((2, 3)).sum(0)
