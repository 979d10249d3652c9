"""DDPG: a deterministic actor climbs its critic. Lillicrap et al. 2016, arXiv:1509.02971."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam, backward
from headrace.algorithms.config_bases import (
    ActorQConfig,
    DeterministicActorConfig,
    OffPolicyConfig,
    TargetNetworkConfig,
)
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

METRICS = ("actor_loss", "critic_loss")


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(TargetNetworkConfig, DeterministicActorConfig, ActorQConfig, OffPolicyConfig):
    """DDPG's settings. Raises ValueError for one out of range."""


class DDPG(OffPolicy[DDPGConfig]):
    """Learns a deterministic policy from a replay buffer, and explores with noise on its actions."""

    name = "ddpg"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)
    policy_arguments: ClassVar[Json] = {"critics": 1, "deterministic": True}
    policy: ActorQ
    config = DDPGConfig()

    def __init__(self, policy: ActorQ, config: DDPGConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.networks = networks = make_networks(policy, self.config.learning_rate, deterministic=True, critics=1)
        self.optimizers = {"actor": networks.actor_optimizer, "critics": networks.critic_optimizer}
        self.buffers = {"target_actor": networks.target_actor, "target_critics": networks.target_critics}
        self.explore()

    @classmethod
    def make_policy(cls, config: DDPGConfig, observation_space: Space, action_space: Space, seed: int) -> ActorQ:
        return actor_q(config, observation_space, action_space, seed, **cls.policy_arguments)

    def explore(self) -> None:
        """Random actions until learning starts; then the actor's, with noise."""
        self.policy.random.fill_(self.rows < self.config.learning_starts)
        self.policy.exploration.fill_(self.config.exploration)

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return self.networks.learned()

    def learn(self, batches: Batch, random: Tensor) -> dict[str, Tensor]:
        return learn(self.networks, batches, self.config, self.reduce)


@fused("ddpg.learn", "headrace.bindings.sac_tqc_td3_ddpg")
def learn(networks: Networks, batches: Batch, config: DDPGConfig, reduce: Reduce = one_learner) -> dict[str, Tensor]:
    """One gradient step on each of G batches [G, B]: algorithm 1 of the paper. Returns the means of METRICS."""
    policy, target, actor, critic, *target_flat = networks
    rows = []
    for batch in split_batches(batches):
        weight = mean_weights(batch.weight, reduce)
        observation = policy.encoder(batch.observation)
        with torch.no_grad():
            next_observation = target.encoder(batch.next_observation)
            next_value = target.critics(next_observation, target.best_action(next_observation))[0]
            td_target = batch.reward + batch.discount * next_value
        value = policy.critics(observation, policy.normalize_action(batch.action))[0]
        critic_loss = (value - td_target).square() @ weight
        backward(critic_loss, policy.critic_parameters())
        critic_loss = critic_loss.detach()
        reduce(critic.gradient, critic_loss)
        critic.step(math.inf)

        observation = observation.detach()  # only the critic loss trains the encoder
        action = policy.best_action(observation, config.invert_gradients)
        actor_loss = -(policy.critics(observation, action)[0] @ weight)
        backward(actor_loss, policy.actor_parameters())
        actor_loss = actor_loss.detach()
        reduce(actor.gradient, actor_loss)
        actor.step(math.inf)
        polyak(target_flat[0], actor.flat, config.tau)
        polyak(target_flat[1], critic.flat, config.tau)
        rows.append((actor_loss, critic_loss))
    return means(rows, METRICS)
