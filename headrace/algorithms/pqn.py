"""PQN: Q-learning without replay or target network, from many environments. Gallici et al. 2024, arXiv:2407.04811.

Layer normalisation keeps it stable; the number of environments decorrelates the rows of a minibatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import EpsilonGreedyConfig, OnPolicyConfig
from headrace.algorithms.on_policy import Batch, Loss, OnPolicy, Targets, gae_targets, learn_minibatches
from headrace.algorithms.reduce import Reduce, means, number_of_minibatches, one_learner
from headrace.data.rollout import Column, Columns, Rollout, flatten
from headrace.data.spaces import Discrete, Space
from headrace.policies.q_network import QNetwork
from headrace.setting_schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class PQNConfig(EpsilonGreedyConfig, OnPolicyConfig):
    """PQN's settings. Raises ValueError for one out of range."""

    num_steps: int = 32  # steps of each environment in a rollout
    epochs: int = 2  # passes over each rollout
    minibatch_size: int = 256  # rows of a minibatch; minibatches have one size, the nearest to this that fits
    learning_rate: float = 5e-4  # of Adam, at the start of training
    schedule: Schedule = "linear"  # of the learning rate: constant, linear, cosine, ..., see docs/schedules.md
    q_lambda: float = 0.65  # of Q(lambda): 0 one-step targets, 1 returns to the rollout's end
    max_grad_norm: float = 10.0  # gradients are clipped to this norm
    hidden: tuple[int, ...] = (128, 128)  # sizes of the hidden layers
    activation: str = "relu"  # of the hidden layers, by its name in torch.nn.functional
    layer_norm: bool = True  # layer normalisation before each activation; without it values may diverge


def pqn_loss(policy: QNetwork, batch: Batch, config: PQNConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the squared error of the values of the actions taken; and its metrics, means over the rows that count.

    batch: `observation`, `action`, `returns`, `weight`.
    """
    value = policy.action_value(batch["observation"], batch["action"])
    loss = 0.5 * ((value - batch["returns"]).square() @ batch["weight"])
    return loss, {"loss": loss, "q_value": value @ batch["weight"]}


class PQN(OnPolicy[PQNConfig]):
    """Epochs of minibatch steps on Q(lambda) targets. Metrics: loss and q_value, means over all minibatches;
    exploration_rate of the rollout."""

    name = "pqn"
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete,)
    policy: QNetwork
    config = PQNConfig()
    loss: Loss | None = None  # in place of pqn_loss: a staticmethod of a subclass

    def __init__(self, policy: QNetwork, config: PQNConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        policy.exploration.fill_(self.config.exploration_initial)

    @classmethod
    def make_policy(cls, config: PQNConfig, observation_space: Space, action_space: Space, seed: int) -> QNetwork:
        network = (config.hidden, config.activation, config.layer_norm, False, config.normalize_observation)
        return QNetwork(observation_space, action_space, *network, seed, config.images)

    def columns(self) -> dict[str, Column | Columns]:
        """The value of the best action, with a bootstrap row."""
        return {"value": Column(bootstrap=True)}

    def process(self, rollout: Rollout) -> Targets:
        """Targets of the values of the actions taken as `returns`; the paper's algorithm 1.

        R[t] = reward[t] + gamma (lambda R[t + 1] + (1 - lambda) max_a Q(next observation, a)): Peng's Q(lambda), with
        the values of the network that collected: their generalised advantage estimates plus these values.
        """
        return gae_targets(rollout, self.config.gamma, self.config.q_lambda)

    def learn(self, rollout: Rollout, targets: Targets) -> dict[str, Tensor]:
        order = self.permutation(rollout, self.config.epochs)
        return learn(self.policy, self.optimizer, rollout, targets.returns, order, self.config, self.reduce, self.loss)

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        rate = self.policy.exploration.mean()
        metrics = super().update(rollout, progress)
        self.policy.exploration.fill_(self.config.exploration_rate(progress))
        return metrics | {"exploration_rate": rate}

    def state_dict(self) -> dict[str, Any]:
        """OnPolicy's, and the fraction of random actions."""
        return super().state_dict() | {"exploration": self.policy.exploration.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from state_dict(), bit for bit."""
        super().load_state_dict(state)
        self.policy.exploration.copy_(state["exploration"])


def learn(
    policy: QNetwork,
    optimizer: Adam,
    rollout: Rollout,
    returns: Tensor,
    order: Tensor,
    config: PQNConfig,
    reduce: Reduce = one_learner,
    loss: Loss | None = None,
) -> dict[str, Tensor]:
    """Epochs of minibatch steps on half the squared error, or on another loss of the same batches. Gives metrics (see
    PQN.update).

    returns: [T, N]; order: int64 [epochs, T * N], the order of rows in each epoch. Masked rows have weight 0.
    """
    columns = {
        "observation": flatten(rollout.observation[: rollout.num_steps]),
        "action": rollout.action.flatten(),
        "returns": returns.flatten(),
        "valid": rollout.valid[: rollout.num_steps].flatten().to(torch.float32),
    }
    number = number_of_minibatches(len(columns["returns"]), config.minibatch_size, 1, reduce)
    found = learn_minibatches(loss or pqn_loss, policy, optimizer, columns, order, number, config, reduce)
    metrics = means(found)
    reduce(*metrics.values())
    return metrics
