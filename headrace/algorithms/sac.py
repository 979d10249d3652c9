"""SAC: soft actor-critic with twin critics and a learned temperature. Haarnoja et al. 2018, arXiv:1812.05905."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.off_policy import OffPolicy, check_ranges, following, means, parts, policy_settings, shares
from headrace.core.fused import fused
from headrace.data.replay import Batch
from headrace.data.spaces import Box, Space
from headrace.policies.actor_q import ActorQ
from headrace.policies.flat_parameters import flatten, polyak

METRICS = ("actor_loss", "critic_loss", "ent_coef", "ent_coef_loss")


@dataclass(frozen=True)
class SACConfig:
    """SAC's settings. Raises ValueError for one out of range."""

    num_steps: int = 1  # steps of each env in an iteration
    buffer_size: int = 1_000_000  # steps kept in the replay, of all envs together
    learning_starts: int = 1_000  # steps with random actions, of all envs together, before learning begins
    batch_size: int = 256  # rows in a gradient step
    utd_ratio: float = 1.0  # gradient steps for each step of an env
    gradient_steps: int = 0  # gradient steps of an iteration; 0: by utd_ratio
    learning_rate: float = 3e-4  # of Adam, for actor, critics and temperature
    gamma: float = 0.99  # discount of the reward one step later
    n_steps: int = 1  # steps whose rewards are summed before a value is looked up
    tau: float = 0.005  # share of the way to the critics that their targets go in a gradient step
    temperature: float = 1.0  # weight of the entropy in the reward, at the start
    learn_temperature: bool = True  # so that the entropy comes to target_entropy
    target_entropy: float | None = None  # nats, of actions whose bounds are -1 and 1; None: -1 for each dimension
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
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")


class Optimizers(NamedTuple):
    """One for each of what SAC learns."""

    actor: Adam
    critics: Adam
    temperature: Adam  # of the temperature's logarithm, one number


class SAC(OffPolicy):
    """Learns a policy that is as random as its reward allows, from a replay of what it did."""

    name = "sac"
    actions: ClassVar[tuple[type[Space], ...]] = (Box,)  # kinds of spaces it acts in
    policy: ActorQ

    def __init__(self, policy: ActorQ, config: SACConfig = SACConfig(), seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.log_temperature = nn.Parameter(torch.full_like(policy.center[:1], math.log(config.temperature)))
        learned = (policy.actor_parameters(), policy.critic_parameters(), [self.log_temperature])
        actor, critics, temperature = (Adam(part, config.learning_rate, 1e-8) for part in learned)
        self.tools = Optimizers(actor, critics, temperature)
        self.optimizers = self.tools._asdict()
        self.target = following(policy)
        self.target_flat = flatten(self.target.critic_parameters())
        self.buffers = {"target": self.target_flat, "log_temperature": self.tools.temperature.flat}
        self.explore()

    @classmethod
    def build(
        cls, config: SACConfig, observation_space: Space, action_space: Space, seed: int, device: torch.device | str
    ) -> SAC:
        """SAC with an ActorQ on a device. Raises TypeError for spaces it cannot learn on."""
        own = {"critics": 2, "deterministic": False, "noise_autocorrelation": config.noise_autocorrelation}
        settings = policy_settings(config) | own
        return cls(ActorQ(observation_space, action_space, seed=seed, **settings).to(device), config, seed)

    def num_draws(self) -> int:
        return 2 * self.policy.num_draws

    def explore(self) -> None:
        """Random actions until learning starts; then the policy's own."""
        self.policy.random.fill_(self.rows < self.config.learning_starts)

    def learn(self, batches: Batch, random: Tensor) -> dict[str, Tensor]:
        return learn(self.policy, self.target, self.target_flat, self.tools, batches, random, self.config)


@fused("sac.learn", "headrace.bindings.sac_td3_ddpg")
def learn(
    policy: ActorQ,
    target: ActorQ,
    target_flat: Tensor,
    optimizers: Optimizers,
    batches: Batch,
    random: Tensor,
    config: SACConfig,
) -> dict[str, Tensor]:
    """One gradient step on each of G batches [G, B]; equation numbers are the paper's. Gives the means of METRICS.

    target: a copy of the policy, what of it the critics teach following slowly, in the buffer target_flat.
    noise: uniform draws [G, B, 2 * num_draws], for the next actions and for those of now.
    """
    log_temperature = optimizers.temperature.flat
    target_entropy = -policy.action_size if config.target_entropy is None else config.target_entropy
    rows = []
    for batch, draws in zip(parts(batches), random, strict=True):
        share, temperature = shares(batch.weight), log_temperature.exp()
        observation = policy.encoder(batch.observation)
        with torch.no_grad():  # eq. 3 and 5
            next_observation = policy.encoder(batch.next_observation)
            next_action, next_log_prob = policy.sample(next_observation, draws[:, : policy.num_draws])
            next_values = target.critics(target.encoder(batch.next_observation), next_action)
            next_value = next_values.amin(0) - temperature * next_log_prob
            aim = batch.reward + batch.discount * next_value
        values = policy.critics(observation, policy.normalized(batch.action))
        critic_loss = 0.5 * ((values - aim).square() @ share).sum()
        critic_loss.backward()
        optimizers.critics.step(math.inf)

        observation = observation.detach()  # what the encoder learns, the critics teach it
        action, log_prob = policy.sample(observation, draws[:, policy.num_draws :])
        actor_loss = (temperature * log_prob - policy.critics(observation, action).amin(0)) @ share  # eq. 9
        actor_loss.backward(inputs=policy.actor_parameters())
        optimizers.actor.step(math.inf)

        surplus = (log_prob.detach() + target_entropy) @ share  # eq. 18, with log temperature in place of temperature
        temperature_loss = -log_temperature * surplus
        if config.learn_temperature:
            optimizers.temperature.gradient.copy_(-surplus)
            optimizers.temperature.step(math.inf)
        polyak(target_flat, optimizers.critics.flat, config.tau)
        rows.append((actor_loss.detach(), critic_loss.detach(), temperature[0], temperature_loss[0]))
    return means(rows, METRICS)
