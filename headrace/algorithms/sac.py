"""SAC: soft actor-critic with twin critics and a learned temperature. Haarnoja et al. 2018, arXiv:1812.05905."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam, backward
from headrace.algorithms.config_bases import ActorQConfig, EntropyConfig, OffPolicyConfig, TargetNetworkConfig
from headrace.algorithms.off_policy import (
    Networks,
    OffPolicy,
    actor_q,
    make_networks,
    mean_weights,
    means,
    split_batches,
)
from headrace.algorithms.reduce import Reduce, one_learner
from headrace.core.fused import fused
from headrace.core.types import Json
from headrace.data.replay import Batch
from headrace.data.spaces import Box, Space
from headrace.policies.actor_q import ActorQ
from headrace.policies.flat_parameters import polyak

METRICS = ("actor_loss", "critic_loss", "ent_coef", "ent_coef_loss")


@dataclass(frozen=True, kw_only=True)
class SACConfig(EntropyConfig, TargetNetworkConfig, ActorQConfig, OffPolicyConfig):
    """SAC's settings. Raises ValueError for one out of range."""

    learning_rate: float = 3e-4  # of Adam, for actor, critics and temperature, at the start of training


class SAC(OffPolicy[SACConfig]):
    """Learns a stochastic policy from a replay buffer, maximising reward and entropy."""

    name = "sac"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)
    policy_arguments: ClassVar[Json] = {"critics": 2, "deterministic": False}
    policy: ActorQ
    config = SACConfig()

    def __init__(self, policy: ActorQ, config: SACConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.log_temperature = nn.Parameter(torch.full_like(policy.center[:1], math.log(self.config.temperature)))
        self.networks = networks = make_networks(policy, self.config.learning_rate, deterministic=False)
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
        """Random actions until learning starts; then the policy's own."""
        self.policy.random.fill_(self.rows < self.config.learning_starts)

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return self.networks.learned()

    def learn(self, batches: Batch, random: Tensor) -> dict[str, Tensor]:
        return learn(self.networks, self.temperature, batches, random, self.config, self.reduce)


@fused("sac.learn", "headrace.bindings.sac_tqc_td3_ddpg")
def learn(
    networks: Networks,
    temperature_optimizer: Adam,
    batches: Batch,
    random: Tensor,
    config: SACConfig,
    reduce: Reduce = one_learner,
) -> dict[str, Tensor]:
    """One gradient step on each of G batches [G, B]; equation numbers are the paper's. Returns the means of METRICS.

    temperature_optimizer: that of the temperature's logarithm. The target's encoder and critics follow the policy's.
    random: uniform draws [G, B, 2 * num_draws], for the next actions and for the current ones.
    """
    policy, target, actor, critics, _, target_critics = networks
    log_temperature = temperature_optimizer.flat
    target_entropy = -policy.action_size if config.target_entropy is None else config.target_entropy
    rows = []
    for batch, draws in zip(split_batches(batches), random, strict=True):
        weight, temperature = mean_weights(batch.weight, reduce), log_temperature.exp()
        observation = policy.encoder(batch.observation)
        with torch.no_grad():  # eq. 3 and 5
            next_observation = policy.encoder(batch.next_observation)
            next_action, next_log_prob = policy.sample(next_observation, draws[:, : policy.num_draws])
            next_values = target.critics(target.encoder(batch.next_observation), next_action)
            next_value = next_values.amin(0) - temperature * next_log_prob
            td_target = batch.reward + batch.discount * next_value
        values = policy.critics(observation, policy.normalize_action(batch.action))
        critic_loss = 0.5 * ((values - td_target).square() @ weight).sum()
        backward(critic_loss, policy.critic_parameters())
        critic_loss = critic_loss.detach()
        reduce(critics.gradient, critic_loss)
        critics.step(math.inf)

        observation = observation.detach()  # only the critic loss trains the encoder
        action, log_prob = policy.sample(observation, draws[:, policy.num_draws :])
        actor_loss = (temperature * log_prob - policy.critics(observation, action).amin(0)) @ weight  # eq. 9
        backward(actor_loss, policy.actor_parameters())
        # eq. 18, with log temperature in place of temperature
        entropy_error = (log_prob.detach() + target_entropy) @ weight
        actor_loss = actor_loss.detach()
        reduce(actor.gradient, actor_loss, entropy_error)
        actor.step(math.inf)

        temperature_loss = -log_temperature * entropy_error
        if config.learn_temperature:
            temperature_optimizer.gradient.copy_(-entropy_error)
            temperature_optimizer.step(math.inf)
        polyak(target_critics, critics.flat, config.tau)
        rows.append((actor_loss, critic_loss, temperature[0], temperature_loss[0]))
    return means(rows, METRICS)
