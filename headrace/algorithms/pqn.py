"""PQN: Q-learning without replay or target network, from many environments. Gallici et al. 2024, arXiv:2407.04811.

What keeps it stable is layer normalisation, and what keeps rows unlike each other is the number of environments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.exploration import check_exploration, random_share
from headrace.algorithms.minibatches import count, minibatches
from headrace.algorithms.on_policy import OnPolicy, check_ranges
from headrace.core.returns import explained_variance, gae
from headrace.data.rollout import Column, Columns, Rollout, flatten
from headrace.data.spaces import Discrete, Space
from headrace.policies.q_network import QNetwork


@dataclass(frozen=True)
class PQNConfig:
    """PQN's settings. Raises ValueError for one out of range."""

    num_steps: int = 32  # steps of each env in a rollout
    epochs: int = 2  # passes over each rollout
    minibatch_size: int = 256  # rows in a minibatch; taken so that all are of one size, the nearest to this
    learning_rate: float = 5e-4  # of Adam, at the start
    schedule: Literal["constant", "linear"] = "linear"  # of the learning rate: linear falls to 0 by the end
    gamma: float = 0.99  # discount of the reward one step later
    q_lambda: float = 0.65  # share of longer returns in what is learned: 0 one step only, 1 all to the episode's end
    exploration_initial: float = 1.0  # share of random actions at the start
    exploration_final: float = 0.05  # share of random actions from exploration_fraction on
    exploration_fraction: float = 0.2  # share of the training over which it falls
    max_grad_norm: float = 10.0  # the gradient's norm is scaled down to this
    hidden: tuple[int, ...] = (128, 128)  # sizes of the hidden layers
    activation: str = "relu"  # between them: tanh, relu, elu, silu, gelu, leaky_relu
    layer_norm: bool = True  # what goes into each activation is normalised; without it values may diverge
    normalize_observation: bool = True  # observations to mean 0 and variance 1, by running statistics
    images: Literal["auto", "nature", "impala", "small"] = "auto"  # network for image observations; auto: by size

    def __post_init__(self) -> None:
        counts, sizes = ("num_steps", "epochs", "minibatch_size"), ("learning_rate", "max_grad_norm")
        check_ranges(self, least_one=counts, above_zero=sizes)
        check_exploration(self)
        if not 0 <= self.q_lambda <= 1:
            raise ValueError(f"q_lambda must lie in [0, 1], got {self.q_lambda}")


class PQN(OnPolicy):
    """Learns the value of each action from rollouts, each used once."""

    name = "pqn"
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete,)
    policy: QNetwork
    config: PQNConfig

    def __init__(self, policy: QNetwork, config: PQNConfig = PQNConfig(), seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        policy.exploration.fill_(config.exploration_initial)

    @classmethod
    def build(
        cls, config: PQNConfig, observation_space: Space, action_space: Space, seed: int, device: torch.device | str
    ) -> PQN:
        """PQN with a QNetwork on a device. Raises TypeError for spaces it cannot learn on."""
        network = (config.hidden, config.activation, config.layer_norm, False, config.normalize_observation)
        policy = QNetwork(observation_space, action_space, *network, seed, config.images)
        return cls(policy.to(device), config, seed)

    def columns(self) -> dict[str, Column | Columns]:
        """The value of the best action, of what is seen last too."""
        return {"value": Column(bootstrap=True)}

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Learn from a rollout of this policy. progress: share of the training done, 0 .. 1.

        Gives loss and q_value, means over all minibatches; explained_variance of the values collected; learning_rate;
        exploration_rate of the rollout.
        """
        value, rate = rollout.value[:-1], self.policy.exploration.mean()
        self.set_learning_rate(progress)
        returns = lambda_returns(rollout, self.config.gamma, self.config.q_lambda)
        order = self.permutation(rollout, self.config.epochs)
        metrics = learn(self.policy, self.optimizer, rollout, returns, order, self.config)
        metrics["explained_variance"] = explained_variance(value, returns, rollout.valid[:-1])
        metrics["learning_rate"], metrics["exploration_rate"] = self.optimizer.learning_rate.clone(), rate
        self.policy.update_statistics(rollout, returns)
        self.policy.exploration.fill_(random_share(self.config, progress))
        self.iteration += 1
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """OnPolicy's, and the share of random actions."""
        return super().state_dict() | {"exploration": self.policy.exploration.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict(), bit for bit."""
        super().load_state_dict(state)
        self.policy.exploration.copy_(state["exploration"])


def lambda_returns(rollout: Rollout, gamma: float, q_lambda: float) -> Tensor:
    """What the values of the actions taken are to become, [T, N]; the paper's algorithm 1.

    R[t] = reward[t] + gamma (lambda R[t + 1] + (1 - lambda) max_a Q(next observation, a)): Peng's Q(lambda), with the
    values of the network that collected. The generalised advantage estimate of those values, plus these, is just that.
    """
    value, ends = rollout.value, (rollout.terminated, rollout.truncated)
    return gae(rollout.reward, value[:-1], value[1:], *ends, gamma, q_lambda) + value[:-1]


def learn(
    policy: QNetwork, optimizer: Adam, rollout: Rollout, returns: Tensor, order: Tensor, config: PQNConfig
) -> dict[str, Tensor]:
    """Epochs of minibatch steps on half the squared error. Gives metrics (see PQN.update).

    returns: [T, N]; order: int64 [epochs, T * N], of rows in each epoch. Dead rows weigh nothing.
    """
    columns = {
        "observation": flatten(rollout.observation[: rollout.num_steps]),
        "action": rollout.action.flatten(),
        "returns": returns.flatten(),
        "valid": rollout.valid[: rollout.num_steps].flatten().to(torch.float32),
    }
    number = count(len(columns["returns"]), config.minibatch_size)
    losses, values = [], []
    for rows in order:
        for batch in minibatches(columns, rows, number):
            weight = batch["valid"] / batch["valid"].sum().clamp(min=1)
            value = policy.chosen(batch["observation"], batch["action"])
            loss = 0.5 * ((value - batch["returns"]).square() @ weight)
            loss.backward()
            optimizer.step(config.max_grad_norm)
            losses.append(loss.detach())
            values.append(value.detach() @ weight)
    return {"loss": torch.stack(losses).mean(), "q_value": torch.stack(values).mean()}
