"""What DDPG and TD3 share: a policy, its target network, and one optimizer each for the actor and the critics."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.off_policy import make_target
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


def make_networks(policy: ActorQ, learning_rate: float) -> Networks:
    """A policy with its optimizers, and a target network with the same weights."""
    target = make_target(policy)
    actor, critics = (Adam(p, learning_rate, 1e-8) for p in (policy.actor_parameters(), policy.critic_parameters()))
    buffers = (flatten(target.actor_parameters()), flatten(target.critic_parameters()))
    return Networks(policy, target, actor, critics, *buffers)
