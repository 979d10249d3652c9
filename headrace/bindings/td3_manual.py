"""TD3's and DDPG's learning calls with gradients written out. The plain ones are in headrace.algorithms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import OffPolicyConfig
from headrace.algorithms.ddpg import DDPGConfig
from headrace.algorithms.off_policy import Networks, means
from headrace.algorithms.reduce import Reduce, one_learner
from headrace.algorithms.td3 import METRICS, TD3Config
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.bindings.manual_backward import Inputs, actor_mlp, critic_mlp, inputs, serves
from headrace.core.fused import register
from headrace.data.replay import Batch
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics
from headrace.policies.distributions import box_muller
from headrace.policies.examination import last_examined
from headrace.policies.flat_parameters import polyak
from headrace.policies.networks import MLP, Readout

CLASSES = (ActorQ, Critics, MLP, Readout, Adam)  # whose methods this was written after


class _Learner:
    """Actor, critics and target networks for batches of this many rows."""

    def __init__(self, networks: Networks, rows: int) -> None:
        policy, target = networks.policy, networks.target
        self.rows, self.features = rows, policy.encoder.size
        self.actor, self.target_actor = actor_mlp(policy, rows), actor_mlp(target, rows)
        self.critics = critic_mlp(policy.critics, rows, policy.activation)
        self.first_critic = critic_mlp(policy.critics, rows, policy.activation, 1)
        self.target_critics = critic_mlp(target.critics, rows, policy.activation)

    def critic_backward(self, batch: Inputs, smoothing: Tensor | float) -> Tensor:
        """Write the critics' gradients; returns the sum of their losses."""
        rows = self.rows
        next_action = self.target_actor.forward(batch.observations[:rows])[0].tanh()
        batch.with_policy_action[:rows, self.features :] = next_action.add_(smoothing).clamp_(-1, 1)
        next_value = self.target_critics.forward(batch.with_policy_action[:rows]).amin(0)
        error = self.critics.forward(batch.with_action) - torch.addcmul(batch.reward, batch.discount, next_value)
        gradient = error * batch.weight
        self.critics.backward(2 * gradient)
        return torch.dot(error.view(-1), gradient.view(-1))

    def actor_backward(self, batch: Inputs, invert: bool) -> Tensor:
        """Write the actor's gradients; returns its loss. invert: TD3Config.invert_gradients."""
        rows = self.rows
        action = self.actor.forward(batch.observations[rows:]).tanh()
        batch.with_policy_action[rows:, self.features :] = action[0]
        value = self.first_critic.forward(batch.with_policy_action[rows:])[0]
        grad_action = self.first_critic.backward_to_inputs(batch.weight.unsqueeze(0))[:, self.features :]
        factor = action.square().sub_(1)
        if invert:
            factor[grad_action * action < 0] = -1
        self.actor.backward(grad_action * factor)
        return -torch.dot(value.view(-1), batch.weight.view(-1))


_learners: Bound[_Learner] = Bound()


def delay_of(config: OffPolicyConfig) -> int:
    """Gradient steps of the critics for one of the actor."""
    return getattr(config, "policy_delay", 1)


def _learn(
    networks: Networks,
    batches: Batch,
    smoothing: Tensor | None,
    since: int,
    config: TD3Config | DDPGConfig,
) -> dict[str, Tensor]:
    """smoothing [G, B, K]: noise on the target's actions; None for none."""
    delay, tau = delay_of(config), config.tau
    steps, rows = batches.reward.shape
    policy, _, actor, critics, target_actor, target_critics = networks
    depends_on = (last_examined(policy), critics.flat, rows)
    learner, losses = _learners.get(lambda: _Learner(networks, rows), policy, *depends_on), []
    actor_loss = torch.zeros(())
    noises: Sequence[Tensor | float] = [0.0] * steps if smoothing is None else smoothing.unbind()
    for step, (batch, noise) in enumerate(zip(inputs(policy, batches), noises, strict=True), since + 1):
        critic_loss = learner.critic_backward(batch, noise)
        critics.step_unclipped()
        if step % delay == 0:
            actor_loss = learner.actor_backward(batch, config.invert_gradients)
            actor.step_unclipped()
            polyak(target_actor, actor.flat, tau)
            polyak(target_critics, critics.flat, tau)
        losses.append((actor_loss, critic_loss))
    actor.gradient.zero_()
    critics.gradient.zero_()
    return means(losses, METRICS)


def target_smoothing(policy: ActorQ, random: Tensor, config: TD3Config) -> Tensor:
    """Clipped noise [G, B, K] on the target's actions, from uniform draws [G, B, num_draws]."""
    steps, rows, draws = random.shape
    normal = box_muller(random.reshape(-1, draws).t(), policy.action_size).t().reshape(steps, rows, -1)
    return normal.mul(config.target_noise).clamp_(-config.target_noise_clip, config.target_noise_clip)


@register("td3.learn", serves, DIGESTS["td3.learn"], CLASSES)
@torch.no_grad()
def td3_learn(
    networks: Networks,
    batches: Batch,
    random: Tensor,
    since: int,
    config: TD3Config,
    reduce: Reduce = one_learner,
) -> dict[str, Tensor]:
    """headrace.algorithms.td3.learn, with the same results within rounding."""
    smoothing = target_smoothing(networks.policy, random, config)
    return _learn(networks, batches, smoothing, since, config)


@register("ddpg.learn", serves, DIGESTS["ddpg.learn"], CLASSES)
@torch.no_grad()
def ddpg_learn(
    networks: Networks, batches: Batch, config: DDPGConfig, reduce: Reduce = one_learner
) -> dict[str, Tensor]:
    """headrace.algorithms.ddpg.learn, with the same results within rounding."""
    return _learn(networks, batches, None, 0, config)
