"""PPO's learning call by the CPU's kernels. The plain one is headrace.algorithms.ppo.learn."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.ppo import METRICS, PPOConfig
from headrace.algorithms.reduce import Reduce, number_of_minibatches, one_learner
from headrace.bindings.actor_critic_layout import CLASSES, compiled, value_units
from headrace.bindings.arguments import MISFIT, fits
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import why_not_learn
from headrace.bindings.on_policy.rollout_learner import (
    Objective,
    RolloutLearner,
    columns_fit,
    order_fits,
    settings_of,
)
from headrace.core.fused import register
from headrace.data.rollout import Rollout
from headrace.kernels.learning.rollouts_arguments import CLIPPED_RATIO, Loss
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy
from headrace.policies.examination import last_examined

_learners: Bound[RolloutLearner] = Bound()


def serves(
    policy: Policy,
    optimizer: Adam,
    rollout: Rollout,
    targets: Targets,
    order: Tensor,
    config: PPOConfig,
    reduce: Reduce = one_learner,
) -> bool | str:
    """Whether the kernel knows this policy and optimizer; else the reason."""
    if rollout.device.type != "cpu":
        return False
    if type(optimizer) is not Adam:
        return f"{type(optimizer).__name__} is not the Adam it was written for"
    if reason := why_not_learn(policy, optimizer):
        return reason
    floats = (rollout.log_prob, targets.advantage, targets.returns)
    fitting = columns_fit(policy, rollout, *floats)  # type: ignore[arg-type]
    valid = fits(targets.valid, torch.bool, *rollout.reward.shape)
    return (fitting and valid and order_fits(order, rollout.reward.numel())) or MISFIT


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
) -> dict[str, Tensor]:
    """headrace.algorithms.ppo.learn, with the same results within rounding."""
    moments = (optimizer.mean, optimizer.square)
    learner = _learners.get(
        lambda: RolloutLearner(compiled(policy, optimizer.flat), optimizer.flat, moments),
        *(policy, last_examined(policy), optimizer.flat, *moments),
    )
    number = number_of_minibatches(permutation.shape[1], config.minibatch_size, 1, reduce)
    settings = settings_of(optimizer, config.max_grad_norm, config.target_kl)
    objective = Objective(_loss(policy, config), settings, config.normalize_advantage)
    sums = learner.learn(policy, rollout, targets, permutation, number, objective, optimizer, reduce)
    return _metrics(sums, number, config)


def _loss(policy: ActorCritic, config: PPOConfig) -> Loss:
    coefficients = (config.clip, config.value_clip, config.value_coef, config.entropy_coef)
    return Loss(CLIPPED_RATIO, *map(np.float32, (*coefficients, *value_units(policy))))


def _metrics(sums: Tensor, number: int, config: PPOConfig) -> dict[str, Tensor]:
    """As the plain function's, from sums over each minibatch."""
    of_minibatches = sums.numpy()
    policy_loss, value_loss, entropy, _, clip_fraction = (np.add.reduce(of_minibatches) / len(sums))[:5].tolist()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    kl = float(np.add.reduce(of_minibatches[-number:, 3]) / len(of_minibatches[-number:]))
    means = torch.tensor((policy_loss, value_loss, -entropy, loss, clip_fraction, kl)).unbind()
    return dict(zip((*METRICS, "clip_fraction", "approx_kl"), means, strict=True))
