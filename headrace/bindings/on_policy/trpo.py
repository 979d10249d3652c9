"""TRPO's critic by the CPU's kernels. The plain function is headrace.algorithms.trpo.learn_critic."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Loss as PlainLoss
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.reduce import Reduce, number_of_minibatches, one_learner
from headrace.algorithms.trpo import TRPOConfig
from headrace.bindings.actor_critic_layout import CLASSES, compiled, critic_alone, value_units
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.bindings.on_policy.rollout_learner import (
    Objective,
    RolloutLearner,
    all_fit,
    learner_of,
    settings_of,
    why_not_steps,
)
from headrace.core.fused import AsChosen, register
from headrace.data.rollout import Rollout
from headrace.kernels.learning.rollouts_arguments import LOG_PROB, Loss
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy

_learners: Bound[RolloutLearner] = Bound()


def serves(
    policy: Policy,
    optimizer: Adam,
    rollout: Rollout,
    returns: Tensor,
    order: Tensor,
    config: TRPOConfig,
    reduce: Reduce = one_learner,
    loss: PlainLoss | None = None,
) -> bool | str:
    """Whether the kernel knows this policy and optimizer; else the reason."""
    if loss is not None:
        return False
    if (reason := why_not_steps(policy, optimizer, rollout)) is not None:
        return reason
    if policy.shared:  # type: ignore[attr-defined]
        return AsChosen("it is written for a critic that shares no layers with the actor")
    return all_fit(policy, rollout, rollout.valid[: rollout.num_steps], order, returns)


@register("trpo.learn_critic", serves, DIGESTS["trpo.learn_critic"], (*CLASSES, Adam))
@torch.no_grad()
def learn_critic(
    policy: ActorCritic,
    optimizer: Adam,
    rollout: Rollout,
    returns: Tensor,
    order: Tensor,
    config: TRPOConfig,
    reduce: Reduce = one_learner,
    loss: PlainLoss | None = None,
) -> Tensor:
    """headrace.algorithms.trpo.learn_critic, with the same results within rounding."""
    learner = learner_of(_learners, policy, optimizer, lambda: critic_alone(compiled(policy, optimizer.flat)))
    number = number_of_minibatches(order.shape[1], config.minibatch_size, 1, reduce)
    targets = Targets(returns, returns, rollout.valid[: rollout.num_steps])
    values = Loss(LOG_PROB, *map(np.float32, (0.0, 0.0, 1.0, 0.0, *value_units(policy))))
    objective = Objective(values, settings_of(optimizer, config.max_grad_norm))
    sums = learner.learn(policy, rollout, targets, order, number, objective, optimizer, reduce)
    return sums[:, 1].mean()
