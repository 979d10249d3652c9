"""DDPG: a deterministic actor climbs its critic. Lillicrap et al. 2016, arXiv:1509.02971."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from headrace.algorithms.deterministic import Networks, networks
from headrace.algorithms.off_policy import OffPolicy, check_ranges, means, parts, policy_settings, shares
from headrace.core.fused import fused
from headrace.data.replay import Batch
from headrace.data.spaces import Box, Space
from headrace.policies.actor_q import ActorQ
from headrace.policies.flat_parameters import polyak

METRICS = ("actor_loss", "critic_loss")


@dataclass(frozen=True)
class DDPGConfig:
    """DDPG's settings. Raises ValueError for one out of range."""

    num_steps: int = 1  # steps of each env in an iteration
    buffer_size: int = 1_000_000  # steps kept in the replay, of all envs together
    learning_starts: int = 1_000  # steps with random actions, of all envs together, before learning begins
    batch_size: int = 256  # rows in a gradient step
    utd_ratio: float = 1.0  # gradient steps for each step of an env
    gradient_steps: int = 0  # gradient steps of an iteration; 0: by utd_ratio
    learning_rate: float = 1e-3  # of Adam, for actor and critic
    gamma: float = 0.99  # discount of the reward one step later
    n_steps: int = 1  # steps whose rewards are summed before a value is looked up
    tau: float = 0.005  # share of the way to the networks that their targets go in a gradient step
    exploration: float = 0.1  # deviation of the noise on actions, in half ranges of them
    noise_autocorrelation: float = 0.0  # share of the noise on actions that stays from one step to the next; 0: none
    hidden: tuple[int, ...] = (256, 256)  # sizes of the hidden layers
    activation: str = "relu"  # between them: tanh, relu, elu, silu, gelu, leaky_relu
    normalize_observation: bool = True  # observations to mean 0 and variance 1, by running statistics
    images: Literal["auto", "nature", "impala", "small"] = "auto"  # network for image observations; auto: by size
    recurrent: Literal["none", "gru", "lstm"] = "none"  # what remembers earlier observations, if anything
    rnn_size: int = 64  # size of that memory
    sequence_length: int = 16  # rows of one env that are learned from together where there is memory
    burn_in: int = 8  # rows before them that bring the memory up to date

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.exploration < 0:
            raise ValueError(f"exploration must be 0 or more, got {self.exploration}")


class DDPG(OffPolicy):
    """Learns a deterministic policy from a replay of what it did, with noise for exploration."""

    name = "ddpg"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)  # kinds of spaces it acts in
    policy: ActorQ

    def __init__(self, policy: ActorQ, config: DDPGConfig = DDPGConfig(), seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.networks = tools = networks(policy, config.learning_rate)
        self.optimizers = {"actor": tools.actor, "critics": tools.critics}
        self.buffers = {"target_actor": tools.slow_actor, "target_critics": tools.slow_critics}
        self.explore()

    @classmethod
    def build(
        cls, config: DDPGConfig, observation_space: Space, action_space: Space, seed: int, device: torch.device | str
    ) -> DDPG:
        """DDPG with an ActorQ on a device. Raises TypeError for spaces it cannot learn on."""
        own = {"critics": 1, "deterministic": True, "noise_autocorrelation": config.noise_autocorrelation}
        settings = policy_settings(config) | own
        return cls(ActorQ(observation_space, action_space, seed=seed, **settings).to(device), config, seed)

    def explore(self) -> None:
        """Random actions until learning starts; then the actor's, with noise."""
        self.policy.random.fill_(self.rows < self.config.learning_starts)
        self.policy.exploration.fill_(self.config.exploration)

    def learn(self, batches: Batch, random: Tensor) -> dict[str, Tensor]:
        return learn(self.networks, batches, self.config)


@fused("ddpg.learn", "headrace.bindings.sac_td3_ddpg")
def learn(networks: Networks, batches: Batch, config: DDPGConfig) -> dict[str, Tensor]:
    """One gradient step on each of G batches [G, B]: algorithm 1 of the paper. Gives the means of METRICS."""
    policy, target, actor, critic, *slow = networks
    rows = []
    for batch in parts(batches):
        share = shares(batch.weight)
        observation = policy.encoder(batch.observation)
        with torch.no_grad():
            next_observation = target.encoder(batch.next_observation)
            next_value = target.critics(next_observation, target.best(next_observation))[0]
            aim = batch.reward + batch.discount * next_value
        value = policy.critics(observation, policy.normalized(batch.action))[0]
        critic_loss = (value - aim).square() @ share
        critic_loss.backward()
        critic.step(math.inf)

        observation = observation.detach()  # what the encoder learns, the critics teach it
        actor_loss = -(policy.critics(observation, policy.best(observation))[0] @ share)
        actor_loss.backward(inputs=policy.actor_parameters())
        actor.step(math.inf)
        polyak(slow[0], actor.flat, config.tau)
        polyak(slow[1], critic.flat, config.tau)
        rows.append((actor_loss.detach(), critic_loss.detach()))
    return means(rows, METRICS)
