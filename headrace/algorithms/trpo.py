"""TRPO: natural gradient steps of bounded KL divergence. Schulman et al. 2015, arXiv:1502.05477."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.minibatches import count, minibatches
from headrace.algorithms.on_policy import OnPolicy, check_ranges, normalized
from headrace.core.device import known
from headrace.core.returns import explained_variance, gae
from headrace.data.rollout import Rollout

SMALLEST = 1e-30  # divisors are at least this, so that a gradient of 0 gives a step of 0


@dataclass(frozen=True)
class TRPOConfig:
    """TRPO's settings. Raises ValueError for one out of range."""

    num_steps: int = 128  # steps of each env in a rollout
    max_kl: float = 0.01  # KL divergence of the new policy from the old one, at most, in nats
    cg_steps: int = 10  # steps of the conjugate gradient
    damping: float = 0.1  # added to the Fisher matrix' diagonal
    backtracks: int = 10  # step sizes that the line search tries
    backtrack_coef: float = 0.8  # each is this much of the one before
    critic_epochs: int = 10  # passes of the critic over each rollout
    minibatch_size: int = 256  # rows in one of the critic's minibatches
    learning_rate: float = 1e-3  # of the critic's Adam, at the start
    schedule: Literal["constant", "linear"] = "constant"  # of the learning rate: linear falls to 0 by the end
    gamma: float = 0.99  # discount of the reward one step later
    gae_lambda: float = 0.95  # share of longer returns in the advantage: 0 one step only, 1 all to the episode's end
    max_grad_norm: float = 0.5  # the norm of the critic's gradient is scaled down to this
    normalize_advantage: bool = True  # advantages to mean 0 and variance 1 over each rollout
    hidden: tuple[int, ...] = (64, 64)  # sizes of the hidden layers
    activation: str = "tanh"  # between them: tanh, relu, elu, silu, gelu, leaky_relu
    distribution: Literal["auto", "categorical", "gaussian", "squashed"] = "auto"  # of actions; auto: by the space
    images: Literal["auto", "nature", "impala", "small"] = "auto"  # network for image observations; auto: by size
    normalize_observation: bool = True  # observations to mean 0 and variance 1, by running statistics
    recurrent: Literal["none", "gru", "lstm"] = "none"  # what remembers earlier observations, if anything
    rnn_size: int = 64  # size of that memory
    sequence_length: int = 0  # steps through which gradients go back in memory, a divisor of num_steps; 0 for all
    normalize_return: bool = True  # the critic predicts normalised returns (PopArt)

    def __post_init__(self) -> None:
        counts = ("num_steps", "cg_steps", "backtracks", "critic_epochs", "minibatch_size")
        check_ranges(self, least_one=counts, above_zero=("learning_rate", "max_grad_norm", "max_kl"))
        if not 0 < self.backtrack_coef < 1:
            raise ValueError(f"backtrack_coef must lie between 0 and 1, got {self.backtrack_coef}")
        if self.damping < 0:
            raise ValueError(f"damping must be 0 or above, got {self.damping}")


class TRPO(OnPolicy):
    """One natural gradient step of the actor on each rollout, then some of Adam for the critic."""

    name = "trpo"
    policy: Any  # an ActorCritic, or a RecurrentActorCritic
    config: TRPOConfig

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Learn from a rollout of this policy. progress: share of the training done, 0 .. 1.

        Gives metrics under SB3's names: policy_objective (the surrogate gained), kl_divergence_loss,
        line_search_success (1 where a step was taken), value_loss, explained_variance, learning_rate.
        """
        config, value = self.config, rollout.value[:-1]
        self.set_learning_rate(progress)
        ends = (rollout.terminated, rollout.truncated)
        advantage = gae(rollout.reward, value, rollout.value[1:], *ends, config.gamma, config.gae_lambda)
        returns = advantage + value
        metrics = learn_actor(self.policy, rollout, advantage, config)
        order = self.permutation(rollout, config.critic_epochs)
        metrics["value_loss"] = learn_critic(self.policy, self.optimizer, rollout, returns, order, config)
        metrics["explained_variance"] = explained_variance(value, returns, rollout.valid[:-1])
        metrics["learning_rate"] = self.optimizer.learning_rate.clone()
        self.policy.update_statistics(rollout, returns)
        self.iteration += 1
        return metrics


def learn_actor(policy: Any, rollout: Rollout, advantage: Tensor, config: TRPOConfig) -> dict[str, Tensor]:
    """Step along the natural gradient of the surrogate, as far as KL and line search allow; appendix C of the paper.

    advantage: [T, N]. Gives metrics (see TRPO.update).
    """
    rows = policy.rows
    valid = rows(rollout.valid[: rollout.num_steps])
    weight = valid / valid.sum().clamp(min=1)  # x @ weight is the mean over valid rows
    gain = normalized(rows(advantage), valid) if config.normalize_advantage else rows(advantage)
    inputs, action = policy.inputs(rollout), rows(rollout.action)
    parameters = policy.actor_parameters()
    with torch.no_grad():
        old = policy.distribution(inputs)
        old_log_prob = old.log_prob(action)

    def surrogate_and_kl() -> tuple[Tensor, Tensor]:
        now = policy.distribution(inputs)
        ratio = (now.log_prob(action) - old_log_prob).exp()
        return (ratio * gain) @ weight, old.kl(now) @ weight  # eq. 14

    objective, divergence = surrogate_and_kl()
    gradient = _gradient(objective, parameters, retain_graph=True)
    slope = _gradient(divergence, parameters, create_graph=True)

    def fisher(vector: Tensor) -> Tensor:
        """The KL's Hessian times a vector, by differentiating its slope along it; appendix C.1."""
        return _gradient(slope @ vector, parameters, retain_graph=True) + config.damping * vector

    with torch.no_grad():
        direction = conjugate_gradient(fisher, gradient, config.cg_steps)
        with torch.enable_grad():
            curvature = direction @ fisher(direction)
        step = (2 * config.max_kl / curvature.clamp(min=SMALLEST)).sqrt() * direction
        return _line_search(surrogate_and_kl, parameters, step, objective.detach(), config)


