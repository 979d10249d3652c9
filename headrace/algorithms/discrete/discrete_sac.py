"""Discrete SAC: soft actor-critic for discrete actions, with expectations over all of them in place of samples.

Christodoulou 2019, "Soft Actor-Critic for Discrete Action Settings", arXiv:1910.07207.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import OffPolicyConfig, TargetNetworkConfig, policy_settings
from headrace.algorithms.objectives import Learned, Objective, OffPolicyLoss, Rows, features, keep_features
from headrace.algorithms.off_policy import OffPolicy, make_target
from headrace.core.types import Json
from headrace.data.spaces import Discrete, Space
from headrace.policies.discrete.discrete_actor_q import DiscreteActorQ
from headrace.policies.flat_parameters import flatten
from headrace.policies.masks import mask_of, or_all


@dataclass(frozen=True, kw_only=True)
class DiscreteSACConfig(TargetNetworkConfig, OffPolicyConfig):
    """Discrete SAC's settings. Raises ValueError for one out of range."""

    num_steps: int = 4  # steps of each environment in an iteration
    buffer_size: int = 100_000  # steps in the replay buffer, of all environments together
    batch_size: int = 64  # rows in a gradient step
    utd_ratio: float = 0.25  # gradient steps for each environment step (update-to-data ratio)
    learning_rate: float = 3e-4  # of Adam, for actor, critics and temperature, at the start of training
    temperature: float = 1.0  # weight of the entropy in the reward, at the start
    learn_temperature: bool = True  # so that the entropy approaches target_entropy
    target_entropy: float = 0.98  # fraction of the entropy of random actions; 0.98, the paper's, is nearly random
    critic_hidden: tuple[int, ...] | None = None  # sizes of the critics' hidden layers; None: those of hidden


class DiscreteSAC(OffPolicy[DiscreteSACConfig]):
    """Learns a stochastic policy over discrete actions from a replay buffer, maximising reward and entropy."""

    name = "discrete_sac"
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete,)
    policy_arguments: ClassVar[Json] = {"critics": 2}
    policy: DiscreteActorQ
    config = DiscreteSACConfig()
    critic_loss: OffPolicyLoss | None = None  # in place of the function of that name: a staticmethod of a subclass
    actor_loss: OffPolicyLoss | None = None

    def __init__(self, policy: DiscreteActorQ, config: DiscreteSACConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.log_temperature = nn.Parameter(torch.full_like(policy.exploration, math.log(self.config.temperature)))
        self.target = make_target(policy)
        learned = (policy.actor_parameters(), policy.critic_parameters(), [self.log_temperature])
        optimizers = (Adam(parameters, self.config.learning_rate, 1e-8) for parameters in learned)
        self.optimizers = dict(zip(("actor", "critics", "temperature"), optimizers, strict=True))
        self.buffers = {
            "target": flatten(self.target.critic_parameters()),
            "log_temperature": self.optimizers["temperature"].flat,
            "exploration": policy.exploration,
        }
        self.explore()

    @classmethod
    def make_policy(
        cls, config: DiscreteSACConfig, observation_space: Space, action_space: Space, seed: int
    ) -> DiscreteActorQ:
        own = {**cls.policy_arguments, "critic_hidden": config.critic_hidden}
        return DiscreteActorQ(observation_space, action_space, seed=seed, **policy_settings(config), **own)

    def explore(self) -> None:
        """Random actions until learning starts, then the policy's own."""
        self.policy.exploration.fill_(self.rows < self.config.learning_starts)

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        actor, critics = self.policy.actor_parameters(), self.policy.critic_parameters()
        return [(self.optimizers["actor"], actor), (self.optimizers["critics"], critics)]

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        """The losses of a gradient step, and their networks: algorithm 1 of the paper."""
        actor, critics, temperature = self.optimizers.values()
        others = (temperature,) if self.config.learn_temperature else ()
        follows = ((self.buffers["target"], critics.flat),)
        found = (
            Objective(self.critic_loss or critic_loss, (critics,), follows, self.config.tau),
            Objective(self.actor_loss or actor_loss, (actor, *others)),
        )
        return found, Learned(self.policy, self.target, *temperature.parameters)


def critic_loss(networks: Learned, batch: Rows, config: DiscreteSACConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the critics and the encoder: half the squared error of each critic, eq. 3 and 10 of the paper."""
    policy, target, log_temperature = networks
    assert log_temperature is not None
    weight, temperature = batch["weight"], log_temperature.detach().exp()
    observation = policy.encoder(batch["observation"])
    with torch.no_grad():
        following = batch["next_observation"]
        log_probs = policy.distribution_of(policy.encoder(following), following).log_probs  # [A, B]
        next_values = target.values(target.encoder(following)).amin(0)
        next_value = (log_probs.exp() * (next_values - temperature * log_probs)).sum(0)
        td_target = batch["reward"] + batch["discount"] * next_value
    action = (batch["action"] - policy.start).long().view(1, 1, -1)
    values = policy.values(observation)  # [C, A, B]
    values = values.gather(1, action.expand(len(values), 1, -1)).squeeze(1)
    loss = 0.5 * ((values - td_target).square() @ weight).sum()
    return loss, {"critic_loss": loss, "ent_coef": (temperature * weight).sum()} | keep_features(observation)


def actor_loss(networks: Learned, batch: Rows, config: DiscreteSACConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of the actor, eq. 12, and of the temperature, eq. 11, with its logarithm in place of itself; the
    encoder has no part in them."""
    policy, _, log_temperature = networks
    assert log_temperature is not None
    observation, weight = features(policy, batch), batch["weight"]
    log_probs = policy.distribution_of(observation, batch["observation"]).log_probs  # [A, B]
    probs, values = log_probs.exp(), policy.values(observation).detach().amin(0)
    loss = (probs * (log_temperature.detach().exp() * log_probs - values)).sum(0) @ weight
    entropy = -(probs * log_probs).sum(0).detach()
    error = entropy - config.target_entropy * largest_entropy(policy, batch["observation"])
    of_temperature = (log_temperature * (error @ weight)).sum()
    metrics = {"actor_loss": loss, "ent_coef_loss": of_temperature, "entropy": entropy @ weight}
    return loss + of_temperature if config.learn_temperature else loss, metrics


def largest_entropy(policy: DiscreteActorQ, observation: Tensor) -> Tensor | float:
    """The entropy of random actions among those that observations allow, in nats: a number, or with action masks
    [B]."""
    if not policy.masked:
        return math.log(policy.num_actions)
    return or_all(mask_of(policy.mask_space, observation)).sum(0).float().log()
