"""CQL for discrete actions: double DQN on recorded data, with values that are low for actions that the data lack.

Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", arXiv:2006.04779: CQL(H), whose sum
over actions is exact here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.dqn import td_targets
from headrace.algorithms.objectives import Learned, Objective, OffPolicyLoss, Rows
from headrace.algorithms.off_policy import OffPolicy, make_target
from headrace.algorithms.offline.offline import Offline, OfflineConfig
from headrace.data.spaces import Discrete, Space
from headrace.policies.flat_parameters import flatten
from headrace.policies.masks import forbid, mask_of, or_all
from headrace.policies.q_network import QNetwork

NETWORK = ("hidden", "activation", "normalize_observation", "images")  # settings of a QNetwork


@dataclass(frozen=True, kw_only=True)
class DiscreteCQLConfig(OfflineConfig):
    """Settings of CQL for discrete actions. Raises ValueError for one out of range."""

    alpha: float = 1.0  # weight of the values of all actions, less that of the recorded one, in the loss
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # fraction by which the target network moves to the network in an update


class DiscreteCQL(Offline, OffPolicy[DiscreteCQLConfig]):  # type: ignore[type-var, misc]
    """Learns values of actions from recorded data, and acts by the largest."""

    name = "discrete_cql"
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete,)
    policy: QNetwork
    config = DiscreteCQLConfig()
    loss: OffPolicyLoss | None = None  # in place of cql_loss: a staticmethod of a subclass

    def __init__(self, policy: QNetwork, config: DiscreteCQLConfig | None = None, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self.optimizers = {"policy": Adam(policy.parameters(), self.config.learning_rate, 1e-8)}
        self.target = make_target(policy)
        self.buffers = {"target": flatten(self.target.parameters())}

    @classmethod
    def make_policy(
        cls, config: DiscreteCQLConfig, observation_space: Space, action_space: Space, seed: int
    ) -> QNetwork:
        own = {name: getattr(config, name) for name in NETWORK}
        return QNetwork(observation_space, action_space, seed=seed, **own)

    def learned(self) -> list[tuple[Adam, Iterable[nn.Parameter]]]:
        return [(self.optimizers["policy"], self.policy.parameters())]

    def objectives(self) -> tuple[Sequence[Objective], Learned]:
        """The loss of a gradient step, and its networks."""
        optimizer = self.optimizers["policy"]
        follows = ((self.buffers["target"], optimizer.flat),)
        return (Objective(self.loss or cql_loss, (optimizer,), follows, self.config.tau),), Learned(
            self.policy, self.target
        )


def cql_loss(networks: Learned, batch: Rows, config: DiscreteCQLConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the squared TD errors of double DQN, plus alpha times log sum e^Q over the allowed actions
    less Q of the recorded one: eq. 4 of the paper."""
    policy, target, _ = networks
    observation, weight = batch["observation"], batch["weight"]
    td_target = td_targets(policy, target, batch, double=True)
    values = policy(observation)  # [A, B]
    value = values.gather(0, (batch["action"] - policy.start).long().unsqueeze(0)).squeeze(0)
    if policy.masked:
        values = forbid(values, or_all(mask_of(policy.mask_space, observation)))
    td_loss = 0.5 * (value - td_target).square() @ weight
    conservative = (values.logsumexp(0) - value) @ weight
    loss = td_loss + config.alpha * conservative
    return loss, {"loss": loss, "td_loss": td_loss, "conservative_loss": conservative, "q_value": value @ weight}
