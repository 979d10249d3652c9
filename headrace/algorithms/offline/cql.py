"""CQL: SAC on recorded data, with critics whose values are low for actions that the data do not have.

Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", arXiv:2006.04779: CQL(H) with SAC's
actor, and without entropy in the TD targets, as in the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import EntropyConfig
from headrace.algorithms.objectives import Learned, Objective, OffPolicyLoss, Rows, keep_features
from headrace.algorithms.off_policy import OffPolicy, make_networks
from headrace.algorithms.offline.offline import Offline, OfflineConfig, OfflineValueConfig
from headrace.algorithms.sac import actor_loss
from headrace.core.types import Json
from headrace.data.spaces import Box, Space
from headrace.policies.actor_q import ActorQ

NETWORK = ("hidden", "critic_hidden", "activation", "normalize_observation", "images")  # settings of an ActorQ


@dataclass(frozen=True, kw_only=True)
class CQLConfig(EntropyConfig, OfflineValueConfig, OfflineConfig):
    """CQL's settings. Raises ValueError for one out of range."""

    alpha: float = 5.0  # weight of the values of other actions, less that of the recorded one, in the critics' loss
    num_samples: int = 10  # actions of the policy, and random ones, by which the values of all actions are estimated


class CQL(Offline, OffPolicy[CQLConfig]):  # type: ignore[type-var, misc]
    """Learns a stochastic policy from recorded data, by critics that are lower bounds of its values."""

    name = "cql"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)
    policy_arguments: ClassVar[Json] = {"critics": 2, "deterministic": False}
    policy: ActorQ
    config = CQLConfig()
    critic_loss: OffPolicyLoss | None = None  # in place of the function of that name: a staticmethod of a subclass
    actor_loss: OffPolicyLoss | None = None

    def __init__(self, policy: ActorQ, config: CQLConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.log_temperature = nn.Parameter(torch.full_like(policy.center[:1], math.log(self.config.temperature)))
        self.networks = networks = make_networks(policy, self.config, deterministic=False)
        temperature = Adam([self.log_temperature], self.config.learning_rate, 1e-8)
        optimizers = (networks.actor_optimizer, networks.critic_optimizer, temperature)
        self.optimizers = dict(zip(("actor", "critics", "temperature"), optimizers, strict=True))
        self.buffers = {"target": networks.target_critics, "log_temperature": temperature.flat}

    @classmethod
    def make_policy(cls, config: CQLConfig, observation_space: Space, action_space: Space, seed: int) -> ActorQ:
        own = {name: getattr(config, name) for name in NETWORK}
        return ActorQ(observation_space, action_space, seed=seed, **own, **cls.policy_arguments)

    def num_draws(self) -> int:
        normal = self.policy.num_draws
        return (2 + self.config.num_samples) * normal + self.config.num_samples * self.policy.action_size

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return self.networks.learned()

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        """The losses of a gradient step, and their networks: algorithm 1 of the paper."""
        actor, critics, temperature = self.optimizers.values()
        others = (temperature,) if self.config.learn_temperature else ()
        found = (
            Objective(
                self.critic_loss or critic_loss, (critics,), ((self.buffers["target"], critics.flat),), self.config.tau
            ),
            Objective(self.actor_loss or actor_loss, (actor, *others)),
        )
        return found, Learned(self.policy, self.networks.target, self.log_temperature)


def critic_loss(networks: Learned, batch: Rows, config: CQLConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the critics and the encoder, eq. 4 of the paper: half the squared TD errors, plus alpha times the
    difference between the values of all actions and of the recorded one.

    random: of the next actions and of the actor's; then of the policy's samples, and of the random ones."""
    policy, target, log_temperature = networks
    assert log_temperature is not None
    weight, random = batch["weight"], batch["random"]
    observation = policy.encoder(batch["observation"])
    with torch.no_grad():
        next_action, _ = policy.sample(policy.encoder(batch["next_observation"]), random[:, : policy.num_draws])
        following = target.critics(target.encoder(batch["next_observation"]), next_action).amin(0)
        td_target = batch["reward"] + batch["discount"] * following
    values = policy.critics(observation, policy.normalize_action(batch["action"]))
    td_loss = 0.5 * ((values - td_target).square() @ weight).sum()
    of_all = log_sum_exp(policy, observation, random[:, 2 * policy.num_draws :], config.num_samples)
    conservative = ((of_all - values) @ weight).sum()
    loss = td_loss + config.alpha * conservative
    temperature = (log_temperature.detach().exp() * weight).sum()
    metrics = {"critic_loss": loss, "td_loss": td_loss, "conservative_loss": conservative, "ent_coef": temperature}
    return loss, metrics | keep_features(observation)


def log_sum_exp(policy: ActorQ, observation: Tensor, random: Tensor, number: int) -> Tensor:
    """Estimates [C, B] of the logarithm of the integral of e^Q over all actions, by importance sampling: `number`
    actions of the policy and as many uniform ones, appendix F of the paper.

    observation: encoded, [B, F]. random: uniform draws, num_draws for each of the policy's actions, then action_size
    for each uniform one."""
    normal, size = policy.num_draws, policy.action_size
    of_policy, uniform = random[:, : number * normal], random[:, number * normal :]
    found = []
    for k in range(number):
        with torch.no_grad():
            action, log_prob = policy.sample(observation, of_policy[:, k * normal : (k + 1) * normal])
        found.append(policy.critics(observation, action) - log_prob)
        action = uniform[:, k * size : (k + 1) * size] * 2 - 1
        found.append(policy.critics(observation, action) + size * math.log(2))  # the density is 1 / 2 in each
    return torch.stack(found).logsumexp(0) - math.log(2 * number)
