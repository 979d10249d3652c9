"""IQL: values by expectile regression, and a policy by advantage-weighted regression, both of recorded actions only.

Kostrikov, Nair & Levine 2021, "Offline Reinforcement Learning with Implicit Q-Learning", arXiv:2110.06169. It never
needs the value of an action that the data do not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.objectives import Objective, OffPolicyLoss, Rows
from headrace.algorithms.off_policy import OffPolicy, make_target
from headrace.algorithms.offline.offline import Offline, OfflineConfig, OfflineValueConfig
from headrace.core import rng
from headrace.data.spaces import Box, Discrete, Space, unit_bounds
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.critics import Critics
from headrace.policies.flat_parameters import flatten
from headrace.policies.own_parts import features_of

CRITICS = 2


@dataclass(frozen=True, kw_only=True)
class IQLConfig(OfflineValueConfig, OfflineConfig):
    """IQL's settings. Raises ValueError for one out of range."""

    expectile: float = 0.7  # of the values of recorded actions that is a state's value: 0.5 the mean, 1 the largest
    beta: float = 3.0  # inverse temperature of the policy: 0 behaviour cloning
    max_weight: float = 100.0  # the weight of a recorded action is at most this


class QCritics(nn.Module):
    """Critics of a policy's observations and actions. Box actions are in half ranges, Discrete ones are one-hot
    vectors.

    They share the policy's encoder."""

    def __init__(self, policy: ActorCritic, hidden: Sequence[int], seed: int) -> None:
        super().__init__()
        space = policy.action_space
        self.encoder, self.start = policy.encoder, int(space.start) if isinstance(space, Discrete) else None
        self.size = int(space.n) if isinstance(space, Discrete) else int(space.shape[0])  # type: ignore[index]
        generator = rng.generator(rng.seed(seed, rng.Purpose.WEIGHTS, 1), rng.Purpose.WEIGHTS)
        self.critics = Critics(CRITICS, features_of(policy, "IQL"), self.size, hidden, policy.activation, generator)
        low, high = unit_bounds(space) if isinstance(space, Box) else (-1.0, 1.0)
        for name, values in (("center", (low + high) / 2), ("half_range", (high - low) / 2)):
            self.register_buffer(name, torch.as_tensor(values, dtype=torch.float32), persistent=False)

    def forward(self, observation: Any, action: Tensor) -> Tensor:
        """The value of each critic, [2, B]."""
        if self.start is None:
            return self.critics(self.encoder(observation), (action - self.center) / self.half_range)  # type: ignore[no-any-return, operator]
        choice = torch.arange(self.start, self.start + self.size, device=action.device)
        return self.critics(self.encoder(observation), (action.unsqueeze(1) == choice).float())  # type: ignore[no-any-return]


class IQLNetworks(NamedTuple):
    """The networks that losses are given."""

    policy: ActorCritic
    critics: QCritics
    target: QCritics


class IQL(Offline, OffPolicy[IQLConfig]):  # type: ignore[type-var, misc]
    """Learns a stochastic policy from recorded data. policy: an ActorCritic, whose value is V of the paper."""

    name = "iql"
    actions: ClassVar[tuple[type[Space], ...]] = (Box, Discrete)
    policy: ActorCritic
    config = IQLConfig()
    value_loss: OffPolicyLoss | None = None  # in place of the function of that name: a staticmethod of a subclass
    actor_loss: OffPolicyLoss | None = None
    critic_loss: OffPolicyLoss | None = None

    def __init__(self, policy: ActorCritic, config: IQLConfig | None = None, seed: int = 0) -> None:
        if not isinstance(policy, ActorCritic) or policy.shared:
            raise ValueError(f"IQL learns an ActorCritic without shared layers, got {type(policy).__name__}")
        super().__init__(policy, config, seed)
        hidden = self.config.hidden if self.config.critic_hidden is None else self.config.critic_hidden
        critics = QCritics(policy, hidden, seed).to(policy.device)
        self.networks = IQLNetworks(policy, critics, make_target(critics))
        self.optimizers = {
            name: Adam(parameters, self.config.learning_rate, 1e-8) for name, parameters in self._parameters().items()
        }
        target = flatten(self.networks.target.parameters())
        self.buffers = {"critics": self.optimizers["critics"].flat, "target": target}

    @classmethod
    def make_policy(cls, config: IQLConfig, observation_space: Space, action_space: Space, seed: int) -> ActorCritic:
        names = ("hidden", "critic_hidden", "activation", "normalize_observation", "images")
        return ActorCritic(
            observation_space, action_space, seed=seed, **{name: getattr(config, name) for name in names}
        )

    def _parameters(self) -> dict[str, list[nn.Parameter]]:
        """Parameters that each optimizer learns: the critics' loss trains the encoder, as in SAC."""
        policy = self.policy
        parts = {
            "value": (policy.critic, policy.critic_out),
            "actor": (policy.head, policy.actor, policy.actor_out),
            "critics": (self.networks.critics,),
        }
        return {name: [p for part in own for p in part.parameters()] for name, own in parts.items()}

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return [(self.optimizers[name], parameters) for name, parameters in self._parameters().items()]

    def objectives(self) -> tuple[Sequence[Objective], Any]:
        """The losses of a gradient step, in the order of the authors' code, and their networks."""
        value, actor, critics = self.optimizers.values()
        follows = ((self.buffers["target"], critics.flat),)
        found = (
            Objective(self.value_loss or value_loss, (value,)),
            Objective(self.actor_loss or actor_loss, (actor,)),
            Objective(self.critic_loss or critic_loss, (critics,), follows, self.config.tau),
        )
        return found, self.networks


def value_loss(networks: IQLNetworks, batch: Rows, config: IQLConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The expectile loss of V, eq. 5, and the lower target critic's values of the recorded actions as a column."""
    with torch.no_grad():
        q_value = networks.target(batch["observation"], batch["action"]).amin(0)
    error = q_value - state_value(networks.policy, batch["observation"])
    loss = (torch.where(error > 0, config.expectile, 1 - config.expectile) * error.square()) @ batch["weight"]
    return loss, {"value_loss": loss, "q_value": q_value}


def actor_loss(networks: IQLNetworks, batch: Rows, config: IQLConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Minus the mean log-likelihood of the recorded actions, each weighted by e^(beta * advantage), eq. 7."""
    policy, observation = networks.policy, batch["observation"]
    with torch.no_grad():
        advantage = batch["q_value"] - state_value(policy, observation)
        weight = (config.beta * advantage).exp().clamp(max=config.max_weight)
    loss = -(weight * policy.distribution(observation).log_prob(batch["action"])) @ batch["weight"]
    return loss, {"actor_loss": loss, "advantage": advantage @ batch["weight"]}


def critic_loss(networks: IQLNetworks, batch: Rows, config: IQLConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The squared error of each critic, eq. 6."""
    with torch.no_grad():
        following = state_value(networks.policy, batch["next_observation"])
        td_target = batch["reward"] + batch["discount"] * following
    values = networks.critics(batch["observation"], batch["action"])
    loss = ((values - td_target).square() @ batch["weight"]).sum()
    return loss, {"critic_loss": loss}


def state_value(policy: ActorCritic, observation: Any) -> Tensor:
    """V of the paper, [B]. No gradient reaches the encoder."""
    with torch.no_grad():
        encoded = policy.encoder(observation)
    return policy.critic_out(policy.critic(encoded)).flatten()  # type: ignore[no-any-return]
