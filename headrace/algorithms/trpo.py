"""TRPO: natural gradient steps of bounded KL divergence. Schulman et al. 2015, arXiv:1502.05477."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import ActorCriticConfig, IntrinsicConfig, OnPolicyConfig
from headrace.algorithms.on_policy import AnyActorCritic, Batch, Loss, OnPolicy, Targets, learn_minibatches
from headrace.algorithms.reduce import Reduce, mean_weights, normalized, number_of_minibatches, one_learner
from headrace.core.device import known
from headrace.data.rollout import Rollout

Surrogate = Callable[[], tuple[Tensor, Tensor]]  # gives the surrogate objective, and the KL divergence
MIN_DIVISOR = 1e-30  # so that a gradient of 0 gives a step of 0


@dataclass(frozen=True, kw_only=True)
class TRPOConfig(IntrinsicConfig, ActorCriticConfig, OnPolicyConfig):
    """TRPO's settings. Raises ValueError for one out of range."""

    max_kl: float = 0.01  # largest KL divergence of the new policy from the old one, in nats
    cg_steps: int = 10  # steps of the conjugate gradient method
    damping: float = 0.1  # added to the diagonal of the Fisher matrix
    backtracks: int = 10  # step sizes that the line search tries
    backtrack_coef: float = 0.8  # factor from each step size to the next
    critic_epochs: int = 10  # passes of the critic over each rollout
    minibatch_size: int = 256  # rows of one of the critic's minibatches
    learning_rate: float = 1e-3  # of the critic's Adam, at the start of training
    gae_lambda: float = 0.95  # of generalised advantage estimation: 0 one-step, 1 returns to the rollout's end


