"""APPO: PPO for rollouts of an earlier policy, corrected by V-trace. Espeholt et al. 2018, arXiv:1802.01561.

PPO's clipped ratio is relative to the policy that collected, and so corrects for it already. Therefore V-trace's
advantages are used without their importance weight rho. If the learning policy itself collected, APPO is PPO.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch import Tensor

from headrace.algorithms import ppo
from headrace.algorithms.config_bases import (
    ActorCriticConfig,
    ClippedConfig,
    IntrinsicConfig,
    OnPolicyConfig,
    VTraceConfig,
    narrowed,
)
from headrace.algorithms.on_policy import Loss, OnPolicy, Targets
from headrace.algorithms.vtrace.impala import importance_weights, mean_rho, vtrace_targets
from headrace.data.rollout import Rollout

MIN_RHO = 1e-30  # so that an advantage of 0 divided by it is 0


@dataclass(frozen=True, kw_only=True)
class APPOConfig(IntrinsicConfig, ClippedConfig, VTraceConfig, ActorCriticConfig, OnPolicyConfig):
    """APPO's settings: PPO's and V-trace's. Raises ValueError for one out of range."""

    def scaled(self, base_envs: int, num_envs: int, singly: bool = False, **fixed: Any) -> APPOConfig:
        """Adapt these settings, tuned for base_envs environments, to num_envs, as PPO's: see docs/scaling.md."""
        limits = {setting.name for setting in fields(VTraceConfig)}
        of_ppo = {name: value for name, value in fixed.items() if name not in limits}
        scaled = narrowed(self, ppo.PPOConfig).scaled(base_envs, num_envs, singly, **of_ppo)
        return replace(self, **{name: x for name, x in asdict(scaled).items() if hasattr(self, name)} | fixed)

    def lagging(self, num_envs: int, lag: int) -> APPOConfig:
        """Adapt these settings to a policy that collects with weights up to `lag` updates older, as PPO's."""
        return replace(self, num_steps=narrowed(self, ppo.PPOConfig).lagging(num_envs, lag).num_steps)


class APPO(OnPolicy[APPOConfig]):
    """PPO's epochs of minibatch steps on V-trace's advantages.

    Metrics: PPO's, and mean_rho, the mean of the importance weights min(clip_rho, ratio).
    """

    name = "appo"
    max_lag = None
    config = APPOConfig()
    loss: Loss | None = None  # in place of ppo_loss: a staticmethod of a subclass

    def process(self, rollout: Rollout) -> Targets:
        """V-trace's value targets, and its advantages without rho."""
        config = self.config
        targets = vtrace_targets(self.policy, rollout, config.gamma, config.gae_lambda, config)
        rho = importance_weights(rollout, targets, config.clip_rho).clamp(min=MIN_RHO)
        return targets._replace(advantage=targets.advantage / rho)

    def learn(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        order = self.permutation(rollout, self.config.epochs)
        settings = narrowed(self.config, ppo.PPOConfig)
        metrics = ppo.learn(self.policy, self.optimizer, rollout, targets, order, settings, self.reduce, self.loss)
        rho = mean_rho(rollout, targets, self.config.clip_rho, self.reduce)
        self.reduce(rho)
        return metrics | {"mean_rho": rho}
