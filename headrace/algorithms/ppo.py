"""PPO: proximal policy optimisation with a clipped objective. Schulman et al. 2017, arXiv:1707.06347."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, sqrt
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import ActorCriticConfig, ClippedConfig, IntrinsicConfig, OnPolicyConfig
from headrace.algorithms.on_policy import Batch, Loss, OnPolicy, Targets, learn_minibatches
from headrace.algorithms.reduce import Reduce, means, normalized, number_of_minibatches, one_learner
from headrace.core.fused import fused
from headrace.data.rollout import Rollout
from headrace.policies.base import Policy
from headrace.setting_schedules import is_adaptive

KL = "approx_kl"
METRICS = ("policy_gradient_loss", "value_loss", "entropy_loss", "loss", "clip_fraction", KL)
LARGEST = 88.0  # log of a ratio; e^88.73 is infinite in float32
RATES = (1e-5, 1e-2)  # bounds of an adaptive learning rate, as in rsl_rl
MIN_ROWS = 1024  # of a rollout: with fewer, gradients are too noisy, see docs/scaling.md


@dataclass(frozen=True, kw_only=True)
class PPOConfig(IntrinsicConfig, ClippedConfig, ActorCriticConfig, OnPolicyConfig):
    """PPO's settings. Raises ValueError for one out of range."""

    def scaled(self, base_envs: int, num_envs: int, singly: bool = False, **fixed: Any) -> PPOConfig:
        """Adapt these settings, which were tuned for base_envs environments, to num_envs: see docs/scaling.md.

        singly: whether they are stepped one by one. New rows then cost more than further epochs. fixed: given settings,
        from which the others follow, too.
        """
        growth = num_envs / base_envs
        rows: float = self.num_steps * base_envs  # of a rollout
        if growth < 1:
            rows = max(rows * sqrt(growth), min(rows, MIN_ROWS))
        length = fixed.get("sequence_length", self.sequence_length)
        num_steps = fixed.get("num_steps", self._steps_of(rows, num_envs, length))
        rollout_growth = growth * num_steps / self.num_steps
        fewer_epochs = max(1.0, rollout_growth * (1 if singly else sqrt(growth)))
        epochs = fixed.get("epochs", max(1, int(self.epochs / fewer_epochs)))
        minibatch_growth = 1 if "minibatch_size" in fixed else max(1, round(rollout_growth * epochs / self.epochs))
        settings = {
            "num_steps": num_steps,
            "epochs": epochs,
            "minibatch_size": self.minibatch_size * minibatch_growth,
            "learning_rate": self.learning_rate * sqrt(minibatch_growth),
        }
        return replace(self, **settings | fixed)

    def lagging(self, num_envs: int, lag: int) -> PPOConfig:
        """Adapt these settings to a policy that collects with weights up to `lag` updates older than the learner's.

        Rollouts become shorter, so that the policy is not older in environment steps than in one process. Epochs and
        minibatches stay, and so does the number of gradient steps per environment step. See docs/parallel.md.
        """
        rows = self.num_steps * num_envs
        return replace(
            self, num_steps=self._steps_of(max(rows / (1 + lag), min(rows, MIN_ROWS)), num_envs, self.sequence_length)
        )

    def _steps_of(self, rows: float, num_envs: int, sequence_length: int) -> int:
        """Steps of a rollout with `rows` rows: as many as an advantage sums over, unless there were fewer before, and
        whole sequences."""
        decay = self.gamma * self.gae_lambda
        horizon = ceil(1 / (1 - decay)) if decay < 1 else inf
        unit = sequence_length or 1
        return ceil(max(round(rows / num_envs), min(self.num_steps, horizon)) / unit) * unit


