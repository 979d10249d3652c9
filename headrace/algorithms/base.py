"""The protocol of algorithms: the columns that they need, and an update from a rollout."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from gymnasium.spaces import Space
from torch import Tensor

from headrace.data.rollout import Column, Columns, Rollout
from headrace.policies.base import Policy


class Algorithm(Protocol):
    """An algorithm with its policy and optimizer. It does not depend on environments, processes or devices.

    Each algorithm's module opens with one flat frozen dataclass, its config (PPOConfig); `PPO(policy, config, seed)`
    takes any policy, `PPO.build(config, observation_space, action_space, seed, device)` makes the default one.
    """

    name: ClassVar[str]  # "ppo"
    actions: ClassVar[tuple[type[Space], ...]]  # kinds of action spaces
    max_lag: ClassVar[int | None]  # updates by which the policy that collected may be older than the one that learns;
    # None: any number. 0 where it is left out
    policy: Policy
    config: Any
    num_steps: int  # T of the rollouts it learns from
    iteration: int  # updates done

    @classmethod
    def build(cls, config: Any, observation_space: Space, action_space: Space, seed: int, device: Any) -> Algorithm:
        """This algorithm with its usual policy. Raises TypeError for spaces it cannot learn on."""

    def columns(self) -> dict[str, Column | Columns]:
        """Columns the collector's policy fills, besides those that every environment writes."""

    def warm_up(self, rollout: Rollout) -> None:
        """Learn once from a random rollout, then restore all state, so that kernels are compiled before training."""

    def prepare(self, rollout: Rollout) -> str:
        """Allocate what depends on the number of environments, such as a replay buffer. Called once, before training,
        with the collector's rollout. Returns a line for users, such as the memory planned, or an empty string.

        Raises MemoryError, with the sizes, where there is too little memory."""

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Learn from a rollout; return metrics as scalars on the device. progress: fraction of the training done,
        0 .. 1, for schedules. On a GPU the call may be captured in a CUDA graph, with `iteration` and progress as
        tensors: use them only in arithmetic and headrace.core.rng, and keep no other counts on the host."""

    def state_dict(self) -> dict[str, Any]:
        """Nested dict of tensors and numbers: policy, optimizer, counters."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from state_dict()."""


def past_warm_up(algorithm: Algorithm) -> bool:
    """Whether the next update learns: algorithms with a replay buffer have a method that says so, others always do."""
    ready = getattr(algorithm, "past_warm_up", None)
    return ready is None or ready()
