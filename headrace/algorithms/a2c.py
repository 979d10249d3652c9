"""A2C: advantage actor-critic, the synchronous form of A3C. Mnih et al. 2016, arXiv:1602.01783."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headrace.algorithms.config_bases import ActorCriticConfig, IntrinsicConfig, OnPolicyConfig
from headrace.algorithms.on_policy import Batch, Loss, OnPolicy, Targets, loss_gradient, policy_gradient_columns
from headrace.algorithms.reduce import Reduce, one_learner
from headrace.data.rollout import Rollout
from headrace.policies.base import Policy


@dataclass(frozen=True, kw_only=True)
class A2CConfig(IntrinsicConfig, ActorCriticConfig, OnPolicyConfig):
    """A2C's settings. Raises ValueError for one out of range."""

    num_steps: int = 8  # steps of each environment in a rollout
    learning_rate: float = 1e-3  # of Adam, at the start of training
    gae_lambda: float = 1.0  # of generalised advantage estimation; 1 is the paper's: returns to the rollout's end
    entropy_coef: float = 0.01  # weight of the entropy bonus in the loss
    value_coef: float = 0.5  # weight of the value loss in the loss
    normalize_advantage: bool = False  # advantages to mean 0 and variance 1 over each rollout
    shared: bool = False  # actor and critic share their hidden layers


def a2c_loss(policy: Policy, batch: Batch, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of section 4.3 of the paper, and its parts, means over the rows that count.

    batch: `inputs` of the policy, `action`, `advantage`, `returns`, `weight`.
    """
    weight = batch["weight"]
    log_prob, entropy, value = policy.log_prob_entropy_value(batch["inputs"], batch["action"])
    policy_loss = -(log_prob * batch["advantage"]) @ weight
    value_loss = (value - batch["returns"]).square() @ weight / policy.value_scale() ** 2
    entropy_loss = -entropy @ weight
    loss = policy_loss + config.value_coef * value_loss + config.entropy_coef * entropy_loss
    return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": entropy_loss}


class A2C(OnPolicy[A2CConfig]):
    """One gradient step on each rollout. Metrics: policy_loss, value_loss, entropy_loss."""

    name = "a2c"
    gradient_modes = ("sync", "async")
    config = A2CConfig()
    loss: Loss | None = None  # in place of a2c_loss: a staticmethod of a subclass

    def gradient(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        return gradient(self.policy, rollout, targets, self.config, self.reduce, self.loss)


def gradient(
    policy: Policy,
    rollout: Rollout,
    targets: Targets,
    config: A2CConfig,
    reduce: Reduce = one_learner,
    loss: Loss | None = None,
) -> dict[str, Tensor]:
    """Add the gradient of the loss over all rows to the parameters' .grad. Gives its metrics."""
    columns = policy_gradient_columns(policy, rollout, targets, config, reduce)
    return loss_gradient(loss or a2c_loss, policy, columns, config, reduce)
