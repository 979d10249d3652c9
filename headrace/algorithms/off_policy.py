"""What algorithms share that learn from a replay: the ring, counters, random rows, and when to learn.

One iteration collects a rollout of `num_steps` steps, appends it to the ring, and does gradient steps, each on
`batch_size` rows of it. All rows and all noise of an iteration are drawn at once, then `learn` is called once.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.core import rng
from headrace.data.replay import DRAWS, Batch, Replay, bytes_needed, plan
from headrace.data.rollout import Column, Columns, Rollout, tree_map
from headrace.data.sequences import SequenceReplay
from headrace.policies.base import Policy

POLICY_SETTINGS = (
    "hidden",
    "activation",
    "normalize_observation",
    "images",
    "recurrent",
    "rnn_size",
    "sequence_length",
    "burn_in",
)  # fields of a config that go to the policy under the same name


class OffPolicy:
    """A policy, its optimizers, target networks, and a replay. Subclasses bring `learn`.

    The config has num_steps, buffer_size, learning_starts, batch_size, gradient_steps, utd_ratio, gamma, n_steps,
    and of POLICY_SETTINGS those that have to do with memory.
    """

    name: ClassVar[str]

    def __init__(self, policy: Policy, config: Any, seed: int = 0) -> None:
        self.policy, self.config, self.seed = policy, config, seed
        self.num_steps: int = config.num_steps
        self.optimizers: dict[str, Adam] = {}
        self.buffers: dict[str, Tensor] = {}  # what is saved beside: target networks, each in one buffer [P]
        self.replay: Replay | None = None
        self.iteration: Any = 0  # in a graph a tensor: all other counts follow from it
        self.rows_per_iteration = 0  # rows of an iteration, of all envs together; 0 before prepare()

    @property
    def rows(self) -> Any:
        """Rows appended so far, dead ones included."""
        return self.iteration * self.rows_per_iteration

    @property
    def updates(self) -> Any:
        """Gradient steps so far."""
        return (
            (self.iteration - self._waits()) * self.gradient_steps(self.rows_per_iteration)
            if self.rows_per_iteration and self.past_warm_up()
            else 0
        )

    def past_warm_up(self) -> bool:
        """Whether the next iteration learns: from then on all are alike, and one may be captured in a graph."""
        return isinstance(self.iteration, Tensor) or self.iteration >= self._waits()

    def _waits(self) -> int:
        """Iterations before the first that learns."""
        # something must be there to be drawn
        least = self.replay.n_step_span * self.replay.num_envs if self.replay else 1
        return -(-max(self.config.learning_starts, least) // self.rows_per_iteration) - 1

    def columns(self) -> dict[str, Column | Columns]:
        """Nothing but what every environment writes, the action, and what the policy needs."""
        return self.policy.columns()

    def learn(self, batches: Batch, random: Tensor) -> dict[str, Tensor]:
        """One gradient step on each of G batches, [G, B]. noise: uniform draws [G, B, num_draws()]. Gives metrics."""
        raise NotImplementedError

    def num_draws(self) -> int:
        """Uniform draws that learning from one row uses."""
        return 0

    def explore(self) -> None:
        """Write into the policy how it is to explore from now on; self.rows tells how much was collected."""

    def prepare(self, rollout: Rollout) -> str:
        """Make the ring. Gives the memory it takes, for people. Raises MemoryError where there is not as much."""
        words = plan(rollout, self.config.buffer_size, beside=self.bytes_beside())
        self.rows_per_iteration = rollout.num_steps * rollout.num_envs
        self.replay = self.make_replay(rollout, self.config.buffer_size)
        return words

    def bytes_beside(self) -> int:
        """Memory that a step in the ring takes beside its columns: that of the policy, kept once in a sequence."""
        return -(-bytes_needed(self.policy.columns(), 1) // self.policy.sequence_length)

    def make_replay(self, rollout: Rollout, capacity: int) -> Replay:
        """A ring for such rollouts: of rows, or of sequences where the policy remembers."""
        config = self.config
        if self.policy.recurrent == "none":
            return Replay(rollout, capacity, config.n_steps)
        return SequenceReplay(rollout, capacity, config.n_steps, (), config.sequence_length, config.burn_in)

    def warm_up(self, rollout: Rollout) -> None:
        """Learn once from a made-up rollout and forget it."""
        before = self.state_dict()
        enough = self.config.burn_in + 3 * self.policy.sequence_length + self.config.n_steps
        self.replay = self.make_replay(rollout, (rollout.num_steps + enough) * rollout.num_envs)
        for _ in range(0, enough, rollout.num_steps):
            self.replay.append(rollout)
        self._learn(self.gradient_steps(self.num_steps * rollout.num_envs))
        self.replay = None
        self.load_state_dict(before)

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Append a rollout, and learn from the replay. Gives metrics under SB3's names; n_updates alone before
        learning_starts. progress is not looked at."""
        assert self.replay is not None, "prepare() comes before the first update()"
        self.replay.append(rollout)
        metrics = self._learn(self.gradient_steps(self.rows_per_iteration)) if self.past_warm_up() else {}
        self.policy.update_statistics(rollout, rollout.reward)
        self.iteration += 1
        self.explore()
        return metrics | {"n_updates": torch.zeros((), device=rollout.device) + self.updates}

    def gradient_steps(self, rows: int) -> int:
        """Of an iteration that collects so many rows."""
        config = self.config
        return config.gradient_steps or max(1, round(config.utd_ratio * rows))

    def _learn(self, number: int) -> dict[str, Tensor]:
        assert self.replay is not None
        draws = DRAWS + self.num_draws()
        shape = (number, self.config.batch_size, draws)
        random = rng.uniform(self.seed, rng.Purpose.REPLAY, self.updates, *shape, self.replay.ring.device)
        batches = self.replay.gather(self.replay.draw(random[..., :DRAWS]), self.config.gamma)
        return self.learn(batches, random[..., DRAWS:])

    def state_dict(self) -> dict[str, Any]:
        """Copies of the policy's tensors, the optimizers', the buffers and the replay, and the count of iterations."""
        return {
            "policy": {name: tensor.clone() for name, tensor in self.policy.state_dict().items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "buffers": {name: tensor.clone() for name, tensor in self.buffers.items()},
            "replay": None if self.replay is None else self.replay.state_dict(),
            "iteration": self.iteration,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict(), bit for bit. Raises ValueError where it is of another replay's size."""
        self.policy.load_state_dict(state["policy"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for name, tensor in self.buffers.items():
            tensor.copy_(state["buffers"][name])
        if state["replay"] is not None:
            assert self.replay is not None, "prepare() comes before load_state_dict()"
            self.replay.load_state_dict(state["replay"])
        self.iteration = int(state["iteration"])


def policy_settings(config: Any) -> dict[str, Any]:
    """The settings of a config that go to its policy."""
    return {name: getattr(config, name) for name in POLICY_SETTINGS}


def following(policy: Policy) -> Any:
    """A copy of a policy, to be its target. Statistics of observations are the policy's own: the same tensors."""
    return deepcopy(policy, {id(x): x for x in policy.buffers()}).requires_grad_(False)


def shares(weight: Tensor) -> Tensor:
    """weight / number of rows that count, [B]: `x @ shares(weight)` is the mean over those rows."""
    return weight / weight.count_nonzero().clamp(min=1)


def parts(batches: Batch) -> list[Batch]:
    """G batches [G, B] one by one."""
    return [_part(batches, g) for g in range(len(batches.reward))]


def _part(batches: Batch, g: int) -> Batch:
    return Batch(*(tree_map(lambda x: x[g], column) for column in batches))


def means(rows: Sequence[tuple[Tensor, ...]], names: tuple[str, ...]) -> dict[str, Tensor]:
    """Means over gradient steps of the scalars that each noted, by name."""
    columns = torch.stack([torch.stack(row) for row in rows]).mean(0)
    return dict(zip(names, columns, strict=True))


def check_ranges(config: Any) -> None:
    """Raise ValueError for a setting out of range, of those that every config here has."""
    for name in ("num_steps", "buffer_size", "batch_size", "n_steps", "sequence_length", "rnn_size"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be 1 or more, got {getattr(config, name)}")
    for name in ("learning_starts", "gradient_steps", "burn_in"):
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must be 0 or more, got {getattr(config, name)}")
    for name in ("utd_ratio", "learning_rate"):
        if not getattr(config, name) > 0:
            raise ValueError(f"{name} must be above 0, got {getattr(config, name)}")
    if config.recurrent != "none" and config.batch_size % config.sequence_length:
        raise ValueError(
            f"sequence_length is {config.sequence_length}: let it divide batch_size, the {config.batch_size} rows of "
            "a gradient step"
        )
    if not 0 <= getattr(config, "noise_autocorrelation", 0) < 1:
        raise ValueError(f"noise_autocorrelation must lie in [0, 1), got {config.noise_autocorrelation}")
    for name in ("gamma", "tau"):
        if not 0 <= getattr(config, name) <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {getattr(config, name)}")
