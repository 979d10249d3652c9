"""TD3+BC: TD3 on recorded data, with an actor that stays close to the recorded actions.

Fujimoto & Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning", arXiv:2106.06860.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.objectives import Learned, Objective, OffPolicyLoss, Rows, features
from headrace.algorithms.off_policy import OffPolicy, make_networks
from headrace.algorithms.offline.offline import Offline, OfflineConfig, OfflineValueConfig
from headrace.algorithms.td3 import ACTOR_METRICS, critic_loss, objectives
from headrace.core.types import Json
from headrace.data.spaces import Box, Space
from headrace.policies.actor_q import ActorQ

NETWORK = ("hidden", "critic_hidden", "activation", "normalize_observation", "images")  # settings of an ActorQ


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(OfflineValueConfig, OfflineConfig):
    """TD3+BC's settings. Raises ValueError for one out of range."""

    alpha: float = 2.5  # weight of the values in the actor's loss, in mean absolute values; 0: behaviour cloning
    target_noise: float = 0.2  # standard deviation of the noise on target actions, in half ranges
    target_noise_clip: float = 0.5  # the noise on target actions is clipped to this, in half ranges
    policy_delay: int = 2  # gradient steps of the critics for one of the actor


class TD3BC(Offline, OffPolicy[TD3BCConfig]):  # type: ignore[type-var, misc]
    """Learns a deterministic policy from recorded data, guided by values and by the recorded actions."""

    name = "td3_bc"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)
    policy_arguments: ClassVar[Json] = {"critics": 2, "deterministic": True}
    delayed_metrics: ClassVar[tuple[str, ...]] = (*ACTOR_METRICS, "bc_loss")
    policy: ActorQ
    config = TD3BCConfig()
    critic_loss: OffPolicyLoss | None = None  # in place of the function of that name: a staticmethod of a subclass
    actor_loss: OffPolicyLoss | None = None

    def __init__(self, policy: ActorQ, config: TD3BCConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.networks = networks = make_networks(policy, self.config, deterministic=True)
        self.optimizers = {"actor": networks.actor_optimizer, "critics": networks.critic_optimizer}
        self.buffers = {"target_actor": networks.target_actor, "target_critics": networks.target_critics}

    @classmethod
    def make_policy(cls, config: TD3BCConfig, observation_space: Space, action_space: Space, seed: int) -> ActorQ:
        own = {name: getattr(config, name) for name in NETWORK}
        return ActorQ(observation_space, action_space, seed=seed, **own, **cls.policy_arguments)

    def num_draws(self) -> int:
        return self.policy.num_draws

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return self.networks.learned()

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        """The losses of a gradient step, and their networks: algorithm 1 of the paper on TD3, with another actor."""
        return objectives(self.networks, self.config, self.critic_loss or critic_loss, self.actor_loss or actor_loss)


def actor_loss(networks: Learned, batch: Rows, config: TD3BCConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the actor, eq. 5: the squared distance to the recorded actions in half ranges, less the values of the
    first critic, which have the mean absolute value alpha. The encoder has no part in it."""
    policy, weight = networks.policy, batch["weight"]
    observation = features(policy, batch)
    action = policy.best_action(observation)
    values = policy.critic_values(observation, action)[0]
    size = values.detach().abs() @ weight
    distance = (action - policy.normalize_action(batch["action"])).square().mean(1) @ weight
    loss = distance - config.alpha / size.clamp(min=1e-6) * (values @ weight)
    return loss, {"actor_loss": loss, "bc_loss": distance}