def conjugate_gradient(product: Callable[[Tensor], Tensor], target: Tensor, steps: int) -> Tensor:
    """x such that product(x) is near `target`, for a positive definite matrix. Hestenes & Stiefel 1952."""
    x, residual = torch.zeros_like(target), target.clone()
    direction, square = residual.clone(), residual @ residual
    for _ in range(steps):
        with torch.enable_grad():
            image = product(direction)
        length = square / (direction @ image).clamp(min=SMALLEST)
        x += length * direction
        residual -= length * image
        before, square = square, residual @ residual
        direction = residual + square / before.clamp(min=SMALLEST) * direction
    return x


def _line_search(
    surrogate_and_kl: Callable[[], tuple[Tensor, Tensor]],
    parameters: Sequence[nn.Parameter],
    step: Tensor,
    before: Tensor,
    config: TRPOConfig,
) -> dict[str, Tensor]:
    """Take the longest of the shrinking steps that improves the surrogate and keeps the KL bound; else none."""
    start = [p.detach().clone() for p in parameters]
    size, taken = 1.0, torch.zeros_like(before)
    gained, divergence = torch.zeros_like(before), torch.zeros_like(before)
    for _ in range(config.backtracks):
        _move(parameters, start, size * step)
        objective, kl = surrogate_and_kl()
        # a comparison with NaN is false: a step that breaks the policy is not taken
        good = (objective > before) & (kl <= config.max_kl) & (taken == 0)
        taken = torch.where(good, size, taken)
        gained = torch.where(good, objective - before, gained)
        divergence = torch.where(good, kl, divergence)
        if known(taken > 0):
            break
        size *= config.backtrack_coef
    _move(parameters, start, torch.where(taken > 0, taken * step, 0.0))
    return {
        "policy_objective": gained,
        "kl_divergence_loss": divergence,
        "line_search_success": (taken > 0).to(before.dtype),
    }


def _move(parameters: Sequence[nn.Parameter], start: Sequence[Tensor], step: Tensor) -> None:
    for parameter, at, piece in zip(parameters, start, step.split([p.numel() for p in parameters]), strict=True):
        torch.add(at, piece.view(at.shape), out=parameter.data)


def _gradient(value: Tensor, parameters: Sequence[nn.Parameter], **options: Any) -> Tensor:
    """The gradient of a scalar in all parameters, as one vector [P]."""
    return torch.cat([x.flatten() for x in torch.autograd.grad(value, parameters, **options)])


def learn_critic(
    policy: Any, optimizer: Adam, rollout: Rollout, returns: Tensor, permutation: Tensor, config: TRPOConfig
) -> Tensor:
    """Fit the values to returns [T, N] in epochs of minibatches; gives the mean loss. The actor stays as it is.

    permutation: int64 [epochs, T * N], the order of rows in each epoch.
    """
    valid = policy.rows(rollout.valid[: rollout.num_steps]).to(torch.float32)
    columns = {"inputs": policy.inputs(rollout), "returns": policy.rows(returns), "valid": valid}
    unit = policy.sequence_length
    number = count(len(valid), config.minibatch_size, unit)
    losses = []
    for order in permutation:
        for batch in minibatches(columns, order, number, unit):
            weight = batch["valid"] / batch["valid"].sum().clamp(min=1)
            _, value = policy(batch["inputs"])
            loss = (value - batch["returns"]).square() @ weight / policy.value_scale() ** 2
            loss.backward()
            for parameter in policy.shared_parameters():  # else the critic would move the actor out of its bound
                parameter.grad.zero_()
            optimizer.step(config.max_grad_norm)  # Adam moves nothing whose gradient has always been 0
            losses.append(loss.detach())
    return torch.stack(losses).mean()
