"""What DDPG, TD3 and SAC share: their policy, the target network and the optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.off_policy import make_target, policy_settings
from headrace.data.spaces import Space
from headrace.policies.actor_q import ActorQ
from headrace.policies.flat_parameters import flatten


class Networks(NamedTuple):
    """A policy and its target network, with the buffers that learning changes."""

    policy: ActorQ
    target: ActorQ
    actor_optimizer: Adam
    critic_optimizer: Adam
    target_actor: Tensor  # the target's parameters, each in one buffer [P] laid out as the optimizer's
    target_critics: Tensor

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        """The optimizers, each with the parameters that it learns."""
        actor, critics = self.policy.actor_parameters(), self.policy.critic_parameters()
        return [(self.actor_optimizer, actor), (self.critic_optimizer, critics)]


def make_networks(policy: ActorQ, learning_rate: float) -> Networks:
    """A policy with its optimizers, and a target network with the same weights."""
    target = make_target(policy)
    actor, critics = (Adam(p, learning_rate, 1e-8) for p in (policy.actor_parameters(), policy.critic_parameters()))
    buffers = (flatten(target.actor_parameters()), flatten(target.critic_parameters()))
    return Networks(policy, target, actor, critics, *buffers)


def actor_q(config: Any, observation_space: Space, action_space: Space, seed: int, **own: Any) -> ActorQ:
    """The policy of a config that is both an ActorQConfig and an OffPolicyConfig. own: further settings of ActorQ."""
    settings = policy_settings(config) | own | {"noise_autocorrelation": config.noise_autocorrelation}
    return ActorQ(observation_space, action_space, seed=seed, **settings)
