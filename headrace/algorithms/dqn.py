"""DQN: deep Q-learning from a replay, with what has been added since by switch. Mnih et al. 2015, Nature 518.

double: van Hasselt et al. 2016, arXiv:1509.06461. dueling: Wang et al. 2016, arXiv:1511.06581. n_steps: Sutton 1988,
as in Hessel et al. 2018, arXiv:1710.02298. prioritized: Schaul et al. 2016, arXiv:1511.05952.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from headrace.algorithms.adam import Adam
from headrace.algorithms.exploration import check_exploration, random_share
from headrace.algorithms.off_policy import OffPolicy, check_ranges, following, parts, policy_settings, shares
from headrace.core.fused import fused
from headrace.data.priorities import BYTES, PrioritizedReplay
from headrace.data.replay import Batch, Replay
from headrace.data.rollout import Rollout
from headrace.data.spaces import Discrete, Space
from headrace.policies.flat_parameters import flatten, polyak
from headrace.policies.q_network import QNetwork


@dataclass(frozen=True)
class DQNConfig:
    """DQN's settings. Raises ValueError for one out of range."""

    num_steps: int = 4  # steps of each env in an iteration
    buffer_size: int = 100_000  # steps kept in the replay, of all envs together
    learning_starts: int = 1_000  # steps of all envs together before learning begins
    batch_size: int = 64  # rows in a gradient step
    utd_ratio: float = 0.25  # gradient steps for each step of an env
    gradient_steps: int = 0  # gradient steps of an iteration; 0: by utd_ratio
    learning_rate: float = 5e-4  # of Adam, at the start
    schedule: Literal["constant", "linear"] = "linear"  # of the learning rate: linear falls to 0 by the end
    gamma: float = 0.99  # discount of the reward one step later
    n_steps: int = 1  # steps whose rewards are summed before a value is looked up
    target_interval: int = 250  # gradient steps between two moves of the target network
    tau: float = 1.0  # share of the way to the network that its target goes in a move
    double: bool = True  # the network chooses the next action, its target says what it is worth
    dueling: bool = False  # values of states and advantages of actions have a last hidden layer each
    prioritized: bool = False  # rows are drawn by how wrong they were
    priority_alpha: float = 0.6  # how much that counts: 0 not at all, 1 in proportion
    priority_beta: float = 0.4  # how much is made up for it in the loss, at the start; all of it at the end
    exploration_initial: float = 1.0  # share of random actions at the start
    exploration_final: float = 0.05  # share of random actions from exploration_fraction on
    exploration_fraction: float = 0.2  # share of the training over which it falls
    exploration_spread: float = 0.0  # env i of N explores share^(1 + this i / (N - 1)); 0: all alike
    max_grad_norm: float = 10.0  # the gradient's norm is scaled down to this
    hidden: tuple[int, ...] = (128, 128)  # sizes of the hidden layers
    activation: str = "relu"  # between them: tanh, relu, elu, silu, gelu, leaky_relu
    layer_norm: bool = False  # what goes into each activation is normalised
    normalize_observation: bool = True  # observations to mean 0 and variance 1, by running statistics
    images: Literal["auto", "nature", "impala", "small"] = "auto"  # network for image observations; auto: by size
    recurrent: Literal["none", "gru", "lstm"] = "none"  # what remembers earlier observations, if anything
    rnn_size: int = 64  # size of that memory
    sequence_length: int = 16  # rows of one env that are learned from together where there is memory
    burn_in: int = 8  # rows before them that bring the memory up to date

    def __post_init__(self) -> None:
        check_ranges(self)
        check_exploration(self)
        if self.schedule not in ("constant", "linear"):
            raise ValueError(f"schedule must be 'constant' or 'linear', got {self.schedule!r}")
        if self.target_interval < 1:
            raise ValueError(f"target_interval must be 1 or more, got {self.target_interval}")
        for name in ("priority_alpha", "priority_beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if self.exploration_spread < 0:
            raise ValueError(f"exploration_spread must be 0 (all alike) or above, got {self.exploration_spread}")
        if self.prioritized and self.recurrent != "none":
            raise ValueError("prioritized draws single rows, and memory learns from sequences: choose one of the two")
        if not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be above 0, got {self.max_grad_norm}")


class DQN(OffPolicy):
    """Learns the value of each action from a replay, and acts by it."""

    name = "dqn"
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete,)  # kinds of spaces it acts in
    policy: QNetwork

    def __init__(self, policy: QNetwork, config: DQNConfig = DQNConfig(), seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.optimizer = Adam(policy.parameters(), config.learning_rate, 1e-8)
        self.optimizers = {"policy": self.optimizer}
        self.target = following(policy)
        self.slow = flatten(self.target.parameters())
        self.progress: Any = 0.0  # share of the training done; in a graph a tensor
        self._spread_over(1)

    @classmethod
    def build(
        cls, config: DQNConfig, observation_space: Space, action_space: Space, seed: int, device: torch.device | str
    ) -> DQN:
        """DQN with a QNetwork on a device. Raises TypeError for spaces it cannot learn on."""
        network = policy_settings(config) | {"layer_norm": config.layer_norm, "dueling": config.dueling}
        return cls(QNetwork(observation_space, action_space, seed=seed, **network).to(device), config, seed)

    def prepare(self, rollout: Rollout) -> str:
        if self.config.exploration_spread:
            self._spread_over(rollout.num_envs)
        return super().prepare(rollout)

    def bytes_beside(self) -> int:
        return super().bytes_beside() + BYTES * self.config.prioritized

    def make_replay(self, rollout: Rollout, capacity: int) -> Replay:
        if not self.config.prioritized:
            return super().make_replay(rollout, capacity)
        return PrioritizedReplay(rollout, capacity, self.config.n_steps, alpha=self.config.priority_alpha)

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Append a rollout, and learn from the replay. Gives metrics under SB3's names: loss and q_value, means over
        all gradient steps and not before learning_starts; learning_rate, n_updates; exploration_rate of the rollout.
        """
        self.progress = progress
        if self.config.schedule == "linear":
            self.optimizer.learning_rate.fill_(self.config.learning_rate * (1 - progress))
        if isinstance(self.replay, PrioritizedReplay):
            self.replay.beta.fill_(self.config.priority_beta + progress * (1 - self.config.priority_beta))
        rates = {
            "learning_rate": self.optimizer.learning_rate.clone(),
            "exploration_rate": self.policy.exploration.mean(),
        }
        return super().update(rollout, progress) | rates

    def explore(self) -> None:
        """Over the envs as Horgan et al. 2018, arXiv:1803.00933, section 4.1."""
        self.policy.exploration.copy_(torch.pow(random_share(self.config, self.progress), self.powers))

    def _spread_over(self, envs: int) -> None:
        device = self.slow.device
        self.powers = 1 + self.config.exploration_spread * torch.linspace(0, 1, envs, device=device)
        self.policy.exploration = torch.empty(envs, device=device)
        self.buffers = {"target": self.slow, "exploration": self.policy.exploration}
        self.explore()

    def learn(self, batches: Batch, random: Tensor) -> dict[str, Tensor]:
        steps = self.updates + torch.arange(1, len(random) + 1, device=random.device)
        follow = self.config.tau * (steps % self.config.target_interval == 0)
        networks = (self.policy, self.target, self.slow, self.optimizer)
        metrics, error = learn(*networks, batches, follow, self.config)
        if isinstance(self.replay, PrioritizedReplay):
            self.replay.update(batches.rows, error)
        return metrics


@fused("dqn.learn", "headrace.bindings.dqn")
def learn(
    policy: QNetwork,
    target: QNetwork,
    slow: Tensor,
    optimizer: Adam,
    batches: Batch,
    follow: Tensor,
    config: DQNConfig,
) -> tuple[dict[str, Tensor], Tensor]:
    """One gradient step on each of G batches [G, B]. Gives metrics (see DQN.update) and errors [G, B].

    slow: the target's parameters, in one buffer. follow: float32 [G], the share of the way to the policy that they go
    after each step.
    """
    losses, values, errors = [], [], []
    for batch, share in zip(parts(batches), follow, strict=True):
        aim = bellman_target(policy, target, batch, config.double)
        value = policy.chosen(batch.observation, batch.action)
        weight = shares(batch.weight)
        loss = smooth_l1_loss(value, aim, reduction="none") @ weight
        loss.backward()
        optimizer.step(config.max_grad_norm)
        polyak(slow, optimizer.flat, share)
        losses.append(loss.detach())
        values.append(value.detach() @ weight)
        errors.append((aim - value).detach())
    return {"loss": torch.stack(losses).mean(), "q_value": torch.stack(values).mean()}, torch.stack(errors)


@torch.no_grad()
def bellman_target(policy: QNetwork, target: QNetwork, batch: Batch, double: bool) -> Tensor:
    """What the values of the actions taken are to become, [B]: the rewards, and the discounted value of the best next
    action in the target's eyes (Mnih et al. 2015), or (double) of the policy's choice (van Hasselt et al. 2016, eq. 4).
    """
    values = target(batch.next_observation)
    if double:
        best = policy(batch.next_observation).argmax(0, keepdim=True)
        return batch.reward + batch.discount * values.gather(0, best).squeeze(0)
    return batch.reward + batch.discount * values.amax(0)
