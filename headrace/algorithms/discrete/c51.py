"""C51: DQN that learns the distribution of each action's return, as probabilities of fixed returns (atoms).

Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", arXiv:1707.06887. With double, dueling,
n_steps, prioritized and noisy it is Rainbow: Hessel et al. 2018, arXiv:1710.02298.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import (
    AtomsConfig,
    EpsilonGreedyConfig,
    NoisyConfig,
    OffPolicyConfig,
    PrioritizedConfig,
    policy_settings,
)
from headrace.algorithms.discrete.qrdqn import of_action
from headrace.algorithms.objectives import TD_ERROR, Learned, Objective, OffPolicyLoss, Rows
from headrace.algorithms.off_policy import OffPolicy, make_target
from headrace.core.returns import projected
from headrace.data.rollout import Rollout
from headrace.data.spaces import Discrete, Space
from headrace.policies.flat_parameters import flatten
from headrace.policies.q_network import QNetwork


@dataclass(frozen=True, kw_only=True)
class C51Config(NoisyConfig, PrioritizedConfig, EpsilonGreedyConfig, AtomsConfig, OffPolicyConfig):
    """C51's settings. Raises ValueError for one out of range."""

    num_steps: int = 4  # steps of each environment in an iteration
    buffer_size: int = 100_000  # steps in the replay buffer, of all environments together
    batch_size: int = 64  # rows in a gradient step
    utd_ratio: float = 0.25  # gradient steps for each environment step (update-to-data ratio)
    learning_rate: float = 5e-4  # of Adam, at the start of training
    num_atoms: int = 51  # returns that have a probability, evenly spaced from v_min to v_max
    target_interval: int = 250  # gradient steps between updates of the target network
    tau: float = 1.0  # fraction by which the target network moves to the network in an update
    double: bool = False  # double DQN: the network selects the next action, the target network evaluates it
    dueling: bool = False  # dueling network: separate last hidden layers for state values and advantages
    adam_eps: float = 1e-8  # Adam's epsilon; 0.01 / batch_size in the paper
    max_grad_norm: float = 10.0  # gradients are clipped to this norm
    hidden: tuple[int, ...] = (128, 128)  # sizes of the hidden layers
    layer_norm: bool = False  # layer normalisation before each activation

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        if self.num_atoms < 2:
            raise ValueError(f"num_atoms must be 2 or more, got {self.num_atoms}: dqn learns the mean alone")


class C51(OffPolicy[C51Config]):
    """Learns the distribution of the return of each action, and acts epsilon-greedily by its mean."""

    name = "c51"
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete,)
    policy: QNetwork
    config = C51Config()
    loss: OffPolicyLoss | None = None  # in place of c51_loss: a staticmethod of a subclass

    def __init__(self, policy: QNetwork, config: C51Config | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        wanted, own = _atoms(self.config), policy.config()
        if any(own.get(name) != value for name, value in wanted.items()):
            raise ValueError(f"the algorithm learns {wanted}: make the policy with these arguments")
        self.optimizer = Adam(policy.parameters(), self.config.learning_rate, self.config.adam_eps)
        self.target = make_target(policy)
        self.optimizers = {"policy": self.optimizer}
        self.buffers = {"target": flatten(self.target.parameters()), "exploration": policy.exploration}
        self.progress: float | Tensor = 0.0  # fraction of the training done; in a CUDA graph a tensor
        self.explore()

    @classmethod
    def make_policy(cls, config: C51Config, observation_space: Space, action_space: Space, seed: int) -> QNetwork:
        own = {name: getattr(config, name) for name in ("layer_norm", "dueling", "noisy")} | _atoms(config)
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
        return self.policy.noise_draws(3 if self.config.double else 2)

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        given = (self.optimizer,), ((self.buffers["target"], self.optimizer.flat),)
        found = Objective(self.loss or c51_loss, *given, self.config.tau, self.config.max_grad_norm)
        return (found,), Learned(self.policy, self.target)


def _atoms(config: C51Config) -> dict[str, object]:
    """Arguments of a QNetwork with the atoms of a config."""
    return {"quantiles": config.num_atoms, "support": [config.v_min, config.v_max]}


def c51_loss(networks: Learned, batch: Rows, config: C51Config) -> tuple[Tensor, dict[str, Tensor]]:
    """The cross-entropy of the distribution of an action's return and its projected target: algorithm 1 of the paper.

    TD_ERROR is the Kullback-Leibler divergence of both, as in Rainbow."""
    policy, target, _ = networks
    random = batch.get("random")  # of noisy networks
    with torch.no_grad():
        following = batch["next_observation"]
        of_next = target.outputs(target.encoder(following), *target.noise_of(random, 1)).softmax(1)  # [A, M, B]
        values = (of_next * target.atoms).sum(1)
        if config.double:
            values = policy(following, *policy.noise_of(random, 2))
        _, best = target.best(values, following)
        returns = (batch["reward"] + batch["discount"] * target.atoms).clamp(config.v_min, config.v_max)  # [M, B]
        wanted = projected(of_action(of_next, best), returns, target.atoms)
    action = (batch["action"] - policy.start).long()
    logits = policy.outputs(policy.encoder(batch["observation"]), *policy.noise_of(random, 0))
    log_probs = of_action(logits, action).log_softmax(0)
    cross_entropy = -(wanted * log_probs).sum(0)
    loss = cross_entropy @ batch["weight"]
    value = (log_probs.exp() * policy.atoms).sum(0) @ batch["weight"]
    divergence = cross_entropy + (wanted * wanted.clamp(min=1e-30).log()).sum(0)
    return loss, {"loss": loss, "q_value": value, TD_ERROR: divergence}
