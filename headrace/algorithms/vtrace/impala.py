"""IMPALA: an actor-critic for rollouts of an earlier policy, by V-trace. Espeholt et al. 2018, arXiv:1802.01561."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.algorithms import a2c
from headrace.algorithms.config_bases import ActorCriticConfig, IntrinsicConfig, OnPolicyConfig, VTraceConfig, narrowed
from headrace.algorithms.on_policy import Loss, OnPolicy, Targets
from headrace.algorithms.reduce import Reduce, mean_weights, one_learner
from headrace.core.returns import vtrace
from headrace.data.rollout import Rollout
from headrace.policies.base import Policy


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(IntrinsicConfig, VTraceConfig, ActorCriticConfig, OnPolicyConfig):
    """IMPALA's settings. Raises ValueError for one out of range."""

    num_steps: int = 20  # steps of each environment in a rollout
    learning_rate: float = 1e-3  # of Adam, at the start of training
    gae_lambda: float = 1.0  # factor of the importance weights of earlier steps; 1 is the paper's
    entropy_coef: float = 0.01  # weight of the entropy bonus in the loss
    value_coef: float = 0.5  # weight of the value loss in the loss
    normalize_advantage: bool = False  # advantages to mean 0 and variance 1 over each rollout
    shared: bool = False  # actor and critic share their hidden layers


@torch.no_grad()
def vtrace_targets(policy: Policy, rollout: Rollout, gamma: float, gae_lambda: float, limits: VTraceConfig) -> Targets:
    """V-trace's advantages and value targets, from the log-probabilities and values of the present policy."""
    log_prob, _, value = policy.evaluate_rollout(rollout)
    value = torch.cat((value, policy.bootstrap_value(rollout).unsqueeze(0)))
    steps = (rollout.reward, value[:-1], value[1:], rollout.terminated, rollout.truncated)
    log_ratio, clip_rho, clip_c = log_prob - rollout.log_prob, limits.clip_rho, limits.clip_c
    returns, advantage = vtrace(log_ratio, *steps, gamma, gae_lambda, clip_rho=clip_rho, clip_c=clip_c)
    return Targets(advantage, returns, rollout.valid[:-1], log_prob)


def importance_weights(rollout: Rollout, targets: Targets, clip_rho: float) -> Tensor:
    """V-trace's rho of each step, min(clip_rho, ratio), [T, N]."""
    log_ratio = torch.zeros_like(rollout.log_prob) if targets.log_prob is None else targets.log_prob - rollout.log_prob
    return log_ratio.exp().clamp(max=clip_rho)


def mean_rho(rollout: Rollout, targets: Targets, clip_rho: float, reduce: Reduce = one_learner) -> Tensor:
    """Mean importance weight of all valid rows, this learner's part of it. It is 1 if the learning policy collected."""
    rho = importance_weights(rollout, targets, clip_rho)
    return rho.flatten() @ mean_weights(targets.valid.flatten(), reduce)


class IMPALA(OnPolicy[IMPALAConfig]):
    """One gradient step on each rollout, A2C's on V-trace's advantages.

    Metrics: A2C's, and mean_rho, the mean of the importance weights min(clip_rho, ratio).
    """

    name = "impala"
    max_lag = None
    config = IMPALAConfig()
    loss: Loss | None = None  # in place of a2c_loss: a staticmethod of a subclass

    def process(self, rollout: Rollout) -> Targets:
        """V-trace's advantages and value targets; section 4 of the paper."""
        return vtrace_targets(self.policy, rollout, self.config.gamma, self.config.gae_lambda, self.config)

    def gradient(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        """The gradient of section 4.2 with means instead of sums, which is A2C's."""
        settings = narrowed(self.config, a2c.A2CConfig)
        metrics = a2c.gradient(self.policy, rollout, targets, settings, self.reduce, self.loss)
        return metrics | {"mean_rho": mean_rho(rollout, targets, self.config.clip_rho, self.reduce)}
