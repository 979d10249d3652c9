"""SAC's learning call with gradients by hand. The plain one is headrace.algorithms.sac.learn."""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.off_policy import means
from headrace.algorithms.sac import METRICS, Optimizers, SACConfig
from headrace.bindings.manual_backward import Inputs, actor_tower, critic_tower, inputs, why_not
from headrace.core.fused import register
from headrace.data.replay import Batch
from headrace.policies import squashed_gaussian
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics
from headrace.policies.distributions import box_muller
from headrace.policies.flat_parameters import polyak

# Of the plain source that this was written after, and what else that calls: see headrace.bindings.ppo.
DIGEST = "6d3f8517bcadb520"
SOURCES: Any = (
    *((ActorQ, name) for name in ("sample", "_normal", "actor_output", "normalize_action")),
    *(
        (squashed_gaussian, "sample"),
        (squashed_gaussian, "split"),
        (Critics, "forward"),
        (Adam, "step"),
        (Adam, "_move"),
    ),
)


class _Learner:
    """Learns for one policy, as long as its parameters lie where they lay."""

    def __init__(self, policy: ActorQ, target: ActorQ, optimizers: Optimizers, rows: int) -> None:
        self.rows, self.address = rows, optimizers.critics.flat.data_ptr()
        self.size, self.encoded = policy.action_size, policy.encoder.size
        self.actor = actor_tower(policy, 2 * rows)  # next observations, then those of now
        self.critics = critic_tower(policy.critics, rows, policy.activation)
        self.target = critic_tower(target.critics, rows, policy.activation)
        self.slope = torch.empty(1, rows, 2 * self.size)
        self.lowest = torch.empty(policy.critics.number, rows, 1)  # 1 for the lowest critic of a row

    def act(self, batch: Inputs, normal: Tensor, constant: Tensor) -> tuple[Tensor, ...]:
        """Actions [2 B, K] and their log-density [2 B, 1]; what the slopes of those of now are made of.

        constant: what of the log-density does not depend on the actor."""
        mean, raw = self.actor.forward(batch.seen)[0].split(self.size, 1)
        log_std = raw.clamp(squashed_gaussian.LOG_STD_MIN, squashed_gaussian.LOG_STD_MAX)
        spread = log_std.exp().mul_(normal)
        x = mean + spread
        # the log of tanh's slope is 2 (log 2 - log(e^x + e^-x))
        log_prob = torch.sub(constant, log_std).add_(torch.logaddexp(x, -x), alpha=2).sum(1, True)
        action = x.tanh_()
        batch.chosen[:, self.encoded :] = action
        return action, log_prob, spread[self.rows :], (raw == log_std)[self.rows :]

    def learn_critics(self, batch: Inputs, log_prob: Tensor, temperature: Tensor) -> Tensor:
        """Write the critics' gradients; gives their loss."""
        next_value = self.target.forward(batch.chosen[: self.rows]).amin(0).addcmul_(log_prob, temperature, value=-1)
        aim = torch.addcmul(batch.reward, batch.discount, next_value)
        error = self.critics.forward(batch.taken) - aim
        slope = error * batch.share
        self.critics.backward(slope)
        return torch.dot(error.view(-1), slope.view(-1)).mul_(0.5)

    def learn_actor(
        self, batch: Inputs, action: Tensor, log_prob: Tensor, spread: Tensor, free: Tensor, temperature: Tensor
    ) -> Tensor:
        """Write the actor's gradients; gives its loss. free: where log_std was not clipped."""
        values = self.critics.forward(batch.chosen[self.rows :])
        lowest = values.amin(0)
        torch.eq(values, lowest, out=self.lowest)
        of_value = self.critics.slope_of_inputs(self.lowest * (batch.share / self.lowest.sum(0)))[:, self.encoded :]
        weight = temperature * batch.share
        # of tanh(x), and of the density of what tanh squashes
        of_x = torch.addcmul(2 * weight * action, of_value, action.square().sub_(1))
        self.slope[0, :, : self.size] = of_x
        self.slope[0, :, self.size :] = of_x.mul_(spread).sub_(weight).mul_(free)
        self.actor.backward(self.slope, self.rows)
        return torch.dot((temperature * log_prob).sub_(lowest).view(-1), batch.share.view(-1))


_learners: WeakKeyDictionary[ActorQ, _Learner] = WeakKeyDictionary()


def serves(
    policy: ActorQ,
    target: ActorQ,
    target_flat: Tensor,
    optimizers: Optimizers,
    batches: Batch,
    random: Tensor,
    config: SACConfig,
) -> bool | str:
    """Whether it was written for this policy; else the reason why not."""
    if random.device.type != "cpu":
        return False
    return why_not(policy, *optimizers) or True


@register("sac.learn", serves, DIGEST, SOURCES)
@torch.no_grad()
def learn(
    policy: ActorQ,
    target: ActorQ,
    target_flat: Tensor,
    optimizers: Optimizers,
    batches: Batch,
    random: Tensor,
    config: SACConfig,
) -> dict[str, Tensor]:
    """headrace.algorithms.sac.learn, with the same results within rounding."""
    steps, rows, draws = random.shape
    learner = _learners.get(policy)
    if learner is None or (learner.rows, learner.address) != (rows, optimizers.critics.flat.data_ptr()):
        learner = _learners[policy] = _Learner(policy, target, optimizers, rows)
    size = policy.action_size
    target_entropy = -size if config.target_entropy is None else config.target_entropy
    log_temperature, noted = optimizers.temperature.flat, []
    # [G, B, 2 D] -> [G, 2 B, K]: for the next actions, then for those of now
    uniform = random.view(steps, rows, 2, draws // 2).transpose(1, 2).reshape(-1, draws // 2)
    normals = box_muller(uniform.t(), size).t().reshape(steps, 2 * rows, size)
    constants = -0.5 * normals.square() - (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
    for batch, normal, constant in zip(inputs(policy, batches), normals.unbind(), constants.unbind(), strict=True):
        temperature = log_temperature.exp()
        action, log_prob, spread, free = learner.act(batch, normal, constant)
        critic_loss = learner.learn_critics(batch, log_prob[:rows], temperature)
        optimizers.critics.step_unclipped()
        now = (action[rows:], log_prob[rows:])
        actor_loss = learner.learn_actor(batch, *now, spread, free, temperature)
        optimizers.actor.step_unclipped()
        surplus = torch.dot((now[1] + target_entropy).view(-1), batch.share.view(-1))
        temperature_loss = -log_temperature * surplus
        if config.learn_temperature:
            optimizers.temperature.gradient.copy_(-surplus)
            optimizers.temperature.step_unclipped()
        polyak(target_flat, optimizers.critics.flat, config.tau)
        noted.append((actor_loss, critic_loss, temperature[0], temperature_loss[0]))
    for optimizer in optimizers:
        optimizer.gradient.zero_()
    return means(noted, METRICS)
