"""DDPG: a deterministic actor follows the gradient of its critic. Lillicrap et al. 2016, arXiv:1509.02971."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import (
    ActorQConfig,
    DeterministicActorConfig,
    OffPolicyConfig,
    TargetNetworkConfig,
)
from headrace.algorithms.objectives import Learned, Objective, OffPolicyLoss, Rows, keep_features
from headrace.algorithms.off_policy import OffPolicy, actor_q, make_networks
from headrace.algorithms.td3 import objectives
from headrace.core.types import Json
from headrace.data.spaces import Box, Space
from headrace.policies.actor_q import ActorQ


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
    critic_loss: OffPolicyLoss | None = None  # in place of the function of that name: a staticmethod of a subclass
    actor_loss: OffPolicyLoss | None = None

    def __init__(self, policy: ActorQ, config: DDPGConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.networks = networks = make_networks(policy, self.config, deterministic=True, critics=1)
        self.optimizers = {"actor": networks.actor_optimizer, "critics": networks.critic_optimizer}
        self.buffers = {"target_actor": networks.target_actor, "target_critics": networks.target_critics}
        self.explore()

    @classmethod
    def make_policy(cls, config: DDPGConfig, observation_space: Space, action_space: Space, seed: int) -> ActorQ:
        return actor_q(config, observation_space, action_space, seed, **cls.policy_arguments)

    def explore(self) -> None:
        """Random actions until learning starts; then the actor's, with noise."""
        self.policy.random.fill_(self.rows < self.config.learning_starts)
        self.policy.set_exploration(self.config.exploration, self.config.exploration_max)

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return self.networks.learned()

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        return objectives(self.networks, self.config, self.critic_loss or critic_loss, self.actor_loss)


def critic_loss(networks: Learned, batch: Rows, config: DDPGConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the critic and the encoder: the squared error."""
    policy, target, _ = networks
    observation = policy.encoder(batch["observation"])
    with torch.no_grad():
        next_observation = target.encoder(batch["next_observation"])
        next_value = target.critics(next_observation, target.best_action(next_observation))[0]
        td_target = batch["reward"] + batch["discount"] * next_value
    value = policy.critics(observation, policy.normalize_action(batch["action"]))[0]
    loss = (value - td_target).square() @ batch["weight"]
    return loss, {"critic_loss": loss} | keep_features(observation)
