"""DIAYN: learn skills without a reward, which differ in the states that they visit. Eysenbach et al. 2019,
arXiv:1802.06070.

A skill z is drawn for each episode, and is the policy's conditioning input `agent_info`. A discriminator learns to
predict the skill from a state. The bonus of a step is log q(z | s') - log p(z), which is high if s' reveals the skill.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.algorithms.adam import Adam
from headrace.algorithms.intrinsic.rnd import learn_from_rows
from headrace.algorithms.intrinsic.rnd_replay import learned
from headrace.algorithms.on_policy import OnPolicy, Targets
from headrace.core import rng
from headrace.core.text import shown
from headrace.data.replay import Batch
from headrace.data.rollout import Rollout, tree_map
from headrace.data.spaces import Dict, Discrete, Space
from headrace.policies.networks import MLP, Readout, make_encoder
from headrace.policies.normalization import ObservationNormalizer

SKILL = "agent_info"  # the member of observations that is the skill: headrace.envs.wrappers.conditioning
METRICS = ("discriminator_loss", "skill_accuracy")


class Discriminator(nn.Module):
    """The discriminator: predicts probabilities of skills from the other members of an observation.

    Raises ValueError for observations without a skill of a Discrete space.
    """

    sequence_length = 1

    def __init__(self, space: Space, hidden: tuple[int, ...], seed: int) -> None:
        super().__init__()
        members = dict(space.spaces) if isinstance(space, Dict) else {}
        skills = members.pop(SKILL, None)
        if not isinstance(skills, Discrete):
            raise ValueError(
                f"intrinsic='diayn' needs agent_info=Discrete(...), its skills; observations are {shown(space)}"
            )
        generator = rng.generator(seed, rng.Purpose.INTRINSIC)
        self.first, self.skills = int(skills.start), int(skills.n)
        self.encoder = make_encoder(Dict(members), False, generator)
        self.normalizer = ObservationNormalizer(self.encoder.size)
        self.layers = MLP(self.encoder.size, hidden, "relu", generator)
        self.out = Readout(self.layers.outputs, self.skills, 0.01, generator)

    def seen(self, observation: Any) -> Tensor:
        """Normalised observations [R, F], without the skill."""
        return self.normalizer(self.encoder(observation))  # type: ignore[no-any-return]

    def skill(self, observation: Any) -> Tensor:
        """Numbers of skills from 0 on, int64 [R]."""
        return (getattr(observation, SKILL) - self.first).long()

    def forward(self, seen: Tensor) -> Tensor:
        """log q(z | s) of normalised observations [R, F], [R, skills]."""
        return functional.log_softmax(self.out(self.layers(seen)).t(), 1)


def discriminator_loss(network: Discriminator, batch: dict[str, Any], config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The cross-entropy of a minibatch, and the fraction of rows whose skill is the most likely one.

    batch: normalised observations `next`, `skill` one-hot [B, skills], `weight`."""
    log_prob, weight = network(batch["next"]), batch["weight"]
    loss = -((log_prob * batch["skill"]).sum(1) @ weight)
    with torch.no_grad():
        right = ((log_prob * batch["skill"]).sum(1) >= log_prob.amax(1)).to(weight.dtype)
    return loss, dict(zip(METRICS, (loss, right @ weight), strict=True))


class _Skills:
    """A discriminator of skills, and its optimizer."""

    def __init__(self, space: Space, config: Any, seed: int, device: torch.device | str) -> None:
        self.network = Discriminator(space, config.intrinsic_hidden, seed).to(device)
        self.optimizer = Adam(self.network.parameters(), config.learning_rate)

    @torch.no_grad()
    def observe(self, rollout: Rollout, gamma: float) -> None:
        """Update the statistics of observations with steps that were collected."""
        after = tree_map(lambda x: x[1:].flatten(0, 1), rollout.observation)
        self.network.normalizer.update(self.network.encoder(after), rollout.valid[:-1].flatten())

    @torch.no_grad()
    def _rewards(self, observation: Any, reward: Tensor, config: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Bonuses of the observations [R, ...] after steps with these rewards [A, B], where A * B = R; the rewards to
        learn from; and columns of discriminator_loss."""
        network = self.network
        if not self.optimizer.follow(network.parameters()):
            raise ValueError("the discriminator of skills has other sizes now: make a new algorithm")
        seen, skill = network.seen(observation), functional.one_hot(network.skill(observation), network.skills)
        bonus = (network(seen) * skill).sum(1).view(reward.shape) + math.log(network.skills)
        given = config.intrinsic_coef * bonus
        if config.extrinsic_coef:
            given = given + config.extrinsic_coef * reward
        return bonus, given, {"next": seen, "skill": skill.float()}

    def state_dict(self) -> dict[str, Any]:
        """Copies of the discriminator and its optimizer."""
        network = {name: x.clone() for name, x in self.network.state_dict().items()}
        return {"network": network, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from state_dict(), bit for bit."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


class ReplayDIAYN(_Skills):
    """The bonus of an algorithm with a replay buffer, which is its reward."""

    def rewarded(self, batches: Batch, config: Any) -> tuple[Batch, dict[str, Tensor]]:
        """Batches [G, B] with the bonus as their reward, and metrics. The discriminator takes a step on each."""
        observation = tree_map(lambda x: x.flatten(0, 1), batches.next_observation)
        bonus, reward, columns = self._rewards(observation, batches.reward, config)
        metrics = learned(discriminator_loss, self.network, self.optimizer, columns, batches, bonus)
        return batches._replace(reward=reward), metrics


class DIAYN(_Skills):
    """The bonus of an algorithm that learns from rollouts, which is their reward."""

    def process(self, algorithm: OnPolicy[Any], rollout: Rollout) -> tuple[Targets, dict[str, Tensor]]:
        """Targets of a rollout with the bonus as its reward, and metrics. The discriminator learns from the rollout."""
        config, valid = algorithm.config, rollout.valid[:-1]
        self.observe(rollout, config.gamma)
        after = tree_map(lambda x: x[1:].flatten(0, 1), rollout.observation)
        bonus, reward, columns = self._rewards(after, rollout.reward, config)
        own = rollout.reward.clone()
        rollout.reward.copy_(reward.masked_fill_(~valid, 0.0))
        targets = algorithm.process(rollout)
        rollout.reward.copy_(own)
        columns["valid"] = valid.flatten().float()
        metrics = learn_from_rows(discriminator_loss, self.network, self.optimizer, columns, algorithm, rollout)
        mean = torch.where(valid, bonus, 0.0).sum() / valid.sum().clamp(min=1)
        return targets, {"intrinsic_reward": mean, **metrics}
