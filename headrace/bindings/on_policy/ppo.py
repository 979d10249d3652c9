"""PPO's learning call by the CPU's kernels. The plain one is headrace.algorithms.ppo.learn."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Loss as PlainLoss
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.ppo import METRICS, PPOConfig
from headrace.algorithms.reduce import Reduce, number_of_minibatches, one_learner
from headrace.bindings.actor_critic_layout import CLASSES, compiled, value_units
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
from headrace.core.fused import register
from headrace.data.rollout import Rollout
from headrace.kernels.learning.rollouts_arguments import CLIPPED_RATIO, Loss
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy
from headrace.setting_schedules import is_adaptive

_learners: Bound[RolloutLearner] = Bound()


def serves(
    policy: Policy,
    optimizer: Adam,
    rollout: Rollout,
    targets: Targets,
    order: Tensor,
    config: PPOConfig,
    reduce: Reduce = one_learner,
    loss: PlainLoss | None = None,
) -> bool | str:
    """Whether the kernel knows this policy and optimizer; else the reason."""
    if loss is not None or is_adaptive(config):
        return False
    if (reason := why_not_steps(policy, optimizer, rollout)) is not None:
        return reason
    return all_fit(policy, rollout, targets.valid, order, rollout.log_prob, targets.advantage, targets.returns)


@register("ppo.learn", serves, DIGESTS["ppo.learn"], (*CLASSES, Adam))
@torch.no_grad()
def learn(
    policy: ActorCritic,
    optimizer: Adam,
    rollout: Rollout,
    targets: Targets,
    permutation: Tensor,
    config: PPOConfig,
    reduce: Reduce = one_learner,
    loss: PlainLoss | None = None,
) -> dict[str, Tensor]:
    """headrace.algorithms.ppo.learn, with the same results within rounding."""
    learner = learner_of(_learners, policy, optimizer, lambda: compiled(policy, optimizer.flat))
    number = number_of_minibatches(permutation.shape[1], config.minibatch_size, 1, reduce)
    settings = settings_of(optimizer, config.max_grad_norm, config.target_kl)
    objective = Objective(loss_of(policy, config), settings, config.normalize_advantage)
    learner.learn(policy, rollout, targets, permutation, number, objective, optimizer, reduce)
    return metrics_of(learner.summary.tolist(), config)


def loss_of(policy: ActorCritic, config: PPOConfig) -> Loss:
    coefficients = (config.clip, config.value_clip, config.value_coef, config.entropy_coef)
    return Loss(CLIPPED_RATIO, *map(np.float32, (*coefficients, *value_units(policy))))


def metrics_of(summary: list[list[float]], config: PPOConfig, **others: float) -> dict[str, Tensor]:
    """As the plain function's, from RolloutArguments.summary; and others."""
    policy_loss, value_loss, entropy, _, clip_fraction = summary[0][:5]
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    found = (policy_loss, value_loss, -entropy, loss, clip_fraction, summary[1][3], *others.values())
    # one tensor for all, since making one costs as much as a small kernel
    return dict(zip((*METRICS, *others), torch.tensor(found).unbind(), strict=True))
