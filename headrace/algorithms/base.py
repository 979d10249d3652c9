"""What a learning rule owes: columns it needs, and an update from a rollout."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from gymnasium.spaces import Space
from torch import Tensor

from headrace.data.rollout import Column, Columns, Rollout
from headrace.policies.base import Policy


class Algorithm(Protocol):
    """A learning rule with its policy and optimizer. Knows nothing of environments, processes or devices.

    Each algorithm's module opens with one flat frozen dataclass, its config (PPOConfig); `PPO(policy, config, seed)`
    takes any policy, `PPO.build(config, observation_space, action_space, seed, device)` makes the usual one.
    """

    name: ClassVar[str]  # "ppo"
    actions: ClassVar[tuple[type[Space], ...]]  # kinds of spaces it acts in
    policy: Policy
    config: Any
    num_steps: int  # T of the rollouts it learns from
    iteration: int  # updates done

    @classmethod
    def build(cls, config: Any, observation_space: Space, action_space: Space, seed: int, device: Any) -> Algorithm:
        """This algorithm with its usual policy. Raises TypeError for spaces it cannot learn on."""

    def columns(self) -> dict[str, Column | Columns]:
        """Columns the collector's policy fills, beside those every environment writes."""

    def warm_up(self, rollout: Rollout) -> None:
        """Learn once from a made-up rollout and forget it, so that whatever must be compiled is compiled."""

    def prepare(self, rollout: Rollout) -> str:
        """Allocate what depends on the number of environments, such as a replay. Called once, before training, with
        the collector's rollout. Gives a line to tell people, such as the memory planned; empty for nothing.

        Raises MemoryError, with the numbers, for more than there is."""

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Learn from a rollout; give metrics as scalars on the device. progress: share of the training done, 0 .. 1,
        which schedules follow. On a GPU the whole of it may be captured in a graph, with `iteration` and progress as
        tensors: give them to headrace.core.rng and to arithmetic alone, and count nothing else on the host."""

    def state_dict(self) -> dict[str, Any]:
        """Nested dict of tensors and numbers: policy, optimizer, counters."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict()."""
