"""SAC's learning call with gradients written out. The plain one is headrace.algorithms.sac.learn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.off_policy import Networks, means
from headrace.algorithms.reduce import Reduce, one_learner
from headrace.algorithms.sac import METRICS, SACConfig
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.bindings.manual_backward import Inputs, actor_mlp, critic_mlp, inputs, serves
from headrace.core.fused import register
from headrace.data.replay import Batch
from headrace.policies import squashed_gaussian
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics
from headrace.policies.distributions import box_muller
from headrace.policies.examination import last_examined
from headrace.policies.flat_parameters import polyak
from headrace.policies.networks import MLP, Readout

CLASSES = (ActorQ, Critics, MLP, Readout, Adam)  # whose methods this was written after


class _Learner:
    """Actor, critics and target critics for batches of this many rows."""

    def __init__(self, policy: ActorQ, target: ActorQ, rows: int) -> None:
        self.rows, self.size, self.features = rows, policy.action_size, policy.encoder.size
        self.actor = actor_mlp(policy, 2 * rows, rows)  # next observations, then current ones
        self.critics = critic_mlp(policy.critics, rows, policy.activation)
        self.target_critics = critic_mlp(target.critics, rows, policy.activation)
        self.actor_gradient = torch.empty(1, rows, 2 * self.size)
        self.lowest = torch.empty(policy.critics.number, rows, 1)  # 1 for the lowest critic of a row

    def sample(self, batch: Inputs, normal: Tensor, constant: Tensor) -> tuple[Tensor, ...]:
        """Actions [2 B, K] and their log-density [2 B, 1]; for actor_backward(), of the current rows: the standard
        deviation times the normal draw, and where log_std was not clipped.

        constant: the part of the log-density that does not depend on the actor."""
        mean, raw = self.actor.forward(batch.observations)[0].split(self.size, 1)
        log_std = raw.clamp(squashed_gaussian.LOG_STD_MIN, squashed_gaussian.LOG_STD_MAX)
        spread = log_std.exp().mul_(normal)
        x = mean + spread
        # the log of tanh's derivative is 2 (log 2 - log(e^x + e^-x))
        log_prob = torch.sub(constant, log_std).add_(torch.logaddexp(x, -x), alpha=2).sum(1, True)
        action = x.tanh_()
        batch.with_policy_action[:, self.features :] = action
        return action, log_prob, spread[self.rows :], (raw == log_std)[self.rows :]

    def critic_backward(self, batch: Inputs, log_prob: Tensor, temperature: Tensor) -> Tensor:
        """Write the critics' gradients; returns their loss."""
        next_value = self.target_critics.forward(batch.with_policy_action[: self.rows]).amin(0)
        next_value.addcmul_(log_prob, temperature, value=-1)
        error = self.critics.forward(batch.with_action) - torch.addcmul(batch.reward, batch.discount, next_value)
        gradient = error * batch.weight
        self.critics.backward(gradient)
        return torch.dot(error.view(-1), gradient.view(-1)).mul_(0.5)

    def actor_backward(
        self, batch: Inputs, action: Tensor, log_prob: Tensor, spread: Tensor, free: Tensor, temperature: Tensor
    ) -> Tensor:
        """Write the actor's gradients; returns its loss. free: where log_std was not clipped."""
        values = self.critics.forward(batch.with_policy_action[self.rows :])
        lowest = values.amin(0)
        torch.eq(values, lowest, out=self.lowest)
        gradient = self.lowest * (batch.weight / self.lowest.sum(0))
        grad_action = self.critics.backward_to_inputs(gradient)[:, self.features :]
        weight = temperature * batch.weight
        # of tanh(x), and of the density of what tanh squashes
        grad_x = torch.addcmul(2 * weight * action, grad_action, action.square().sub_(1))
        self.actor_gradient[0, :, : self.size] = grad_x
        self.actor_gradient[0, :, self.size :] = grad_x.mul_(spread).sub_(weight).mul_(free)
        self.actor.backward(self.actor_gradient)
        return torch.dot((temperature * log_prob).sub_(lowest).view(-1), batch.weight.view(-1))


_learners: Bound[_Learner] = Bound()


def normals(policy: ActorQ, random: Tensor) -> Tensor:
    """Normal draws [G, 2 B, K] from uniform ones [G, B, 2 D]: for the next actions, then for the current ones."""
    steps, rows, draws = random.shape
    uniform = random.view(steps, rows, 2, draws // 2).transpose(1, 2).reshape(-1, draws // 2)
    return box_muller(uniform.t(), policy.action_size).t().reshape(steps, 2 * rows, -1)


def target_entropy(policy: ActorQ, config: SACConfig) -> float:
    """The entropy that the temperature is learned for, in nats."""
    return float(-policy.action_size if config.target_entropy is None else config.target_entropy)


@register("sac.learn", serves, DIGESTS["sac.learn"], CLASSES)
@torch.no_grad()
def learn(
    networks: Networks,
    temperature_optimizer: Adam,
    batches: Batch,
    random: Tensor,
    config: SACConfig,
    reduce: Reduce = one_learner,
) -> dict[str, Tensor]:
    """headrace.algorithms.sac.learn, with the same results within rounding."""
    policy, target, actor, critics, _, target_critics = networks
    rows = random.shape[1]
    depends_on = (last_examined(policy), critics.flat, rows)
    learner = _learners.get(lambda: _Learner(policy, target, rows), policy, *depends_on)
    entropy, log_temperature, losses = target_entropy(policy, config), temperature_optimizer.flat, []
    normal = normals(policy, random)
    constants = -0.5 * normal.square() - (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
    for batch, draws, constant in zip(inputs(policy, batches), normal.unbind(), constants.unbind(), strict=True):
        temperature = log_temperature.exp()
        action, log_prob, spread, free = learner.sample(batch, draws, constant)
        critic_loss = learner.critic_backward(batch, log_prob[:rows], temperature)
        critics.step_unclipped()
        action, log_prob = action[rows:], log_prob[rows:]
        actor_loss = learner.actor_backward(batch, action, log_prob, spread, free, temperature)
        actor.step_unclipped()
        entropy_error = torch.dot((log_prob + entropy).view(-1), batch.weight.view(-1))
        temperature_loss = -log_temperature * entropy_error
        if config.learn_temperature:
            temperature_optimizer.gradient.copy_(-entropy_error)
            temperature_optimizer.step_unclipped()
        polyak(target_critics, critics.flat, config.tau)
        losses.append((actor_loss, critic_loss, temperature[0], temperature_loss[0]))
    for optimizer in (actor, critics, temperature_optimizer):
        optimizer.gradient.zero_()
    return means(losses, METRICS)
