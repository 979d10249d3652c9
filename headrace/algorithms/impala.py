"""IMPALA: an actor-critic for rollouts of an earlier policy, by V-trace. Espeholt et al. 2018, arXiv:1802.01561."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headrace.algorithms import a2c
from headrace.algorithms.config_bases import ActorCriticConfig, OnPolicyConfig, VTraceConfig, narrowed
from headrace.algorithms.on_policy import Loss, OnPolicy, Targets, mean_rho, vtrace_targets
from headrace.data.rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(VTraceConfig, ActorCriticConfig, OnPolicyConfig):
    """IMPALA's settings. Raises ValueError for one out of range."""

    num_steps: int = 20  # steps of each environment in a rollout
    learning_rate: float = 1e-3  # of Adam, at the start of training
    gae_lambda: float = 1.0  # factor of the importance weights of earlier steps; 1 is the paper's
    entropy_coef: float = 0.01  # weight of the entropy bonus in the loss
    value_coef: float = 0.5  # weight of the value loss in the loss
    normalize_advantage: bool = False  # advantages to mean 0 and variance 1 over each rollout
    shared: bool = False  # actor and critic share their hidden layers


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
        """That of section 4.2 with means instead of sums, which is A2C's."""
        settings = narrowed(self.config, a2c.A2CConfig)
        metrics = a2c.gradient(self.policy, rollout, targets, settings, self.reduce, self.loss)
        return metrics | {"mean_rho": mean_rho(rollout, targets, self.config.clip_rho, self.reduce)}
