"""TD3: twin critics, smoothed targets and a delayed actor. Fujimoto, van Hoof & Meger 2018, arXiv:1802.09477."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import (
    ActorQConfig,
    AtomsConfig,
    DeterministicActorConfig,
    OffPolicyConfig,
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
from headrace.policies.distributions import box_muller

ACTOR_METRICS = ("actor_loss",)


@dataclass(frozen=True, kw_only=True)
class TD3Config(AtomsConfig, TargetNetworkConfig, DeterministicActorConfig, ActorQConfig, OffPolicyConfig):
    """TD3's settings. Raises ValueError for one out of range."""

    target_noise: float = 0.2  # standard deviation of the noise on target actions, in half ranges
    target_noise_clip: float = 0.5  # the noise on target actions is clipped to this, in half ranges
    policy_delay: int = 2  # gradient steps of the critics for one of the actor


class TD3(OffPolicy[TD3Config]):
    """Learns a deterministic policy from a replay buffer, and explores with noise on its actions."""

    name = "td3"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)
    policy_arguments: ClassVar[Json] = {"critics": 2, "deterministic": True}
    delayed_metrics: ClassVar[tuple[str, ...]] = ACTOR_METRICS
    policy: ActorQ
    config = TD3Config()
    critic_loss: OffPolicyLoss | None = None  # in place of the function of that name: a staticmethod of a subclass
    actor_loss: OffPolicyLoss | None = None

    def __init__(self, policy: ActorQ, config: TD3Config | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.networks = networks = make_networks(policy, self.config, deterministic=True)
        self.optimizers = {"actor": networks.actor_optimizer, "critics": networks.critic_optimizer}
        self.buffers = {"target_actor": networks.target_actor, "target_critics": networks.target_critics}
        self.explore()

    @classmethod
    def make_policy(cls, config: TD3Config, observation_space: Space, action_space: Space, seed: int) -> ActorQ:
        return actor_q(config, observation_space, action_space, seed, **cls.policy_arguments)

    def num_draws(self) -> int:
        return self.policy.num_draws

    def explore(self) -> None:
        """Random actions until learning starts; then the actor's, with noise."""
        self.policy.random.fill_(self.rows < self.config.learning_starts)
        self.policy.set_exploration(self.config.exploration, self.config.exploration_max)

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return self.networks.learned()

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        return objectives(self.networks, self.config, self.critic_loss, self.actor_loss)


def critic_loss(networks: Learned, batch: Rows, config: TD3Config) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the critics and the encoder: the squared error of each critic; with num_atoms the cross-entropy.
    random: of the noise on target actions."""
    policy, target, _ = networks
    observation = policy.encoder(batch["observation"])
    with torch.no_grad():
        next_observation = target.encoder(batch["next_observation"])
        normal = box_muller(batch["random"].t(), policy.action_size).t() * config.target_noise
        smoothing = normal.clamp(-config.target_noise_clip, config.target_noise_clip)
        next_action = (target.best_action(next_observation) + smoothing).clamp(-1, 1)
        following = target.critics(next_observation, next_action)
    reward, discount, weight = (batch[name] for name in ("reward", "discount", "weight"))
    values = policy.critics(observation, policy.normalize_action(batch["action"]))
    if policy.atoms is None:
        loss = ((values - (reward + discount * following.amin(0))).square() @ weight).sum()
    else:
        loss = categorical_loss(values, following, reward, discount, weight, policy.atoms)
    return loss, {"critic_loss": loss} | keep_features(observation)


def actor_loss(networks: Learned, batch: Rows, config: DeterministicActorConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the actor, by the first critic, or with num_atoms by the lower value, as in FastTD3; the encoder has
    no part in it."""
    policy = networks.policy
    observation = features(policy, batch)
    action = policy.best_action(observation, config.invert_gradients)
    values = policy.critic_values(observation, action)
    loss = -((values[0] if policy.atoms is None else values.amin(0)) @ batch["weight"])
    return loss, {"actor_loss": loss}


def objectives(
    networks: Networks,
    config: Any,
    of_critics: OffPolicyLoss | None = None,
    of_actor: OffPolicyLoss | None = None,
) -> tuple[Sequence[Objective], Learned]:
    """The losses of a gradient step, and their networks.

    of_critics, of_actor: in place of critic_loss() and actor_loss().
    """
    policy, target, actor, critics, target_actor, target_critics = networks
    targets = ((target_actor, actor.flat), (target_critics, critics.flat))
    delay = getattr(config, "policy_delay", 1)
    found = (
        Objective(of_critics or critic_loss, (critics,)),
        Objective(of_actor or actor_loss, (actor,), targets, config.tau, every=delay),
    )
    return found, Learned(policy, target)
