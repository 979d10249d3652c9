"""PQN's learning call by the CPU's kernels. The plain one is headrace.algorithms.pqn.learn."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Loss as PlainLoss
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.pqn import PQNConfig
from headrace.algorithms.reduce import Reduce, number_of_minibatches, one_learner
from headrace.bindings.actor_critic_layout import compiled_q
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
    loss: PlainLoss | None = None,
) -> bool | str:
    """Whether the kernel knows this policy and optimizer; else the reason."""
    if loss is not None:
        return False
    if (reason := why_not_steps(policy, optimizer, rollout)) is not None:
        return reason
    if policy.dueling:
        return AsChosen("it is written for one output layer, not for a dueling network's two")
    return all_fit(policy, rollout, rollout.valid[: rollout.num_steps], order, returns)


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
    loss: PlainLoss | None = None,
) -> dict[str, Tensor]:
    """headrace.algorithms.pqn.learn, with the same results within rounding."""
    learner = learner_of(_learners, policy, optimizer, lambda: compiled_q(policy, optimizer.flat))
    number = number_of_minibatches(order.shape[1], config.minibatch_size, 1, reduce)
    targets = Targets(returns, returns, rollout.valid[: rollout.num_steps])
    objective = Objective(_LOSS, settings_of(optimizer, config.max_grad_norm))
    sums = learner.learn(policy, rollout, targets, order, number, objective, optimizer, reduce)
    means = sums.mean(0)
    return {"loss": means[1], "q_value": means[5]}
