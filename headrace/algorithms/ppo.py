"""PPO: proximal policy optimisation with a clipped objective. Schulman et al. 2017, arXiv:1707.06347."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, sqrt
from typing import Any, Literal

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.minibatches import count, minibatches
from headrace.algorithms.on_policy import OnPolicy, check_ranges, normalized
from headrace.core.device import known
from headrace.core.fused import fused
from headrace.core.returns import explained_variance, gae
from headrace.data.rollout import Rollout
from headrace.policies.base import Policy

METRICS = ("policy_gradient_loss", "value_loss", "entropy_loss", "loss")
FEWEST_ROWS = 1024  # of a rollout, below which gradients are too noisy: see docs/scaling.md


@dataclass(frozen=True)
class PPOConfig:
    """PPO's settings. Raises ValueError for one out of range."""

    num_steps: int = 128  # steps of each env in a rollout
    epochs: int = 4  # passes over each rollout
    minibatch_size: int = 256  # rows in a minibatch; taken so that all are of one size, the nearest to this
    learning_rate: float = 3e-4  # of Adam, at the start
    schedule: Literal["constant", "linear"] = "constant"  # of the learning rate: linear falls to 0 by the end
    gamma: float = 0.99  # discount of the reward one step later
    gae_lambda: float = 0.95  # share of longer returns in the advantage: 0 one step only, 1 all to the episode's end
    clip: float = 0.2  # how far from 1 the probability ratio is rewarded to move
    value_clip: float = 0.0  # how far a value may move from the one collected, in units of value_scale; 0 for off
    entropy_coef: float = 0.0  # weight of the entropy bonus in the loss
    value_coef: float = 0.5  # weight of the value loss in the loss
    max_grad_norm: float = 0.5  # the gradient's norm is scaled down to this
    target_kl: float = 0.0  # a rollout is left once the KL divergence passes 1.5 times this, in nats; 0 for off
    normalize_advantage: bool = True  # advantages to mean 0 and variance 1 over each rollout
    hidden: tuple[int, ...] = (64, 64)  # sizes of the hidden layers
    activation: str = "tanh"  # between them: tanh, relu, elu, silu, gelu, leaky_relu
    layer_norm: bool = False  # layer normalisation before each activation
    shared: bool = False  # actor and critic share their hidden layers
    distribution: Literal["auto", "categorical", "gaussian", "squashed"] = "auto"  # of actions; auto: by the space
    initial_std: float = 1.0  # standard deviation of Box actions at the start, in half their range
    images: Literal["auto", "nature", "impala", "small"] = "auto"  # network for image observations; auto: by size
    normalize_observation: bool = True  # observations to mean 0 and variance 1, by running statistics
    recurrent: Literal["none", "gru", "lstm"] = "none"  # what remembers earlier observations, if anything
    rnn_size: int = 64  # size of that memory
    sequence_length: int = 0  # steps through which gradients go back in memory, a divisor of num_steps; 0 for all
    normalize_return: bool = True  # the critic predicts normalised returns (PopArt)

    def __post_init__(self) -> None:
        counts = ("num_steps", "epochs", "minibatch_size")
        check_ranges(self, least_one=counts, above_zero=("learning_rate", "clip", "max_grad_norm", "initial_std"))
        for name in ("value_clip", "target_kl"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 (off) or above, got {getattr(self, name)}")

    def scaled(self, base_envs: int, num_envs: int, **fixed: Any) -> PPOConfig:
        """These settings, which are right for base_envs environments, made right for num_envs: docs/scaling.md.

        fixed: settings to have as given; the others follow from them too.
        """
        growth = num_envs / base_envs
        foresight = self.gamma * self.gae_lambda
        reach = ceil(1 / (1 - foresight)) if foresight < 1 else inf  # steps that an advantage sums over
        rows: float = self.num_steps * base_envs  # of a rollout
        if growth < 1:
            rows = max(rows * sqrt(growth), min(rows, FEWEST_ROWS))
        num_steps = max(round(rows / num_envs), min(self.num_steps, reach))
        if self.sequence_length:
            num_steps = ceil(num_steps / self.sequence_length) * self.sequence_length
        num_steps = fixed.get("num_steps", num_steps)
        larger = growth * num_steps / self.num_steps  # rollouts
        fresh = max(1.0, larger * sqrt(growth))  # how much less each row need be looked at
        epochs = fixed.get("epochs", max(1, int(self.epochs / fresh)))
        wider = 1 if "minibatch_size" in fixed else max(1, round(larger * epochs / self.epochs))  # minibatches
        settings = {
            "num_steps": num_steps,
            "epochs": epochs,
            "minibatch_size": self.minibatch_size * wider,
            "learning_rate": self.learning_rate * sqrt(wider),
            "target_kl": self.target_kl or (self.clip**2 / 2 if wider > 1 else 0.0),
        }
        return replace(self, **settings | fixed)


class PPO(OnPolicy):
    """Learns a policy from rollouts that it collected itself."""

    name = "ppo"
    config: PPOConfig

    def __init__(self, policy: Policy, config: PPOConfig = PPOConfig(), seed: int = 0) -> None:
        super().__init__(policy, config, seed)

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Learn from a rollout of this policy. progress: share of the training done, 0 .. 1.

        Gives metrics under SB3's names. policy_gradient_loss, value_loss, entropy_loss, loss and clip_fraction are
        means over all minibatches; approx_kl over the last epoch's; explained_variance is of the values collected.
        """
        config, value = self.config, rollout.value[:-1]
        self.set_learning_rate(progress)
        ends = (rollout.terminated, rollout.truncated)
        advantage = gae(rollout.reward, value, rollout.value[1:], *ends, config.gamma, config.gae_lambda)
        returns = advantage + value
        order = self.permutation(rollout, config.epochs)
        metrics = learn(self.policy, self.optimizer, rollout, advantage, returns, order, config)
        metrics["explained_variance"] = explained_variance(value, returns, rollout.valid[:-1])
        metrics["learning_rate"] = self.optimizer.learning_rate.clone()
        self.policy.update_statistics(rollout, returns)
        self.iteration += 1
        return metrics


@fused("ppo.learn", "headrace.bindings.ppo")
def learn(
    policy: Policy,
    optimizer: Adam,
    rollout: Rollout,
    advantage: Tensor,
    returns: Tensor,
    permutation: Tensor,
    config: PPOConfig,
) -> dict[str, Tensor]:
    """Epochs of minibatch steps on the clipped objective; eq. 7 and 9 of the paper. Gives metrics (see PPO.update).

    advantage, returns: [T, N]; permutation: int64 [epochs, T * N], the order of rows in each epoch. Every minibatch has
    the same shape; dead rows in it weigh nothing.
    """
    rows, unit = policy.rows, policy.sequence_length
    valid = rows(rollout.valid[: rollout.num_steps])
    advantage = normalized(rows(advantage), valid) if config.normalize_advantage else rows(advantage)
    columns = {
        "inputs": policy.inputs(rollout),
        "action": rows(rollout.action),
        "log_prob": rows(rollout.log_prob),
        "value": rows(rollout.value[: rollout.num_steps]),
        "advantage": advantage,
        "bound": advantage + config.clip * advantage.abs(),
        "returns": rows(returns),
        "valid": valid.to(torch.float32),
    }
    number = count(len(valid), config.minibatch_size, unit)
    skip = torch.zeros((), device=valid.device) if config.target_kl else None
    losses, log_ratios, weights = [], [], []
    for order in permutation:
        for batch in minibatches(columns, order, number, unit):
            weight = batch["valid"] / batch["valid"].sum().clamp(min=1)
            loss, parts, log_ratio = ppo_loss(policy, batch, weight, config)
            if skip is not None:
                skip = torch.maximum(skip, (_kl(log_ratio) @ weight > 1.5 * config.target_kl).to(skip.dtype))
            loss.backward()
            optimizer.step(config.max_grad_norm, skip)
            losses.append(parts)
            log_ratios.append(log_ratio)
            weights.append(weight)
        if skip is not None and known(skip):
            break  # nothing moves any more
    return _metrics(losses, torch.stack(log_ratios), torch.stack(weights), number, config.clip)


def ppo_loss(
    policy: Policy, batch: dict[str, Any], weight: Tensor, config: PPOConfig
) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """The loss of a minibatch, its parts in METRICS' order, and the log of the probability ratio [B], without gradient.

    weight [B]: 1 / number of valid rows, 0 at dead ones: `x @ weight` is the mean over valid rows.
    """
    log_prob, entropy, value = policy.log_prob_entropy_value(batch["inputs"], batch["action"])
    log_ratio = log_prob - batch["log_prob"]
    # eq. 7: min(r A, clip(r, 1 - c, 1 + c) A) = min(r A, A + c |A|)
    policy_loss = -(torch.minimum(log_ratio.exp() * batch["advantage"], batch["bound"]) @ weight)

    scale = policy.value_scale()
    error = (value - batch["returns"]).square()
    if config.value_clip:
        reach = config.value_clip * scale
        moved = (value - batch["value"]).clamp(-reach, reach)
        error = torch.maximum(error, (batch["value"] + moved - batch["returns"]).square())
    value_loss = (error @ weight) / scale**2

    entropy_loss = -(entropy @ weight)
    loss = policy_loss + config.value_coef * value_loss + config.entropy_coef * entropy_loss  # eq. 9
    parts = tuple(x.detach() for x in (policy_loss, value_loss, entropy_loss, loss))
    return loss, parts, log_ratio.detach()


def _kl(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(old || new) from each sample, never negative. Schulman 2020, joschu.net/blog/kl-approx.html."""
    return log_ratio.exp() - 1 - log_ratio


def _metrics(
    losses: list[tuple[Tensor, ...]], log_ratio: Tensor, weight: Tensor, number: int, clip: float
) -> dict[str, Tensor]:
    """Means over minibatches; log_ratio, weight: [minibatches, B], `number` of them an epoch."""
    means = torch.stack([torch.stack(part) for part in zip(*losses, strict=True)]).mean(1)
    metrics = dict(zip(METRICS, means, strict=True))
    clipped = (log_ratio.exp() - 1).abs() > clip
    metrics["clip_fraction"] = (clipped * weight).sum() / len(weight)
    metrics["approx_kl"] = (_kl(log_ratio[-number:]) * weight[-number:]).sum() / number
    return metrics
