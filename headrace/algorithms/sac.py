"""SAC: soft actor-critic with twin critics and a learned temperature. Haarnoja et al. 2018, arXiv:1812.05905."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import (
    ActorQConfig,
    AtomsConfig,
    EntropyConfig,
    OffPolicyConfig,
    StochasticActorConfig,
    TargetNetworkConfig,
)
from headrace.algorithms.objectives import (
    Learned,
    Objective,
    OffPolicyLoss,
    Rows,
    features,
    keep_features,
)
from headrace.algorithms.off_policy import Networks, OffPolicy, actor_q, make_networks
from headrace.core.returns import categorical_loss
from headrace.core.types import Json
from headrace.data.spaces import Box, Space
from headrace.policies.actor_q import ActorQ


@dataclass(frozen=True, kw_only=True)
class SACConfig(AtomsConfig, EntropyConfig, StochasticActorConfig, TargetNetworkConfig, ActorQConfig, OffPolicyConfig):
    """SAC's settings. Raises ValueError for one out of range."""

    learning_rate: float = 3e-4  # of Adam, for actor, critics and temperature, at the start of training


class SAC(OffPolicy[SACConfig]):
    """Learns a stochastic policy from a replay buffer, maximising reward and entropy."""

    name = "sac"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)
    policy_arguments: ClassVar[Json] = {"critics": 2, "deterministic": False}
    policy: ActorQ
    config = SACConfig()
    critic_loss: OffPolicyLoss | None = None  # in place of the function of that name: a staticmethod of a subclass
    actor_loss: OffPolicyLoss | None = None

    def __init__(self, policy: ActorQ, config: SACConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.log_temperature = nn.Parameter(torch.full_like(policy.center[:1], math.log(self.config.temperature)))
        self.networks = networks = make_networks(policy, self.config, deterministic=False)
        self.temperature = Adam([self.log_temperature], self.config.learning_rate, 1e-8)
        optimizers = (networks.actor_optimizer, networks.critic_optimizer, self.temperature)
        self.optimizers = dict(zip(("actor", "critics", "temperature"), optimizers, strict=True))
        self.buffers = {"target": networks.target_critics, "log_temperature": self.temperature.flat}
        self.explore()

    @classmethod
    def make_policy(cls, config: SACConfig, observation_space: Space, action_space: Space, seed: int) -> ActorQ:
        return actor_q(config, observation_space, action_space, seed, **cls.policy_arguments)

    def num_draws(self) -> int:
        return 2 * self.policy.num_draws

    def explore(self) -> None:
        """Random actions until learning starts, unless use_sde_at_warmup; then the policy's own."""
        self.policy.random.fill_((self.rows < self.config.learning_starts) * (not self.config.use_sde_at_warmup))

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return self.networks.learned()

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        return objectives(self.networks, self.temperature, self.config, self.critic_loss, self.actor_loss)


def critic_loss(networks: Learned, batch: Rows, config: SACConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the critics and the encoder: half the squared error of eq. 5, of each critic; with num_atoms the
    cross-entropy.

    random: of the next actions, then of the current ones.
    """
    policy, target, log_temperature = networks
    weight, temperature = batch["weight"], log_temperature.detach().exp()  # type: ignore[union-attr]
    observation = policy.encoder(batch["observation"])
    with torch.no_grad():  # eq. 3 and 5
        next_observation = policy.encoder(batch["next_observation"])
        next_action, next_log_prob = policy.sample(next_observation, batch["random"][:, : policy.num_draws])
        following = target.critics(target.encoder(batch["next_observation"]), next_action)
        reward = batch["reward"] - batch["discount"] * temperature * next_log_prob
    values = policy.critics(observation, policy.normalize_action(batch["action"]))
    if policy.atoms is None:
        td_target = reward + batch["discount"] * following.amin(0)
        loss = 0.5 * ((values - td_target).square() @ weight).sum()
    else:
        loss = categorical_loss(values, following, reward, batch["discount"], weight, policy.atoms)
    return loss, {"critic_loss": loss, "ent_coef": (temperature * weight).sum()} | keep_features(observation)


def actor_loss(networks: Learned, batch: Rows, config: SACConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of the actor, eq. 9, and of the temperature; the encoder has no part in them."""
    policy, _, log_temperature = networks
    assert log_temperature is not None
    observation, weight = features(policy, batch), batch["weight"]
    action, log_prob = policy.sample(observation, batch["random"][:, policy.num_draws :])
    value = policy.critic_values(observation, action).amin(0)
    loss = (log_temperature.detach().exp() * log_prob - value) @ weight
    return with_temperature(loss, log_temperature, log_prob, policy.action_size, weight, config)


def with_temperature(
    loss: Tensor,
    log_temperature: nn.Parameter,
    log_prob: Tensor,
    action_size: int,
    weight: Tensor,
    config: EntropyConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """An actor's loss, plus the temperature's if it is learned, and the metrics of both: eq. 18, with log temperature
    in place of temperature."""
    target_entropy = -action_size if config.target_entropy is None else config.target_entropy
    error = (log_prob.detach() + target_entropy) @ weight
    of_temperature = -(log_temperature * error).sum()
    metrics = {"actor_loss": loss, "ent_coef_loss": of_temperature}
    return loss + of_temperature if config.learn_temperature else loss, metrics


def objectives(
    networks: Networks,
    temperature_optimizer: Adam,
    config: Any,
    of_critics: OffPolicyLoss | None = None,
    of_actor: OffPolicyLoss | None = None,
) -> tuple[Sequence[Objective], Learned]:
    """The losses of a gradient step, and their networks.

    of_critics, of_actor: in place of critic_loss() and actor_loss().
    """
    policy, target, actor, critics, _, target_critics = networks
    (log_temperature,) = temperature_optimizer.parameters
    others = (temperature_optimizer,) if config.learn_temperature else ()
    found = (
        Objective(of_critics or critic_loss, (critics,), ((target_critics, critics.flat),), config.tau),
        Objective(of_actor or actor_loss, (actor, *others)),
    )
    return found, Learned(policy, target, log_temperature)
