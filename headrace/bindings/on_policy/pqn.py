"""PQN's learning call by the CPU's kernels. The plain one is headrace.algorithms.pqn.learn."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.pqn import PQNConfig
from headrace.algorithms.reduce import Reduce, number_of_minibatches, one_learner
from headrace.bindings.actor_critic_layout import compiled_q
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
from headrace.kernels.learning.rollouts_arguments import LOG_PROB, Loss
from headrace.policies.examination import last_examined
from headrace.policies.networks import MLP, Readout, VectorEncoder
from headrace.policies.normalization import ObservationNormalizer
from headrace.policies.q_network import QNetwork

CLASSES = (QNetwork, MLP, Readout, VectorEncoder, ObservationNormalizer, Adam)  # whose methods this was written after
_LOSS = Loss(LOG_PROB, *(np.float32(0),) * 6)  # coefficients of actors and critics, which a Q-network has not
_learners: Bound[RolloutLearner] = Bound()


def serves(
    policy: QNetwork,
    optimizer: Adam,
    rollout: Rollout,
    returns: Tensor,
    order: Tensor,
    config: PQNConfig,
    reduce: Reduce = one_learner,
) -> bool | str:
    """Whether the kernel knows this policy and optimizer; else the reason."""
    if rollout.device.type != "cpu":
        return False
    if type(optimizer) is not Adam:
        return f"{type(optimizer).__name__} is not the Adam it was written for"
    if reason := why_not_learn(policy, optimizer):
        return reason
    if policy.dueling:
        return "it is written for one output layer, not for a dueling network's two"
    shape = (rollout.num_steps, rollout.num_envs)
    valid = fits(rollout.valid[: rollout.num_steps], torch.bool, *shape)
    fitting = valid and columns_fit(policy, rollout, returns)
    return (fitting and order_fits(order, rollout.reward.numel())) or MISFIT


@register("pqn.learn", serves, DIGESTS["pqn.learn"], CLASSES)
@torch.no_grad()
def learn(
    policy: QNetwork,
    optimizer: Adam,
    rollout: Rollout,
    returns: Tensor,
    order: Tensor,
    config: PQNConfig,
    reduce: Reduce = one_learner,
) -> dict[str, Tensor]:
    """headrace.algorithms.pqn.learn, with the same results within rounding."""
    moments = (optimizer.mean, optimizer.square)
    learner = _learners.get(
        lambda: RolloutLearner(compiled_q(policy, optimizer.flat), optimizer.flat, moments),
        *(policy, last_examined(policy), optimizer.flat, *moments),
    )
    number = number_of_minibatches(order.shape[1], config.minibatch_size, 1, reduce)
    targets = Targets(returns, returns, rollout.valid[: rollout.num_steps])
    objective = Objective(_LOSS, settings_of(optimizer, config.max_grad_norm))
    sums = learner.learn(policy, rollout, targets, order, number, objective, optimizer, reduce)
    means = sums.mean(0)
    return {"loss": means[1], "q_value": means[5]}
