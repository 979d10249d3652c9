"""REINFORCE: the policy gradient from whole returns. Williams 1992; with a learned baseline, Sutton & Barto 2018."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headrace.algorithms.on_policy import OnPolicy, check_ranges, normalized
from headrace.core.returns import discounted_returns, explained_variance
from headrace.data.rollout import Rollout
from headrace.policies.base import Policy


@dataclass(frozen=True)
class ReinforceConfig:
    """REINFORCE's settings. Raises ValueError for one out of range."""

    num_steps: int = 128  # steps of each env in a rollout
    learning_rate: float = 3e-3  # of Adam, at the start
    schedule: Literal["constant", "linear"] = "constant"  # of the learning rate: linear falls to 0 by the end
    gamma: float = 0.99  # discount of the reward one step later
    baseline: bool = True  # returns are compared with a learned value, which also stands for what the rollout cuts off
    normalize_advantage: bool = True  # what weighs log_prob to mean 0 and variance 1 over each rollout
    entropy_coef: float = 0.0  # weight of the entropy bonus in the loss
    value_coef: float = 0.5  # weight of the baseline's loss in the loss
    max_grad_norm: float = 0.5  # the gradient's norm is scaled down to this
    hidden: tuple[int, ...] = (64, 64)  # sizes of the hidden layers
    activation: str = "tanh"  # between them: tanh, relu, elu, silu, gelu, leaky_relu
    distribution: Literal["auto", "categorical", "gaussian", "squashed"] = "auto"  # of actions; auto: by the space
    images: Literal["auto", "nature", "impala", "small"] = "auto"  # network for image observations; auto: by size
    normalize_observation: bool = True  # observations to mean 0 and variance 1, by running statistics
    recurrent: Literal["none", "gru", "lstm"] = "none"  # what remembers earlier observations, if anything
    rnn_size: int = 64  # size of that memory
    sequence_length: int = 0  # steps through which gradients go back in memory, a divisor of num_steps; 0 for all
    normalize_return: bool = True  # the baseline predicts normalised returns (PopArt)

    def __post_init__(self) -> None:
        check_ranges(self, least_one=("num_steps",), above_zero=("learning_rate", "max_grad_norm"))


class Reinforce(OnPolicy):
    """One gradient step on each rollout.

    A rollout cuts off the episodes that its end falls into. With a baseline these go on with its value there; without,
    their rows do not count, so num_steps should be several times an episode's length.
    """

    name = "reinforce"
    config: ReinforceConfig

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Learn from a rollout of this policy. progress: share of the training done, 0 .. 1.

        Gives metrics under SB3's names: policy_loss, value_loss, entropy_loss, explained_variance, learning_rate.
        """
        config, value = self.config, rollout.value[:-1]
        self.set_learning_rate(progress)
        ends = (rollout.terminated, rollout.truncated)
        counts = rollout.valid[:-1]
        if config.baseline:
            returns = discounted_returns(rollout.reward, rollout.value[1:], *ends, config.gamma)
        else:
            # a time limit is the end of what there is to be had
            ended = rollout.terminated | rollout.truncated
            returns = discounted_returns(rollout.reward, torch.zeros_like(value), ended, ended, config.gamma)
            counts = counts & _finished(ended)
        metrics = _gradient(self.policy, rollout, returns, counts, config)
        self.optimizer.step(config.max_grad_norm)
        if config.baseline:
            metrics["explained_variance"] = explained_variance(value, returns, counts)
        metrics["learning_rate"] = self.optimizer.learning_rate.clone()
        self.policy.update_statistics(rollout, returns)
        self.iteration += 1
        return metrics


def _finished(ended: Tensor) -> Tensor:
    """Which rows [T, N] belong to an episode that ends within the rollout."""
    return ended.flip(0).cumsum(0).flip(0) > 0


def _gradient(
    policy: Policy, rollout: Rollout, returns: Tensor, counts: Tensor, config: ReinforceConfig
) -> dict[str, Tensor]:
    """Add the gradient of the loss over the rows that count to the parameters' .grad; Sutton & Barto 2018, 13.4.

    returns, counts: [T, N]. The discount of a state's place in its episode is left out, as in all common use.
    """
    rows = policy.rows
    counts, returns = rows(counts), rows(returns)
    weight = counts / counts.sum().clamp(min=1)  # x @ weight is the mean over rows that count
    log_prob, entropy, value = policy.log_prob_entropy_value(policy.inputs(rollout), rows(rollout.action))
    gain = returns
    if config.baseline:
        gain = gain - rows(rollout.value[: rollout.num_steps])
    if config.normalize_advantage:
        gain = normalized(gain, counts)
    policy_loss = -(log_prob * gain) @ weight
    entropy_loss = -entropy @ weight
    loss = policy_loss + config.entropy_coef * entropy_loss
    losses = {"policy_loss": policy_loss, "entropy_loss": entropy_loss}
    if config.baseline:
        losses["value_loss"] = (value - returns).square() @ weight / policy.value_scale() ** 2
        loss = loss + config.value_coef * losses["value_loss"]
    loss.backward()
    return {name: x.detach() for name, x in losses.items()}