class TRPO(OnPolicy[TRPOConfig]):
    """One natural gradient step of the actor on each rollout, then steps of Adam for the critic.

    Metrics: policy_objective (the gain in the surrogate objective), kl_divergence_loss, line_search_success (1 where a
    step was taken), value_loss.
    """

    name = "trpo"
    policy: AnyActorCritic
    config = TRPOConfig()
    loss: Loss | None = None  # of the critic, in place of critic_loss: a staticmethod of a subclass

    def learn(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        metrics = learn_actor(self.policy, rollout, targets.advantage, self.config, self.reduce)
        order = self.permutation(rollout, self.config.critic_epochs)
        metrics["value_loss"] = learn_critic(
            self.policy, self.optimizer, rollout, targets.returns, order, self.config, self.reduce, self.loss
        )
        return metrics


def learn_actor(
    policy: AnyActorCritic, rollout: Rollout, advantage: Tensor, config: TRPOConfig, reduce: Reduce = one_learner
) -> dict[str, Tensor]:
    """Step along the natural gradient of the surrogate, as far as KL and line search allow; appendix C of the paper.

    advantage: [T, N]. Gives metrics (see TRPO.update).
    """
    rows = policy.rows
    valid = rows(rollout.valid[: rollout.num_steps])
    weight = mean_weights(valid, reduce)
    advantage = normalized(rows(advantage), valid, reduce) if config.normalize_advantage else rows(advantage)
    inputs, action = policy.inputs(rollout), rows(rollout.action)
    parameters = [parameter for parameter in policy.actor_parameters() if parameter.requires_grad]
    with torch.no_grad():
        old = policy.distribution(inputs)
        old_log_prob = old.log_prob(action)

    def surrogate_and_kl() -> tuple[Tensor, Tensor]:
        now = policy.distribution(inputs)
        ratio = (now.log_prob(action) - old_log_prob).exp()
        return (ratio * advantage) @ weight, old.kl(now) @ weight  # eq. 14

    objective, divergence = surrogate_and_kl()
    gradient, before = _gradient(objective, parameters, retain_graph=True), objective.detach()
    reduce(gradient, before)
    kl_gradient = _gradient(divergence, parameters, create_graph=True)

    def fisher(vector: Tensor) -> Tensor:
        """The KL's Hessian times a vector, by differentiating its gradient along it; appendix C.1."""
        product = _gradient(kl_gradient @ vector, parameters, retain_graph=True)
        reduce(product)
        return product + config.damping * vector

    with torch.no_grad():
        direction = conjugate_gradient(fisher, gradient, config.cg_steps)
        with torch.enable_grad():
            curvature = direction @ fisher(direction)
        step = (2 * config.max_kl / curvature.clamp(min=MIN_DIVISOR)).sqrt() * direction

        def reduced() -> tuple[Tensor, Tensor]:
            found = surrogate_and_kl()
            reduce(*found)
            return found

        return _line_search(reduced, parameters, step, before, config)


def conjugate_gradient(product: Callable[[Tensor], Tensor], target: Tensor, steps: int) -> Tensor:
    """x such that product(x) is near `target`, for a positive definite matrix. Hestenes & Stiefel 1952."""
    x, residual = torch.zeros_like(target), target.clone()
    direction, square = residual.clone(), residual @ residual
    for _ in range(steps):
        with torch.enable_grad():
            image = product(direction)
        length = square / (direction @ image).clamp(min=MIN_DIVISOR)
        x += length * direction
        residual -= length * image
        before, square = square, residual @ residual
        direction = residual + square / before.clamp(min=MIN_DIVISOR) * direction
    return x


def _line_search(
    surrogate_and_kl: Surrogate, parameters: Sequence[nn.Parameter], step: Tensor, before: Tensor, config: TRPOConfig
) -> dict[str, Tensor]:
    """Take the longest of the shrinking steps that improves the surrogate within the KL bound, if there is one."""
    start = [p.detach().clone() for p in parameters]
    size, taken = 1.0, torch.zeros_like(before)
    gained, divergence = torch.zeros_like(before), torch.zeros_like(before)
    for _ in range(config.backtracks):
        _set_parameters(parameters, start, size * step)
        objective, kl = surrogate_and_kl()
        # a comparison with NaN is false: a step that breaks the policy is not taken
        good = (objective > before) & (kl <= config.max_kl) & (taken == 0)
        taken = torch.where(good, size, taken)
        gained = torch.where(good, objective - before, gained)
        divergence = torch.where(good, kl, divergence)
        if known(taken > 0):
            break
        size *= config.backtrack_coef
    _set_parameters(parameters, start, torch.where(taken > 0, taken * step, 0.0))
    return {
        "policy_objective": gained,
        "kl_divergence_loss": divergence,
        "line_search_success": (taken > 0).to(before.dtype),
    }


def _set_parameters(parameters: Sequence[nn.Parameter], start: Sequence[Tensor], step: Tensor) -> None:
    """parameters = start + step; step: one vector [P]."""
    for parameter, before, change in zip(parameters, start, step.split([p.numel() for p in parameters]), strict=True):
        torch.add(before, change.view(before.shape), out=parameter.data)


def _gradient(value: Tensor, parameters: Sequence[nn.Parameter], **options: Any) -> Tensor:
    """The gradient of a scalar in all parameters, as one vector [P]."""
    return torch.cat([x.flatten() for x in torch.autograd.grad(value, parameters, **options)])


def critic_loss(policy: AnyActorCritic, batch: Batch, config: TRPOConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The squared error of the values, in units of the policy's `value_scale()`; the mean over rows that count.

    batch: `inputs` of the policy, `returns`, `weight`.
    """
    _, value = policy(batch["inputs"])
    loss = (value - batch["returns"]).square() @ batch["weight"] / policy.value_scale() ** 2
    return loss, {"value_loss": loss}


def learn_critic(
    policy: AnyActorCritic,
    optimizer: Adam,
    rollout: Rollout,
    returns: Tensor,
    order: Tensor,
    config: TRPOConfig,
    reduce: Reduce = one_learner,
    loss: Loss | None = None,
) -> Tensor:
    """Fit the values to returns [T, N] in epochs of minibatches, with critic_loss() or another loss of the same
    batches. Returns the mean loss. The actor does not change.

    order: int64 [epochs, T * N], the order of rows in each epoch.
    """
    valid = policy.rows(rollout.valid[: rollout.num_steps]).to(torch.float32)
    columns = {"inputs": policy.inputs(rollout), "returns": policy.rows(returns), "valid": valid}
    number = number_of_minibatches(len(valid), config.minibatch_size, policy.sequence_length, reduce)
    shared = [parameter for parameter in policy.shared_parameters() if parameter.requires_grad]
    # a compiled loss needs the same parameters at each call
    learn: Any = learn_minibatches.plain if shared else learn_minibatches  # type: ignore[attr-defined]
    for parameter in shared:  # the critic must not move the actor beyond its KL bound
        parameter.requires_grad_(False)
    try:
        found = learn(loss or critic_loss, policy, optimizer, columns, order, number, config, reduce)
    finally:
        for parameter in shared:
            parameter.requires_grad_(True)
    mean: Tensor = found["value_loss"].mean()
    reduce(mean)
    return mean
