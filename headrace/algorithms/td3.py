"""TD3: twin critics, smoothed targets and a delayed actor. Fujimoto, van Hoof & Meger 2018, arXiv:1802.09477."""

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
from headrace.policies.distributions import box_muller
from headrace.policies.flat_parameters import polyak

ACTOR_METRICS, CRITIC_METRICS = ("actor_loss",), ("critic_loss",)


@dataclass(frozen=True, kw_only=True)
class TD3Config(TargetNetworkConfig, DeterministicActorConfig, ActorQConfig, OffPolicyConfig):
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

    def __init__(self, policy: ActorQ, config: TD3Config | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.networks = networks = make_networks(policy, self.config.learning_rate, deterministic=True)
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
        self.policy.exploration.fill_(self.config.exploration)

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return self.networks.learned()

    def learn(self, batches: Batch, random: Tensor) -> dict[str, Tensor]:
        delay = self.config.policy_delay
        since = self.updates % delay if len(random) % delay else 0
        return learn(self.networks, batches, random, since, self.config, self.reduce)


@fused("td3.learn", "headrace.bindings.sac_tqc_td3_ddpg")
def learn(
    networks: Networks,
    batches: Batch,
    random: Tensor,
    since: int,
    config: TD3Config,
    reduce: Reduce = one_learner,
) -> dict[str, Tensor]:
    """One gradient step on each of G batches [G, B]: algorithm 1 of the paper. Returns the means of the losses; the
    actor's is a mean over its own gradient steps, and missing where it took none.

    random: uniform draws [G, B, num_draws], for the noise on target actions.
    since: gradient steps since the actor's last.
    """
    policy, target, actor, critics, *target_flat = networks
    actor_rows, critic_rows = [], []
    for step, (batch, draws) in enumerate(zip(split_batches(batches), random, strict=True), since + 1):
        weight = mean_weights(batch.weight, reduce)
        observation = policy.encoder(batch.observation)
        with torch.no_grad():
            next_observation = target.encoder(batch.next_observation)
            normal = box_muller(draws.t(), policy.action_size).t() * config.target_noise
            smoothing = normal.clamp(-config.target_noise_clip, config.target_noise_clip)
            next_action = (target.best_action(next_observation) + smoothing).clamp(-1, 1)
            td_target = batch.reward + batch.discount * target.critics(next_observation, next_action).amin(0)
        values = policy.critics(observation, policy.normalize_action(batch.action))
        critic_loss = ((values - td_target).square() @ weight).sum()
        backward(critic_loss, policy.critic_parameters())
        critic_loss = critic_loss.detach()
        reduce(critics.gradient, critic_loss)
        critics.step(math.inf)
        critic_rows.append((critic_loss,))

        if step % config.policy_delay == 0:
            observation = observation.detach()  # only the critic loss trains the encoder
            action = policy.best_action(observation, config.invert_gradients)
            actor_loss = -(policy.critics(observation, action)[0] @ weight)
            backward(actor_loss, policy.actor_parameters())
            actor_loss = actor_loss.detach()
            reduce(actor.gradient, actor_loss)
            actor.step(math.inf)
            actor_rows.append((actor_loss,))
            polyak(target_flat[0], actor.flat, config.tau)
            polyak(target_flat[1], critics.flat, config.tau)
    return means(actor_rows, ACTOR_METRICS) | means(critic_rows, CRITIC_METRICS)
