"""QR-DQN: DQN that learns quantiles of each action's return instead of its mean.

Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", arXiv:1710.10044.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import EpsilonGreedyConfig, NoisyConfig, OffPolicyConfig, policy_settings
from headrace.algorithms.objectives import Learned, Objective, OffPolicyLoss, Rows
from headrace.algorithms.off_policy import OffPolicy, make_target
from headrace.algorithms.tqc import quantile_huber_loss
from headrace.data.rollout import Rollout
from headrace.data.spaces import Discrete, Space
from headrace.policies.flat_parameters import flatten
from headrace.policies.q_network import QNetwork


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(NoisyConfig, EpsilonGreedyConfig, OffPolicyConfig):
    """QR-DQN's settings. Raises ValueError for one out of range."""

    num_steps: int = 4  # steps of each environment in an iteration
    buffer_size: int = 100_000  # steps in the replay buffer, of all environments together
    batch_size: int = 64  # rows in a gradient step
    utd_ratio: float = 0.25  # gradient steps for each environment step (update-to-data ratio)
    learning_rate: float = 5e-4  # of Adam, at the start of training
    quantiles: int = 50  # of the return of each action, N in the paper, which has 200
    target_interval: int = 250  # gradient steps between updates of the target network
    tau: float = 1.0  # fraction by which the target network moves to the network in an update
    dueling: bool = False  # dueling network: separate last hidden layers for state values and advantages
    adam_eps: float = 1e-8  # Adam's epsilon; 0.01 / batch_size in the paper
    max_grad_norm: float = 10.0  # gradients are clipped to this norm
    hidden: tuple[int, ...] = (128, 128)  # sizes of the hidden layers
    layer_norm: bool = False  # layer normalisation before each activation

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        if self.quantiles < 2:
            raise ValueError(f"quantiles must be 2 or more, got {self.quantiles}: dqn learns the mean alone")


class QRDQN(OffPolicy[QRDQNConfig]):
    """Learns quantiles of the return of each action, and acts epsilon-greedily by their means."""

    name = "qrdqn"
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete,)
    policy: QNetwork
    config = QRDQNConfig()
    loss: OffPolicyLoss | None = None  # in place of qrdqn_loss: a staticmethod of a subclass

    def __init__(self, policy: QNetwork, config: QRDQNConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        if (own := getattr(policy, "quantiles", 1)) != self.config.quantiles:
            raise ValueError(f"this policy has quantiles={own}, and the algorithm learns {self.config.quantiles}")
        self.optimizer = Adam(policy.parameters(), self.config.learning_rate, self.config.adam_eps)
        self.target = make_target(policy)
        self.optimizers = {"policy": self.optimizer}
        self.buffers = {"target": flatten(self.target.parameters()), "exploration": policy.exploration}
        self.progress: float | Tensor = 0.0  # fraction of the training done; in a CUDA graph a tensor
        self.explore()

    @classmethod
    def make_policy(cls, config: QRDQNConfig, observation_space: Space, action_space: Space, seed: int) -> QNetwork:
        own = {name: getattr(config, name) for name in ("layer_norm", "dueling", "quantiles", "noisy")}
        return QNetwork(observation_space, action_space, seed=seed, **policy_settings(config), **own)

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Append a rollout, and learn from the replay buffer. Returns DQN's metrics."""
        self.progress = progress
        rate = {"exploration_rate": self.policy.exploration.mean()}
        return super().update(rollout, progress) | rate

    def explore(self) -> None:
        """The rate of random actions of the next rollout."""
        self.policy.exploration.fill_(self.config.exploration_rate(self.progress))

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return [(self.optimizer, self.policy.parameters())]

    def num_draws(self) -> int:
        return self.policy.noise_draws(2)

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        given = (self.optimizer,), ((self.buffers["target"], self.optimizer.flat),)
        found = Objective(self.loss or qrdqn_loss, *given, self.config.tau, self.config.max_grad_norm)
        return (found,), Learned(self.policy, self.target)


def qrdqn_loss(networks: Learned, batch: Rows, config: QRDQNConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The quantile Huber loss, algorithm 1 of the paper, between the quantiles of the action's return and those of the
    next action. The target network chooses the next action with the largest mean."""
    policy, target, _ = networks
    random = batch.get("random")  # of noisy networks
    with torch.no_grad():
        following = batch["next_observation"]
        quantiles = target.outputs(target.encoder(following), *target.noise_of(random, 1))  # [A, M, B]
        _, best = target.best(quantiles.mean(1), following)
        td_target = batch["reward"] + batch["discount"] * of_action(quantiles, best)
    action = (batch["action"] - policy.start).long()
    own = of_action(policy.outputs(policy.encoder(batch["observation"]), *policy.noise_of(random, 0)), action)
    loss = quantile_huber_loss(own.t().unsqueeze(0), td_target.t()) @ batch["weight"]
    return loss, {"loss": loss, "q_value": own.mean(0) @ batch["weight"]}


def of_action(quantiles: Tensor, action: Tensor) -> Tensor:
    """Select the quantiles of one action per row, [M, B], from those of all actions [A, M, B]."""
    return quantiles.gather(0, action.view(1, 1, -1).expand(1, *quantiles.shape[1:])).squeeze(0)
