"""The learning calls of TD3 and DDPG with gradients by hand. The plain ones are those of td3.py and ddpg.py."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from headrace.algorithms.actor_q_networks import Networks
from headrace.algorithms.adam import Adam
from headrace.algorithms.ddpg import DDPGConfig
from headrace.algorithms.off_policy import means
from headrace.algorithms.td3 import METRICS, TD3Config
from headrace.bindings.manual_backward import Inputs, actor_tower, critic_tower, inputs, why_not
from headrace.core.fused import register
from headrace.data.replay import Batch
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics
from headrace.policies.distributions import box_muller
from headrace.policies.flat_parameters import polyak

# Of the plain source that this was written after, and what else that calls: see headrace.bindings.ppo.
TD3_DIGEST, DDPG_DIGEST = "869db42d7951d1ae", "6b9c15aad5d42444"
SOURCES = (
    *((ActorQ, name) for name in ("best_action", "actor_output", "normalize_action")),
    *((Critics, "forward"), (Adam, "step"), (Adam, "_move")),
)


class _Learner:
    """Learns for one policy, as long as its parameters lie where they lay."""

    def __init__(self, networks: Networks, rows: int) -> None:
        policy, target = networks.policy, networks.target
        self.rows, self.address = rows, networks.critic_optimizer.flat.data_ptr()
        self.size, self.encoded = policy.action_size, policy.encoder.size
        self.actor, self.next_actor = actor_tower(policy, rows), actor_tower(target, rows)
        self.critics = critic_tower(policy.critics, rows, policy.activation)
        self.first = critic_tower(policy.critics, rows, policy.activation, 1)
        self.target = critic_tower(target.critics, rows, policy.activation)

    def learn_critics(self, batch: Inputs, smoothing: Tensor | float) -> Tensor:
        """Write the critics' gradients; gives the sum of their losses."""
        rows = self.rows
        next_action = self.next_actor.forward(batch.seen[:rows])[0].tanh()
        batch.chosen[:rows, self.encoded :] = next_action.add_(smoothing).clamp_(-1, 1)
        aim = torch.addcmul(batch.reward, batch.discount, self.target.forward(batch.chosen[:rows]).amin(0))
        error = self.critics.forward(batch.taken) - aim
        slope = error * batch.share
        self.critics.backward(2 * slope)
        return torch.dot(error.view(-1), slope.view(-1))

    def learn_actor(self, batch: Inputs) -> Tensor:
        """Write the actor's gradients; gives its loss."""
        rows = self.rows
        action = self.actor.forward(batch.seen[rows:]).tanh()
        batch.chosen[rows:, self.encoded :] = action[0]
        value = self.first.forward(batch.chosen[rows:])[0]
        of_action = self.first.slope_of_inputs(batch.share.unsqueeze(0))[:, self.encoded :]
        self.actor.backward(of_action * action.square().sub_(1))
        return -torch.dot(value.view(-1), batch.share.view(-1))


_learners: WeakKeyDictionary[ActorQ, _Learner] = WeakKeyDictionary()


def _learner(networks: Networks, rows: int) -> _Learner:
    learner = _learners.get(networks.policy)
    if learner is None or (learner.rows, learner.address) != (rows, networks.critic_optimizer.flat.data_ptr()):
        learner = _learners[networks.policy] = _Learner(networks, rows)
    return learner


def _learn(
    networks: Networks, batches: Batch, smoothing: Tensor | None, since: int, delay: int, tau: float
) -> dict[str, Tensor]:
    """smoothing [G, B, K]: noise on the target's actions; None for none."""
    steps, rows = batches.reward.shape
    learner, noted = _learner(networks, rows), []
    _, _, actor, critics, slow_actor, slow_critics = networks
    actor_loss = torch.zeros(())
    noises: Sequence[Tensor | float] = [0.0] * steps if smoothing is None else smoothing.unbind()
    for step, (batch, random) in enumerate(zip(inputs(networks.policy, batches), noises, strict=True), since + 1):
        critic_loss = learner.learn_critics(batch, random)
        critics.step_unclipped()
        if step % delay == 0:
            actor_loss = learner.learn_actor(batch)
            actor.step_unclipped()
            polyak(slow_actor, actor.flat, tau)
            polyak(slow_critics, critics.flat, tau)
        noted.append((actor_loss, critic_loss))
    actor.gradient.zero_()
    critics.gradient.zero_()
    return means(noted, METRICS)


def td3_serves(networks: Networks, batches: Batch, random: Tensor, since: int, config: TD3Config) -> bool | str:
    """Whether it was written for this policy; else the reason why not."""
    return ddpg_serves(networks, batches, config)


@register("td3.learn", td3_serves, TD3_DIGEST, SOURCES)
@torch.no_grad()
def td3_learn(networks: Networks, batches: Batch, random: Tensor, since: int, config: TD3Config) -> dict[str, Tensor]:
    """headrace.algorithms.td3.learn, with the same results within rounding."""
    steps, rows, draws = random.shape
    normal = box_muller(random.reshape(-1, draws).t(), networks.policy.action_size).t().reshape(steps, rows, -1)
    smoothing = normal.mul(config.target_noise).clamp_(-config.target_noise_clip, config.target_noise_clip)
    return _learn(networks, batches, smoothing, since, config.policy_delay, config.tau)


def ddpg_serves(networks: Networks, batches: Batch, config: DDPGConfig | TD3Config) -> bool | str:
    """Whether it was written for this policy; else the reason why not."""
    if batches.reward.device.type != "cpu":
        return False
    return why_not(networks.policy, networks.actor_optimizer, networks.critic_optimizer) or True


@register("ddpg.learn", ddpg_serves, DDPG_DIGEST, SOURCES)
@torch.no_grad()
def ddpg_learn(networks: Networks, batches: Batch, config: DDPGConfig) -> dict[str, Tensor]:
    """headrace.algorithms.ddpg.learn, with the same results within rounding."""
    return _learn(networks, batches, None, 0, 1, config.tau)
