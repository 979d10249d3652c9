"""The base of algorithms that learn from recorded data alone: the replay buffer is filled only once.

An iteration is `gradient_steps` gradient steps, which count as the training's steps, since no environment takes any.
The buffer has the rows of all data in sequence, as if they were of a single environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from headrace import setting_schedules
from headrace.algorithms.config_bases import check_ranges
from headrace.algorithms.off_policy import learn_from_replay
from headrace.data.replay import Replay
from headrace.data.rollout import Rollout
from headrace.policies.base import Policy
from headrace.setting_schedules import Schedule

ROOM = 3  # rows of a replay buffer beyond those of the data: two masked ones after the last, and one that is never read


@dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    """Settings of algorithms that learn from recorded data alone. Raises ValueError for one out of range.

    Class variables are settings of other algorithms with a replay buffer that have a fixed value here."""

    gradient_steps: int = 100  # gradient steps of an iteration, which are logged together
    batch_size: int = 256  # rows in a gradient step
    learning_rate: float = 3e-4  # of Adam, at the start of training
    schedule: Schedule = "constant"  # of the learning rate: constant, linear, cosine, ..., see docs/schedules.md
    schedules: dict[str, Schedule] = field(default_factory=dict)  # of other numbers, such as alpha=linear:2.5:1
    hidden: tuple[int, ...] = (256, 256)  # sizes of the hidden layers
    activation: str = "relu"  # of the hidden layers, by its name in torch.nn.functional
    normalize_observation: bool = True  # observations to mean 0 and variance 1, by the statistics of the data
    images: Literal["auto", "nature", "impala", "small"] = "auto"  # network for image observations; auto: by size

    num_steps: ClassVar[int] = 1
    train_freq: ClassVar[int] = 0
    learning_starts: ClassVar[int] = 0
    n_steps: ClassVar[int] = 1
    hindsight: ClassVar[int] = 0
    intrinsic: ClassVar[str] = "none"
    recurrent: ClassVar[str] = "none"
    rnn_size: ClassVar[int] = 0
    sequence_length: ClassVar[int] = 1
    burn_in: ClassVar[int] = 0
    weight_decay: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_ranges(self)  # type: ignore[arg-type]
        if self.gradient_steps < 1:
            raise ValueError(f"gradient_steps must be 1 or more, got {self.gradient_steps}")


@dataclass(frozen=True, kw_only=True)
class OfflineValueConfig:
    """Further settings of those that learn critics."""

    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # fraction by which target networks move to the networks in an update
    critic_hidden: tuple[int, ...] | None = None  # sizes of the critics' hidden layers; None: those of hidden


class Offline:
    """A base class, in addition to OffPolicy, of algorithms that learn from recorded rows only."""

    offline: ClassVar[bool] = True
    config: Any
    iteration: int
    replay: Replay | None

    def __init__(self, policy: Policy, config: Any = None, seed: int = 0) -> None:
        """Raises ValueError for a recurrent policy: recorded rows have no recurrent states."""
        if getattr(policy, "recurrent", "none") != "none":
            raise ValueError(
                f"{type(self).__name__} learns from single rows, and this policy is recurrent ({policy.recurrent}): "
                "make one that is not"
            )
        super().__init__(policy, config, seed)  # type: ignore[call-arg]

    @property
    def updates(self) -> int:
        """Gradient steps so far."""
        return self.iteration * int(self.config.gradient_steps)

    def past_warm_up(self) -> bool:
        """True: every iteration learns."""
        return True

    def prepare(self, rollout: Rollout) -> str:
        """Do nothing: hold() allocates once the number of rows is known."""
        return ""

    def hold(self, like: Rollout, rows: int) -> None:
        """Make a replay buffer for `rows` rows, with the columns of a rollout of one environment."""
        self.replay = Replay(like, rows + ROOM)

    def update(self: Any, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Take the gradient steps of an iteration; rollout has no rows that count. Returns metrics. progress: fraction
        of the training done, 0 .. 1. Raises ValueError without data."""
        if self.replay is None:
            raise ValueError(f"{self.name} learns from recorded data alone: give replay, a folder of data")
        self.config = setting_schedules.at(self.config, progress)
        rate = self.set_learning_rate(progress)
        self.follow_policy()
        metrics: dict[str, Tensor] = learn_from_replay(self, self.config.gradient_steps)
        self.iteration += 1
        zero = torch.zeros((), device=rollout.device)
        return metrics | {"n_updates": zero + self.updates, "learning_rate": zero + rate}
