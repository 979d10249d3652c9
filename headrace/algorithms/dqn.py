"""DQN: deep Q-learning from a replay buffer, and its later additions as settings. Mnih et al. 2015, Nature 518.

double: van Hasselt et al. 2016, arXiv:1509.06461. dueling: Wang et al. 2016, arXiv:1511.06581. n_steps: Sutton 1988,
as in Hessel et al. 2018, arXiv:1710.02298. prioritized: Schaul et al. 2016, arXiv:1511.05952.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import (
    EpsilonGreedyConfig,
    NoisyConfig,
    OffPolicyConfig,
    PrioritizedConfig,
    policy_settings,
)
from headrace.algorithms.objectives import TD_ERROR, Learned, Objective, OffPolicyLoss, Rows
from headrace.algorithms.off_policy import OffPolicy, make_target
from headrace.data.rollout import Rollout
from headrace.data.spaces import Discrete, Space
from headrace.policies.flat_parameters import flatten
from headrace.policies.q_network import QNetwork
from headrace.setting_schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class DQNConfig(NoisyConfig, PrioritizedConfig, EpsilonGreedyConfig, OffPolicyConfig):
    """DQN's settings. Raises ValueError for one out of range."""

    num_steps: int = 4  # steps of each environment in an iteration
    buffer_size: int = 100_000  # steps in the replay buffer, of all environments together
    batch_size: int = 64  # rows in a gradient step
    utd_ratio: float = 0.25  # gradient steps for each environment step (update-to-data ratio)
    learning_rate: float = 5e-4  # of Adam, at the start of training
    schedule: Schedule = "linear"  # of the learning rate: constant, linear, cosine, ..., see docs/schedules.md
    target_interval: int = 250  # gradient steps between updates of the target network
    tau: float = 1.0  # fraction by which the target network moves to the network in an update
    double: bool = True  # double DQN: the network selects the next action, the target network evaluates it
    dueling: bool = False  # dueling network: separate last hidden layers for state values and advantages
    exploration_spread: float = 0.0  # environment i of N explores rate^(1 + this i / (N - 1)); 0: all alike
    adam_eps: float = 1e-8  # Adam's epsilon; 1.5e-4, as in Rainbow, where a solved task is forgotten
    max_grad_norm: float = 10.0  # gradients are clipped to this norm
    hidden: tuple[int, ...] = (128, 128)  # sizes of the hidden layers
    layer_norm: bool = False  # layer normalisation before each activation


class Networks(NamedTuple):
    """A policy and its target network, with the buffers that learning updates."""

    policy: QNetwork
    target: QNetwork
    target_flat: Tensor  # the target network's parameters, in one buffer [P] laid out as the optimizer's
    optimizer: Adam


class DQN(OffPolicy[DQNConfig]):
    """Learns the value of each action from a replay buffer, and acts epsilon-greedily."""

    name = "dqn"
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete,)
    policy: QNetwork
    config = DQNConfig()
    loss: OffPolicyLoss | None = None  # in place of dqn_loss: a staticmethod of a subclass

    def __init__(self, policy: QNetwork, config: DQNConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.optimizer = Adam(policy.parameters(), self.config.learning_rate, self.config.adam_eps)
        target = make_target(policy)
        self.networks = Networks(policy, target, flatten(target.parameters()), self.optimizer)
        self.optimizers = {"policy": self.optimizer}
        self.progress: float | Tensor = 0.0  # fraction of the training done; in a CUDA graph a tensor
        self._set_spread(1)

    @classmethod
    def make_policy(cls, config: DQNConfig, observation_space: Space, action_space: Space, seed: int) -> QNetwork:
        own = {name: getattr(config, name) for name in ("layer_norm", "dueling", "noisy")}
        return QNetwork(observation_space, action_space, seed=seed, **policy_settings(config), **own)

    def prepare(self, rollout: Rollout) -> str:
        if self.config.exploration_spread:
            self._set_spread(rollout.num_envs)
        return super().prepare(rollout)

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Append a rollout, and learn from the replay buffer. Returns metrics under SB3's names.

        loss and q_value are means over all gradient steps, once learning has started; exploration_rate is the
        rollout's.
        """
        self.progress = progress
        rates = {"exploration_rate": self.policy.exploration.mean()}
        return super().update(rollout, progress) | rates

    def explore(self) -> None:
        """A rate for each environment, as Horgan et al. 2018, arXiv:1803.00933, section 4.1."""
        self.policy.exploration.copy_(torch.pow(self.config.exploration_rate(self.progress), self.powers))

    def _set_spread(self, envs: int) -> None:
        device = self.networks.target_flat.device
        first, total = self.part
        places = torch.linspace(0, 1, total or envs, device=device)[first : first + envs]
        self.powers = 1 + self.config.exploration_spread * places
        self.policy.exploration = torch.empty(envs, device=device)
        buffers = {"target": self.networks.target_flat, "exploration": self.policy.exploration}
        object.__setattr__(self, "buffers", buffers)  # other code must not replace it
        self.explore()

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return [(self.optimizer, self.policy.parameters())]

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        policy, target, target_flat, optimizer = self.networks
        targets, most = ((target_flat, optimizer.flat),), self.config.max_grad_norm
        found = Objective(self.loss or dqn_loss, (optimizer,), targets, self.config.tau, most)
        return (found,), Learned(policy, target)

    def num_draws(self) -> int:
        return self.policy.noise_draws(3 if self.config.double else 2)


def dqn_loss(networks: Learned, batch: Rows, config: DQNConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The Huber loss of TD errors, as in Mnih et al. 2015, its metrics, and the column `td_error`."""
    policy, target, _ = networks
    td_target = td_targets(policy, target, batch, config.double)
    value = policy.action_value(batch["observation"], batch["action"], *policy.noise_of(batch.get("random"), 0))
    loss = smooth_l1_loss(value, td_target, reduction="none") @ batch["weight"]
    return loss, {"loss": loss, "q_value": value @ batch["weight"], TD_ERROR: td_target - value}


@torch.no_grad()
def td_targets(policy: QNetwork, target: QNetwork, batch: Rows, double: bool) -> Tensor:
    """TD targets [B]: the reward plus the discounted value of the next action under the target network. The action is
    the best one of the target network (Mnih et al. 2015), or (double) of the policy (van Hasselt et al. 2016, eq.
    4)."""
    following, reward, discount = batch["next_observation"], batch["reward"], batch["discount"]
    random = batch.get("random")
    values = target(following, *target.noise_of(random, 1))
    if double:
        _, best = policy.best(policy(following, *policy.noise_of(random, 2)), following)
        return reward + discount * values.gather(0, best.unsqueeze(0)).squeeze(0)
    return reward + discount * target.best(values, following)[0]
