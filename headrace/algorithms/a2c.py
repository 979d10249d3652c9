"""A2C: advantage actor-critic, the synchronous form of A3C. Mnih et al. 2016, arXiv:1602.01783."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from headrace.algorithms.on_policy import OnPolicy, check_ranges, normalized
from headrace.core.returns import explained_variance, gae
from headrace.data.rollout import Rollout
from headrace.policies.base import Policy


@dataclass(frozen=True)
class A2CConfig:
    """A2C's settings. Raises ValueError for one out of range."""

    num_steps: int = 8  # steps of each env in a rollout
    learning_rate: float = 1e-3  # of Adam, at the start
    schedule: Literal["constant", "linear"] = "constant"  # of the learning rate: linear falls to 0 by the end
    gamma: float = 0.99  # discount of the reward one step later
    gae_lambda: float = 1.0  # share of longer returns in the advantage: 1 is the paper's, to the rollout's end
    entropy_coef: float = 0.01  # weight of the entropy bonus in the loss
    value_coef: float = 0.5  # weight of the value loss in the loss
    max_grad_norm: float = 0.5  # the gradient's norm is scaled down to this
    normalize_advantage: bool = False  # advantages to mean 0 and variance 1 over each rollout
    hidden: tuple[int, ...] = (64, 64)  # sizes of the hidden layers
    activation: str = "tanh"  # between them: tanh, relu, elu, silu, gelu, leaky_relu
    shared: bool = False  # actor and critic share their hidden layers
    distribution: Literal["auto", "categorical", "gaussian", "squashed"] = "auto"  # of actions; auto: by the space
    images: Literal["auto", "nature", "impala", "small"] = "auto"  # network for image observations; auto: by size
    normalize_observation: bool = True  # observations to mean 0 and variance 1, by running statistics
    recurrent: Literal["none", "gru", "lstm"] = "none"  # what remembers earlier observations, if anything
    rnn_size: int = 64  # size of that memory
    sequence_length: int = 0  # steps through which gradients go back in memory, a divisor of num_steps; 0 for all
    normalize_return: bool = True  # the critic predicts normalised returns (PopArt)

    def __post_init__(self) -> None:
        check_ranges(self, least_one=("num_steps",), above_zero=("learning_rate", "max_grad_norm"))


class A2C(OnPolicy):
    """One gradient step on each rollout."""

    name = "a2c"
    config: A2CConfig

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Learn from a rollout of this policy. progress: share of the training done, 0 .. 1.

        Gives metrics under SB3's names: policy_loss, value_loss, entropy_loss, explained_variance, learning_rate.
        """
        config, value = self.config, rollout.value[:-1]
        self.set_learning_rate(progress)
        ends = (rollout.terminated, rollout.truncated)
        advantage = gae(rollout.reward, value, rollout.value[1:], *ends, config.gamma, config.gae_lambda)
        returns = advantage + value
        metrics = learn(self.policy, rollout, advantage, returns, config)
        self.optimizer.step(config.max_grad_norm)
        metrics["explained_variance"] = explained_variance(value, returns, rollout.valid[:-1])
        metrics["learning_rate"] = self.optimizer.learning_rate.clone()
        self.policy.update_statistics(rollout, returns)
        self.iteration += 1
        return metrics


def learn(policy: Policy, rollout: Rollout, advantage: Tensor, returns: Tensor, config: A2CConfig) -> dict[str, Tensor]:
    """Add the gradient of the loss over all rows to the parameters' .grad. Gives metrics (see A2C.update).

    Section 4.3 of the paper; advantage, returns: [T, N].
    """
    rows = policy.rows
    valid = rows(rollout.valid[: rollout.num_steps])
    weight = valid / valid.sum().clamp(min=1)  # x @ weight is the mean over valid rows
    advantage = rows(advantage)
    if config.normalize_advantage:
        advantage = normalized(advantage, valid)
    log_prob, entropy, value = policy.log_prob_entropy_value(policy.inputs(rollout), rows(rollout.action))
    policy_loss = -(log_prob * advantage) @ weight
    value_loss = (value - rows(returns)).square() @ weight / policy.value_scale() ** 2
    entropy_loss = -entropy @ weight
    loss = policy_loss + config.value_coef * value_loss + config.entropy_coef * entropy_loss
    loss.backward()
    losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": entropy_loss}
    return {name: x.detach() for name, x in losses.items()}
