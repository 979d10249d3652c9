"""Behaviour cloning: a policy imitates the actions of recorded data by supervised learning.

Pomerleau 1991, "Efficient Training of Artificial Neural Networks for Autonomous Navigation"; the losses are those of
Florence et al. 2021, arXiv:2109.00137, section 1: explicit policies by mean squared error, or by likelihood.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.objectives import Learned, Objective, OffPolicyLoss, Rows
from headrace.algorithms.off_policy import OffPolicy
from headrace.algorithms.offline.offline import Offline, OfflineConfig
from headrace.data.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import Policy

NETWORK = ("hidden", "activation", "normalize_observation", "images")  # settings of a policy


@dataclass(frozen=True, kw_only=True)
class BCConfig(OfflineConfig):
    """Settings of behaviour cloning. Raises ValueError for one out of range."""

    deterministic: bool = False  # a deterministic policy, by the mean squared error; else the likelihood of actions
    gamma: ClassVar[float] = 0.0


class BC(Offline, OffPolicy[BCConfig]):  # type: ignore[type-var, misc]
    """Learns a policy that acts as the recorded data do; rewards are not used.

    policy: an ActorCritic, whose distribution learns and whose values do not; with deterministic=True an ActorQ, as
    TD3+BC's.
    """

    name = "bc"
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete, MultiDiscrete, MultiBinary, Box)
    policy: Any
    config = BCConfig()
    loss: OffPolicyLoss | None = None  # in place of the functions below: a staticmethod of a subclass

    def __init__(self, policy: Policy, config: BCConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        wanted = "best_action" if self.config.deterministic else "distribution"
        if not hasattr(policy, wanted):
            kind, own = type(policy).__name__, f"deterministic={self.config.deterministic}"
            raise ValueError(f"behaviour cloning with {own} needs a policy with {wanted}(), which {kind} has not")
        self.optimizers = {"actor": Adam(actor_parameters(self.policy), self.config.learning_rate, 1e-8)}

    @classmethod
    def make_policy(cls, config: BCConfig, observation_space: Space, action_space: Space, seed: int) -> Policy:
        own: dict[str, Any] = {name: getattr(config, name) for name in NETWORK} | {"seed": seed}
        if config.deterministic:
            return ActorQ(observation_space, action_space, critics=2, deterministic=True, **own)
        return ActorCritic(observation_space, action_space, **own)

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return [(self.optimizers["actor"], actor_parameters(self.policy))]

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        """The loss of a gradient step, and its network."""
        loss = self.loss or (squared_error if self.config.deterministic else negative_log_likelihood)
        return (Objective(loss, (self.optimizers["actor"],)),), Learned(self.policy, self.policy)


def actor_parameters(policy: Any) -> list[nn.Parameter]:
    """Parameters of a policy's actions, with those of its encoder."""
    found = dict.fromkeys((*policy.encoder.parameters(), *policy.actor_parameters()))  # some may be in both
    return [*found]


def negative_log_likelihood(networks: Learned, batch: Rows, config: BCConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Minus the mean log-likelihood, or log-density, of the recorded actions."""
    loss = -networks.policy.distribution(batch["observation"]).log_prob(batch["action"]) @ batch["weight"]
    return loss, {"actor_loss": loss}


def squared_error(networks: Learned, batch: Rows, config: BCConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean squared distance between a deterministic policy's actions and the recorded ones, in half ranges."""
    policy = networks.policy
    action = policy.best_action(policy.encoder(batch["observation"]))
    loss = (action - policy.normalize_action(batch["action"])).square().mean(1) @ batch["weight"]
    return loss, {"actor_loss": loss}
