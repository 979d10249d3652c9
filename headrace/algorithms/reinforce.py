"""REINFORCE: the policy gradient from whole returns. Williams 1992; with a learned baseline, Sutton & Barto 2018."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.config_bases import ActorCriticConfig, IntrinsicConfig, OnPolicyConfig
from headrace.algorithms.on_policy import Batch, Loss, OnPolicy, Targets, loss_gradient, policy_gradient_columns
from headrace.algorithms.reduce import Reduce, one_learner
from headrace.core.returns import discounted_returns
from headrace.data.rollout import Rollout
from headrace.policies.base import Policy


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(IntrinsicConfig, ActorCriticConfig, OnPolicyConfig):
    """REINFORCE's settings. Raises ValueError for one out of range."""

    learning_rate: float = 3e-3  # of Adam, at the start of training
    baseline: bool = True  # subtract a learned value from returns, and bootstrap from it at the end of the rollout
    entropy_coef: float = 0.0  # weight of the entropy bonus in the loss
    value_coef: float = 0.5  # weight of the baseline's loss in the loss


def reinforce_loss(policy: Policy, batch: Batch, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, Sutton & Barto 2018, 13.4, and its parts, means over the rows that count.

    The factor gamma^t of a state's place in its episode is left out, as in all common use.
    batch: `inputs` of the policy, `action`, `advantage`, `returns`, `weight`.
    """
    weight = batch["weight"]
    log_prob, entropy, value = policy.log_prob_entropy_value(batch["inputs"], batch["action"])
    policy_loss = -(log_prob * batch["advantage"]) @ weight
    entropy_loss = -entropy @ weight
    loss = policy_loss + config.entropy_coef * entropy_loss
    losses = {"policy_loss": policy_loss, "entropy_loss": entropy_loss}
    if config.baseline:
        losses["value_loss"] = (value - batch["returns"]).square() @ weight / policy.value_scale() ** 2
        loss = loss + config.value_coef * losses["value_loss"]
    return loss, losses


class Reinforce(OnPolicy[ReinforceConfig]):
    """One gradient step on each rollout. Metrics: policy_loss, entropy_loss, and value_loss with a baseline.

    The end of a rollout cuts off episodes. With a baseline they bootstrap from its value. Without one their rows do not
    count, so num_steps should be several times an episode's length.
    """

    name = "reinforce"
    max_lag = 0  # its gradient is that of the policy that collected
    gradient_modes = ("sync",)
    config = ReinforceConfig()
    loss: Loss | None = None  # in place of reinforce_loss: a staticmethod of a subclass

    def process(self, rollout: Rollout) -> Targets:
        """Discounted returns, and their difference to the baseline."""
        valid, ends = rollout.valid[:-1], (rollout.terminated, rollout.truncated)
        if self.config.baseline:
            returns = discounted_returns(rollout.reward, rollout.value[1:], *ends, self.config.gamma)
            return Targets(returns - rollout.value[:-1], returns, valid)
        ended = rollout.terminated | rollout.truncated  # without a baseline nothing is known beyond a time limit
        returns = discounted_returns(
            rollout.reward, torch.zeros_like(rollout.value[:-1]), ended, ended, self.config.gamma
        )
        return Targets(returns, returns, valid & _finished(ended))

    def gradient(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        return gradient(self.policy, rollout, targets, self.config, self.reduce, self.loss)

    def end_update(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self.config.baseline:
            del metrics["explained_variance"]
        return super().end_update(metrics)


def _finished(ended: Tensor) -> Tensor:
    """Mask of rows whose episode ends within the rollout, [T, N]."""
    return ended.flip(0).cumsum(0).flip(0) > 0


def gradient(
    policy: Policy,
    rollout: Rollout,
    targets: Targets,
    config: ReinforceConfig,
    reduce: Reduce = one_learner,
    loss: Loss | None = None,
) -> dict[str, Tensor]:
    """Add the gradient of the loss over the valid rows to the parameters' .grad. Gives its metrics."""
    columns = policy_gradient_columns(policy, rollout, targets, config, reduce)
    return loss_gradient(loss or reinforce_loss, policy, columns, config, reduce)
