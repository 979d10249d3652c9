"""TD3: twin critics, smoothed targets and a delayed actor. Fujimoto, van Hoof & Meger 2018, arXiv:1802.09477."""

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
from headrace.policies.distributions import box_muller
from headrace.policies.flat_parameters import polyak

METRICS = ("actor_loss", "critic_loss")


@dataclass(frozen=True)
class TD3Config:
    """TD3's settings. Raises ValueError for one out of range."""

    num_steps: int = 1  # steps of each env in an iteration
    buffer_size: int = 1_000_000  # steps kept in the replay, of all envs together
    learning_starts: int = 1_000  # steps with random actions, of all envs together, before learning begins
    batch_size: int = 256  # rows in a gradient step
    utd_ratio: float = 1.0  # gradient steps for each step of an env
    gradient_steps: int = 0  # gradient steps of an iteration; 0: by utd_ratio
    learning_rate: float = 1e-3  # of Adam, for actor and critics
    gamma: float = 0.99  # discount of the reward one step later
    n_steps: int = 1  # steps whose rewards are summed before a value is looked up
    tau: float = 0.005  # share of the way to the networks that their targets go whenever the actor learns
    exploration: float = 0.1  # deviation of the noise on actions, in half ranges of them
    noise_autocorrelation: float = 0.0  # share of the noise on actions that stays from one step to the next; 0: none
    target_noise: float = 0.2  # deviation of the noise on the target's actions, in half ranges
    target_noise_clip: float = 0.5  # largest noise on the target's actions, in half ranges
    policy_delay: int = 2  # gradient steps of the critics for one of the actor
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
        for name in ("exploration", "target_noise", "target_noise_clip"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.policy_delay < 1:
            raise ValueError(f"policy_delay must be 1 or more, got {self.policy_delay}")


class TD3(OffPolicy):
    """Learns a deterministic policy from a replay of what it did, with noise for exploration."""

    name = "td3"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)  # kinds of spaces it acts in
    policy: ActorQ

    def __init__(self, policy: ActorQ, config: TD3Config = TD3Config(), seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.networks = tools = networks(policy, config.learning_rate)
        self.optimizers = {"actor": tools.actor, "critics": tools.critics}
        self.buffers = {"target_actor": tools.slow_actor, "target_critics": tools.slow_critics}
        self.explore()

    @classmethod
    def build(
        cls, config: TD3Config, observation_space: Space, action_space: Space, seed: int, device: torch.device | str
    ) -> TD3:
        """TD3 with an ActorQ on a device. Raises TypeError for spaces it cannot learn on."""
        own = {"critics": 2, "deterministic": True, "noise_autocorrelation": config.noise_autocorrelation}
        settings = policy_settings(config) | own
        return cls(ActorQ(observation_space, action_space, seed=seed, **settings).to(device), config, seed)

    def num_draws(self) -> int:
        return self.policy.num_draws

    def explore(self) -> None:
        """Random actions until learning starts; then the actor's, with noise."""
        self.policy.random.fill_(self.rows < self.config.learning_starts)
        self.policy.exploration.fill_(self.config.exploration)

    def learn(self, batches: Batch, random: Tensor) -> dict[str, Tensor]:
        delay = self.config.policy_delay
        since = self.updates % delay if len(random) % delay else 0
        return learn(self.networks, batches, random, since, self.config)


@fused("td3.learn", "headrace.bindings.sac_td3_ddpg")
def learn(networks: Networks, batches: Batch, random: Tensor, since: int, config: TD3Config) -> dict[str, Tensor]:
    """One gradient step on each of G batches [G, B]: algorithm 1 of the paper. Gives the means of METRICS.

    noise: uniform draws [G, B, num_draws] for the target's actions. since: gradient steps since the actor learned last.
    """
    policy, target, actor, critics, *slow = networks
    rows = []
    actor_loss = torch.zeros((), device=random.device)
    for step, (batch, draws) in enumerate(zip(parts(batches), random, strict=True), since + 1):
        share = shares(batch.weight)
        observation = policy.encoder(batch.observation)
        with torch.no_grad():
            next_observation = target.encoder(batch.next_observation)
            normal = box_muller(draws.t(), policy.action_size).t() * config.target_noise
            smoothing = normal.clamp(-config.target_noise_clip, config.target_noise_clip)
            next_action = (target.best(next_observation) + smoothing).clamp(-1, 1)
            aim = batch.reward + batch.discount * target.critics(next_observation, next_action).amin(0)
        values = policy.critics(observation, policy.normalized(batch.action))
        critic_loss = ((values - aim).square() @ share).sum()
        critic_loss.backward()
        critics.step(math.inf)

        if step % config.policy_delay == 0:
            observation = observation.detach()  # what the encoder learns, the critics teach it
            actor_loss = -(policy.critics(observation, policy.best(observation))[0] @ share)
            actor_loss.backward(inputs=policy.actor_parameters())
            actor.step(math.inf)
            polyak(slow[0], actor.flat, config.tau)
            polyak(slow[1], critics.flat, config.tau)
        rows.append((actor_loss.detach(), critic_loss.detach()))
    return means(rows, METRICS)
