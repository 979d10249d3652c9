"""CrossQ: SAC without target networks, whose critics normalise current and next rows as one batch.

Bhatt, Palenicek et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency
and Simplicity", arXiv:1902.05605. Acting is plain PyTorch on every device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import ActorQConfig, EntropyConfig, OffPolicyConfig, StochasticActorConfig
from headrace.algorithms.objectives import (
    Learned,
    Objective,
    OffPolicyLoss,
    Rows,
    features,
    keep_features,
)
from headrace.algorithms.off_policy import OffPolicy, actor_q
from headrace.algorithms.sac import with_temperature
from headrace.core.types import Json
from headrace.data.spaces import Box, Space
from headrace.policies.actor_q import ActorQ, check_networks
from headrace.policies.distributions import box_muller, sample_squashed

ACTOR_METRICS = ("actor_loss", "ent_coef_loss")
BETA1 = 0.5  # of Adam, for actor and critics, as in the paper


@dataclass(frozen=True, kw_only=True)
class CrossQConfig(EntropyConfig, StochasticActorConfig, ActorQConfig, OffPolicyConfig):
    """CrossQ's settings. Raises ValueError for one out of range."""

    policy_delay: int = 3  # gradient steps of the critics for one of the actor and the temperature
    renorm_warm_up: int = 100_000  # batches that are normalised by their own moments alone, at the start
    critic_hidden: tuple[int, ...] = (1024, 1024)  # sizes of the critics' hidden layers; hidden: the actor's

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        if self.norm != "none":
            raise ValueError(f"crossq's networks have batch renormalisation: leave norm={self.norm!r} out")


class CrossQ(OffPolicy[CrossQConfig]):
    """Learns a stochastic policy from a replay buffer, with batch renormalisation in place of target networks."""

    name = "crossq"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)
    policy_arguments: ClassVar[Json] = {"critics": 2, "deterministic": False}
    delayed_metrics: ClassVar[tuple[str, ...]] = ACTOR_METRICS
    divisible: ClassVar[bool] = False  # several learners would normalise their parts of a batch each by itself
    policy: ActorQ
    config = CrossQConfig()
    critic_loss: OffPolicyLoss | None = None  # in place of the function of that name: a staticmethod of a subclass
    actor_loss: OffPolicyLoss | None = None

    def __init__(self, policy: ActorQ, config: CrossQConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        check_networks(policy, deterministic=False, renorm=True)
        rate = self.config.learning_rate
        self.log_temperature = nn.Parameter(torch.full_like(policy.center[:1], math.log(self.config.temperature)))
        self.optimizers = {
            "actor": Adam(policy.actor_parameters(), rate, 1e-8, BETA1, weight_decay=self.config.weight_decay),
            "critics": Adam(policy.critic_parameters(), rate, 1e-8, BETA1, weight_decay=self.config.weight_decay),
            "temperature": Adam([self.log_temperature], rate, 1e-8),
        }
        self.buffers = {"log_temperature": self.optimizers["temperature"].flat}
        self.explore()

    @classmethod
    def make_policy(cls, config: CrossQConfig, observation_space: Space, action_space: Space, seed: int) -> ActorQ:
        own = {**cls.policy_arguments, "batch_renorm": config.renorm_warm_up}
        return actor_q(config, observation_space, action_space, seed, **own)

    def num_draws(self) -> int:
        return 2 * self.policy.num_draws

    def explore(self) -> None:
        """Random actions until learning starts, unless use_sde_at_warmup; then the policy's own."""
        self.policy.random.fill_((self.rows < self.config.learning_starts) * (not self.config.use_sde_at_warmup))

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        actor, critics = self.policy.actor_parameters(), self.policy.critic_parameters()
        return [(self.optimizers["actor"], actor), (self.optimizers["critics"], critics)]

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        """The losses of a gradient step, and their networks: figure 2 of the paper."""
        actor, critics, temperature = self.optimizers.values()
        others = (temperature,) if self.config.learn_temperature else ()
        found = (
            Objective(self.critic_loss or critic_loss, (critics,)),
            Objective(self.actor_loss or actor_loss, (actor, *others), every=self.config.policy_delay),
        )
        return found, Learned(self.policy, self.policy, *temperature.parameters)


def critic_loss(networks: Learned, batch: Rows, config: CrossQConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the critics and the encoder: half the squared error of each critic.

    random: of the next actions, then of the current ones.
    """
    policy, _, log_temperature = networks
    weight, temperature = batch["weight"], log_temperature.detach().exp()  # type: ignore[union-attr]
    observation = policy.encoder(batch["observation"])
    with torch.no_grad():
        next_observation = policy.encoder(batch["next_observation"])
        next_action, next_log_prob = policy.sample(next_observation, batch["random"][:, : policy.num_draws])
    # one forward pass, so that the moments are those of current and next rows together
    observations = torch.cat((observation, next_observation))
    actions = torch.cat((policy.normalize_action(batch["action"]), next_action))
    values, next_values = policy.critics(observations, actions, weight.repeat(2) / 2).chunk(2, 1)
    next_value = next_values.detach().amin(0) - temperature * next_log_prob
    td_target = batch["reward"] + batch["discount"] * next_value
    loss = 0.5 * ((values - td_target).square() @ weight).sum()
    return loss, {"critic_loss": loss, "ent_coef": (temperature * weight).sum()} | keep_features(observation)


def actor_loss(networks: Learned, batch: Rows, config: CrossQConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of the actor and of the temperature, as SAC's, with values normalised by the running moments."""
    policy, _, log_temperature = networks
    assert log_temperature is not None
    observation, weight = features(policy, batch), batch["weight"]
    normal = box_muller(batch["random"][:, policy.num_draws :].t(), policy.action_size)
    action, log_prob = sample_squashed(policy.actor_output(observation, weight), normal)
    value = policy.critics(observation, action.t()).amin(0)
    loss = (log_temperature.detach().exp() * log_prob - value) @ weight
    return with_temperature(loss, log_temperature, log_prob, policy.action_size, weight, config)
