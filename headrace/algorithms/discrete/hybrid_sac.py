"""Hybrid SAC: soft actor-critic for actions that are a choice and a vector, such as a tool and where to put it.

Delalleau et al. 2019, "Discrete and Continuous Action Representation for Practical RL in Video Games",
arXiv:1912.11077.
Expectations over choices are sums, as in discrete SAC. For each choice one vector is sampled, as in SAC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import EntropyConfig, OffPolicyConfig, TargetNetworkConfig, policy_settings
from headrace.algorithms.discrete.discrete_sac import largest_entropy
from headrace.algorithms.objectives import Learned, Objective, OffPolicyLoss, Rows, features, keep_features
from headrace.algorithms.off_policy import OffPolicy, make_target
from headrace.core.types import Json
from headrace.data.flat_action import FlatAction, is_hybrid
from headrace.data.spaces import Space
from headrace.policies.discrete.hybrid_actor_q import HybridActorQ
from headrace.policies.flat_parameters import flatten


@dataclass(frozen=True, kw_only=True)
class HybridSACConfig(EntropyConfig, TargetNetworkConfig, OffPolicyConfig):
    """Hybrid SAC's settings. Raises ValueError for one out of range."""

    learning_rate: float = 3e-4  # of Adam, for actor, critics and temperatures, at the start of training
    target_choice_entropy: float = 0.3  # of choices, as a fraction of the entropy of random ones
    critic_hidden: tuple[int, ...] | None = None  # sizes of the critics' hidden layers; None: those of hidden


class HybridSAC(OffPolicy[HybridSACConfig]):
    """Learns a stochastic policy over a choice and a vector from a replay buffer, maximising reward and entropies."""

    name = "hybrid_sac"
    actions: ClassVar[tuple[type[Space], ...]] = (FlatAction,)
    suits = staticmethod(is_hybrid)
    policy_arguments: ClassVar[Json] = {"critics": 2}
    policy: HybridActorQ
    config = HybridSACConfig()
    critic_loss: OffPolicyLoss | None = None  # in place of the function of that name: a staticmethod of a subclass
    actor_loss: OffPolicyLoss | None = None

    def __init__(self, policy: HybridActorQ, config: HybridSACConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        of_both = torch.full_like(policy.random.expand(2), math.log(self.config.temperature))
        self.log_temperature = nn.Parameter(of_both)  # of choices, of vectors
        self.target = make_target(policy)
        learned = (policy.actor_parameters(), policy.critic_parameters(), [self.log_temperature])
        optimizers = (Adam(parameters, self.config.learning_rate, 1e-8) for parameters in learned)
        self.optimizers = dict(zip(("actor", "critics", "temperature"), optimizers, strict=True))
        self.buffers = {
            "target": flatten(self.target.critic_parameters()),
            "log_temperature": self.optimizers["temperature"].flat,
            "random": policy.random,
        }
        self.explore()

    @classmethod
    def make_policy(
        cls, config: HybridSACConfig, observation_space: Space, action_space: Space, seed: int
    ) -> HybridActorQ:
        own = {**cls.policy_arguments, "critic_hidden": config.critic_hidden}
        return HybridActorQ(observation_space, action_space, seed=seed, **policy_settings(config), **own)

    def num_draws(self) -> int:
        return 2 * self.policy.normal_draws

    def explore(self) -> None:
        """Random actions until learning starts, then the policy's own."""
        self.policy.random.fill_(self.rows < self.config.learning_starts)

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        actor, critics = self.policy.actor_parameters(), self.policy.critic_parameters()
        return [(self.optimizers["actor"], actor), (self.optimizers["critics"], critics)]

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        """The losses of a gradient step, and their networks."""
        actor, critics, temperature = self.optimizers.values()
        others = (temperature,) if self.config.learn_temperature else ()
        follows = ((self.buffers["target"], critics.flat),)
        found = (
            Objective(self.critic_loss or critic_loss, (critics,), follows, self.config.tau),
            Objective(self.actor_loss or actor_loss, (actor, *others)),
        )
        return found, Learned(self.policy, self.target, *temperature.parameters)


def critic_loss(networks: Learned, batch: Rows, config: HybridSACConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the critics and the encoder: half the squared error of each critic.

    random: of the next vectors, then of the current ones."""
    policy, target, log_temperature = networks
    assert log_temperature is not None
    weight, (of_choice, of_vector) = batch["weight"], log_temperature.detach().exp()
    observation = policy.encoder(batch["observation"])
    with torch.no_grad():
        following, random = batch["next_observation"], batch["random"][:, : policy.normal_draws]
        log_probs, vectors, log_densities = policy.sample(policy.encoder(following), following, random)
        next_values = target.values(target.encoder(following), vectors).amin(0)  # [D, B]
        soft_values = next_values - of_choice * log_probs - of_vector * log_densities
        td_target = batch["reward"] + batch["discount"] * (log_probs.exp() * soft_values).sum(0)
    choice, vector = policy.split_action(batch["action"])
    values = policy.all_values(observation, vector)  # [C, B, D]
    values = values.gather(2, choice.view(1, -1, 1).expand(len(values), -1, 1)).squeeze(2)
    loss = 0.5 * ((values - td_target).square() @ weight).sum()
    metrics = {"critic_loss": loss, "ent_coef": (of_vector * weight).sum(), "choice_coef": (of_choice * weight).sum()}
    return loss, metrics | keep_features(observation)


def actor_loss(networks: Learned, batch: Rows, config: HybridSACConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of the actor and of both temperatures, with their logarithms in place of themselves; the encoder has
    no part in them."""
    policy, _, log_temperature = networks
    assert log_temperature is not None
    observation, weight = features(policy, batch), batch["weight"]
    random = batch["random"][:, policy.normal_draws :]
    log_probs, vectors, log_densities = policy.sample(observation, batch["observation"], random)
    probs, values = log_probs.exp(), policy.values(observation, vectors).amin(0)
    of_choice, of_vector = log_temperature.detach().exp()
    loss = (probs * (of_choice * log_probs + of_vector * log_densities - values)).sum(0) @ weight
    choice_entropy = -(probs * log_probs).sum(0).detach()
    vector_entropy = -(probs * log_densities).sum(0).detach()
    target_entropy = -policy.action_size if config.target_entropy is None else config.target_entropy
    choice_error = choice_entropy - config.target_choice_entropy * largest_entropy(policy, batch["observation"])
    errors = torch.stack((choice_error @ weight, (vector_entropy - target_entropy) @ weight))
    of_temperatures = (log_temperature * errors).sum()
    metrics = {"actor_loss": loss, "ent_coef_loss": of_temperatures, "choice_entropy": choice_entropy @ weight}
    return loss + of_temperatures if config.learn_temperature else loss, metrics
