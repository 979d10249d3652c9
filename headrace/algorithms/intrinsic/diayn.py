"""DIAYN: skills without a reward, which the states that they visit tell. Eysenbach et al. 2019, arXiv:1802.06070.

A skill z is drawn for each episode, and the policy is given it as its conditioning input `agent_info`. A discriminator
learns which skill a state is of. The bonus of a step is log q(z | s') - log p(z), high where s' tells the skill.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.algorithms.adam import Adam
from headrace.algorithms.intrinsic.rnd_replay import learned
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
    """The probabilities of skills by the members of an observation other than the skill.

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
    """The cross-entropy of a minibatch, and which fraction of rows has the likeliest skill.

    batch: normalised observations `next`, `skill` one-hot [B, skills], `weight`."""
    log_prob, weight = network(batch["next"]), batch["weight"]
    loss = -((log_prob * batch["skill"]).sum(1) @ weight)
    with torch.no_grad():
        right = ((log_prob * batch["skill"]).sum(1) >= log_prob.amax(1)).to(weight.dtype)
    return loss, dict(zip(METRICS, (loss, right @ weight), strict=True))


class ReplayDIAYN:
    """The bonus of an algorithm with a replay buffer, which is its reward."""

    def __init__(self, space: Space, config: Any, seed: int, device: torch.device | str) -> None:
        self.network = Discriminator(space, config.intrinsic_hidden, seed).to(device)
        self.optimizer = Adam(self.network.parameters(), config.learning_rate)

    @torch.no_grad()
    def observe(self, rollout: Rollout, gamma: float) -> None:
        """Update the statistics of observations with steps that were collected."""
        after = tree_map(lambda x: x[1:].flatten(0, 1), rollout.observation)
        self.network.normalizer.update(self.network.encoder(after), rollout.valid[:-1].flatten())

    def rewarded(self, batches: Batch, config: Any) -> tuple[Batch, dict[str, Tensor]]:
        """Batches [G, B] with the bonus as their reward, and metrics. The discriminator takes a step on each."""
        network, shape = self.network, batches.reward.shape
        if not self.optimizer.follow(network.parameters()):
            raise ValueError("the discriminator of skills has other sizes now: make a new algorithm")
        observation = tree_map(lambda x: x.flatten(0, 1), batches.next_observation)
        with torch.no_grad():
            seen, skill = network.seen(observation), functional.one_hot(network.skill(observation), network.skills)
            bonus = (network(seen) * skill).sum(1).view(shape) + math.log(network.skills)
        columns = {"next": seen, "skill": skill.float()}
        metrics = learned(discriminator_loss, network, self.optimizer, columns, batches, bonus)
        reward = config.intrinsic_coef * bonus
        if config.extrinsic_coef:
            reward = reward + config.extrinsic_coef * batches.reward
        return batches._replace(reward=reward), metrics

    def state_dict(self) -> dict[str, Any]:
        """Copies of the discriminator and its optimizer."""
        network = {name: x.clone() for name, x in self.network.state_dict().items()}
        return {"network": network, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from state_dict(), bit for bit."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
