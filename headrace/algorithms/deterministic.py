"""What DDPG and TD3 share: a policy, the target that follows it, and an optimizer for actor and critics each."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.off_policy import following
from headrace.policies.actor_q import ActorQ
from headrace.policies.flat_parameters import flatten


class Networks(NamedTuple):
    """What learns, and what follows it."""

    policy: ActorQ
    target: ActorQ
    actor: Adam
    critics: Adam
    slow_actor: Tensor  # the target's parameters, in one buffer each, as those of the optimizers
    slow_critics: Tensor


def networks(policy: ActorQ, learning_rate: float) -> Networks:
    """A policy with its optimizers, and a target that begins where it is."""
    target = following(policy)
    actor, critics = (Adam(p, learning_rate, 1e-8) for p in (policy.actor_parameters(), policy.critic_parameters()))
    slow = (flatten(target.actor_parameters()), flatten(target.critic_parameters()))
    return Networks(policy, target, actor, critics, *slow)
