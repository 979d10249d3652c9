"""A2C's and REINFORCE's gradients by the CPU's kernels. The plain ones are gradient() of headrace.algorithms.a2c, which
IMPALA uses too, and of headrace.algorithms.reinforce."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.a2c import A2CConfig
from headrace.algorithms.on_policy import Loss as PlainLoss
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.reduce import Reduce, one_learner
from headrace.algorithms.reinforce import ReinforceConfig
from headrace.bindings.actor_critic_layout import CLASSES, compiled, value_units
from headrace.bindings.arguments import MISFIT, fits
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import gradient_buffer, verdict
from headrace.bindings.on_policy.rollout_learner import NO_STEP, Objective, RolloutLearner, columns_fit
from headrace.core.fused import register
from headrace.data.rollout import Rollout
from headrace.kernels.learning.rollouts_arguments import LOG_PROB, Loss
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy
from headrace.policies.examination import last_examined

_learners: Bound[RolloutLearner] = Bound()


def serves(
    policy: Policy,
    rollout: Rollout,
    targets: Targets,
    config: A2CConfig | ReinforceConfig,
    reduce: Reduce = one_learner,
    loss: PlainLoss | None = None,
) -> bool | str:
    """Whether the kernel knows this policy; else the reason."""
    if rollout.device.type != "cpu" or loss is not None:
        return False
    found = verdict(policy)
    if found.learning:
        return found.learning
    if found.flat is None or gradient_buffer(policy, found.flat) is None:
        return "parameters, or their gradients, are not float32 views of one buffer"
    fitting = columns_fit(policy, rollout, targets.advantage, targets.returns)  # type: ignore[arg-type]
    return (fitting and fits(targets.valid, torch.bool, *rollout.reward.shape)) or MISFIT


def _gradient(
    policy: ActorCritic,
    rollout: Rollout,
    targets: Targets,
    config: A2CConfig | ReinforceConfig,
    reduce: Reduce,
    value_coef: float,
) -> dict[str, Tensor]:
    """Add the gradient to the parameters' .grad. Returns the losses."""
    flat = verdict(policy).flat
    assert flat is not None, "which serves() sees"
    into = gradient_buffer(policy, flat)
    learner = _learners.get(lambda: RolloutLearner(compiled(policy, flat), flat), policy, last_examined(policy), flat)
    coefficients = (0.0, 0.0, value_coef, config.entropy_coef, *value_units(policy))
    loss = Loss(LOG_PROB, *map(np.float32, coefficients))
    objective = Objective(loss, NO_STEP, config.normalize_advantage)
    sums = learner.gradient(policy, rollout, targets, objective, reduce)
    into += learner.flat  # type: ignore[operator]
    policy_loss, value_loss, entropy = sums[:3].clone().unbind()
    return {"policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": -entropy}


@register("a2c.gradient", serves, DIGESTS["a2c.gradient"], CLASSES)
@torch.no_grad()
def a2c_gradient(
    policy: ActorCritic,
    rollout: Rollout,
    targets: Targets,
    config: A2CConfig,
    reduce: Reduce = one_learner,
    loss: PlainLoss | None = None,
) -> dict[str, Tensor]:
    """headrace.algorithms.a2c.gradient, with the same results within rounding."""
    return _gradient(policy, rollout, targets, config, reduce, config.value_coef)


@register("reinforce.gradient", serves, DIGESTS["reinforce.gradient"], CLASSES)
@torch.no_grad()
def reinforce_gradient(
    policy: ActorCritic,
    rollout: Rollout,
    targets: Targets,
    config: ReinforceConfig,
    reduce: Reduce = one_learner,
    loss: PlainLoss | None = None,
) -> dict[str, Tensor]:
    """headrace.algorithms.reinforce.gradient, with the same results within rounding."""
    losses = _gradient(policy, rollout, targets, config, reduce, config.value_coef if config.baseline else 0.0)
    if not config.baseline:
        del losses["value_loss"]
    return losses