def ppo_loss(policy: Policy, batch: Batch, config: PPOConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a minibatch, eq. 9 of the paper, and its metrics, means over the rows that count.

    batch: `inputs` of the policy, `action`, `log_prob` and `value` as collected, `advantage`, `returns`, `weight`.
    """
    weight, advantage = batch["weight"], batch["advantage"]
    log_prob, entropy, value = policy.log_prob_entropy_value(batch["inputs"], batch["action"])
    log_ratio = log_prob - batch["log_prob"]
    # eq. 7: min(r A, clip(r, 1 - c, 1 + c) A) = min(r A, A + c |A|)
    gain = torch.minimum(_ratio(log_ratio, advantage) * advantage, advantage + config.clip * advantage.abs())
    policy_loss = -(gain @ weight)

    scale = policy.value_scale()
    error = (value - batch["returns"]).square()
    if config.value_clip:
        limit = config.value_clip * scale
        clipped = batch["value"] + (value - batch["value"]).clamp(-limit, limit)
        error = torch.maximum(error, (clipped - batch["returns"]).square())
    value_loss = (error @ weight) / scale**2

    entropy_loss = -(entropy @ weight)
    loss = policy_loss + config.value_coef * value_loss + config.entropy_coef * entropy_loss  # eq. 9
    with torch.no_grad():
        clipped_rows = ((log_ratio.exp() - 1).abs() > config.clip).to(weight.dtype)
        losses = (policy_loss, value_loss, entropy_loss, loss, clipped_rows @ weight, _kl(log_ratio) @ weight)
    return loss, dict(zip(METRICS, losses, strict=True))


def _ratio(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """The probability ratio r, limited to e^88 where the advantage is positive. The clipped term is the smaller one
    there, and the gradient of an infinite r would be 0 times infinity, which is NaN."""
    return torch.where((log_ratio > LARGEST) & (advantage > 0), LARGEST, log_ratio).exp()


def _kl(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(old || new) from each sample, never negative. Schulman 2020, joschu.net/blog/kl-approx.html."""
    return log_ratio.exp() - 1 - log_ratio


class PPO(OnPolicy[PPOConfig]):
    """Epochs of minibatch steps on each rollout.

    Metrics: policy_gradient_loss, value_loss, entropy_loss, loss and clip_fraction are means over all minibatches;
    approx_kl over those of the last epoch.
    """

    name = "ppo"
    config = PPOConfig()
    loss: Loss | None = None  # in place of ppo_loss: a staticmethod of a subclass

    def learn(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        order = self.permutation(rollout, self.config.epochs)
        return learn(self.policy, self.optimizer, rollout, targets, order, self.config, self.reduce, self.loss)


@fused("ppo.learn", quiet=True)  # has kernels for GPUs: headrace.bindings.actor_critic_cuda
def learn(
    policy: Policy,
    optimizer: Adam,
    rollout: Rollout,
    targets: Targets,
    permutation: Tensor,
    config: PPOConfig,
    reduce: Reduce = one_learner,
    loss: Loss | None = None,
) -> dict[str, Tensor]:
    """Epochs of minibatch steps on the clipped objective, eq. 7 and 9 of the paper, or on another loss of the same
    batches. Gives metrics (see PPO.update).

    permutation: int64 [epochs, T * N], the order of rows in each epoch. Every minibatch has the same shape; masked rows
    in it have weight 0. With several learners, a minibatch is one of the rows of each.
    """
    rows, unit = policy.rows, policy.sequence_length
    valid, advantage = rows(targets.valid), rows(targets.advantage)
    if config.normalize_advantage:
        advantage = normalized(advantage, valid, reduce)
    columns = {
        "inputs": policy.inputs(rollout),
        "action": rows(rollout.action),
        "log_prob": rows(rollout.log_prob),
        "value": rows(rollout.value[: rollout.num_steps]),
        "advantage": advantage,
        "returns": rows(targets.returns),
        "valid": valid.to(torch.float32),
    }
    number = number_of_minibatches(len(valid), config.minibatch_size, unit, reduce)
    limit = (KL, 1.5 * config.target_kl) if config.target_kl else None
    learn = _learn_adaptively if is_adaptive(config) else learn_minibatches
    found = learn(loss or ppo_loss, policy, optimizer, columns, permutation, number, config, reduce, limit)
    metrics = means(found, {KL: number})
    reduce(*metrics.values())
    return metrics


def _learn_adaptively(
    loss: Loss,
    policy: Policy,
    optimizer: Adam,
    columns: dict[str, Any],
    order: Tensor,
    number: int,
    config: PPOConfig,
    reduce: Reduce,
    _: object,
) -> dict[str, Tensor]:
    """learn_minibatches(), with a learning rate that is adapted to each minibatch's KL divergence, as in rsl_rl."""
    found = []
    size = order.shape[1] // policy.sequence_length // number * policy.sequence_length
    for rows in order[:, : size * number].reshape(-1, 1, size):
        found.append(learn_minibatches(loss, policy, optimizer, columns, rows, 1, config, reduce))
        kl = found[-1][KL][0].clone()
        reduce(kl)
        _adapt(optimizer.learning_rate, kl, config.desired_kl)
    return {name: torch.cat([metrics[name] for metrics in found]) for name in found[0]}


def _adapt(rate: Tensor, kl: Tensor, desired: float) -> None:
    """Lower the learning rate if the divergence is twice the desired one or more, and raise it if it is half or less.
    This is rsl_rl's rule (Schwarke et al. 2025, arXiv:2509.10771), after the step rather than before it."""
    lower, higher = (rate / 1.5).clamp(min=RATES[0]), (rate * 1.5).clamp(max=RATES[1])
    rate.copy_(torch.where(kl > 2 * desired, lower, torch.where((kl < desired / 2) & (kl > 0), higher, rate)))
