"""One algorithm for each group of agents, combined into one algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from headrace.agent_groups.group_policy import GroupedPolicy, Slot
from headrace.core.types import staying
from headrace.data.rollout import Column, Columns, Rollout, tree_map
from headrace.data.spaces import of_envs

SEEDS = 2**32
APART = 2654435761  # 2^32 / golden ratio: seeds of groups are far apart


class Grouped:
    """Trains one policy for each group of agents, each with its own algorithm on the group's part of the rollout.

    algorithms: group -> algorithm, all of one kind; groups: group -> its agents, in the order of their columns.
    Metrics are called "group/metric". A group's part is a copy, with the memory layout of a rollout of one policy.
    """

    __setattr__ = staying("policy", "algorithms")

    def __init__(self, algorithms: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> None:
        self.algorithms = dict(algorithms)
        self.policy = GroupedPolicy({name: algorithm.policy for name, algorithm in algorithms.items()}, groups)
        first = next(iter(self.algorithms.values()))
        self.name, self.config, self.num_steps = first.name, first.config, first.num_steps
        self.max_lag = getattr(first, "max_lag", 0)
        self._parts: dict[str, Rollout] = {}

    @property
    def iteration(self) -> int:
        """Number of updates, the same for each group."""
        return next(iter(self.algorithms.values())).iteration

    def columns(self) -> dict[str, Column | Columns]:
        """Columns of the groups' algorithms. The recurrent state has the width of the widest group's."""
        declared: list[dict[str, Any]] = [algorithm.columns() for algorithm in self.algorithms.values()]
        if "rnn_state" in declared[0]:
            widest = max(declared, key=lambda columns: columns["rnn_state"].shape[0])
            return {**declared[0], "rnn_state": widest["rnn_state"]}
        return declared[0]

    def warm_up(self, rollout: Rollout) -> None:
        """Learn once from a random rollout, then restore all state."""
        for slot in self.policy.slots:
            self.algorithms[slot.name].warm_up(self._part(slot, rollout))
        self._parts.clear()

    def prepare(self, rollout: Rollout) -> str:
        """Allocate what depends on the number of environments. Returns a line for each group."""
        lines = {slot.name: self.algorithms[slot.name].prepare(self._part(slot, rollout)) for slot in self.policy.slots}
        return "\n".join(f"{name}: {line}" for name, line in lines.items() if line)

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Let each group learn from its part. Returns the metrics of all groups."""
        metrics: dict[str, Tensor] = {}
        for slot in self.policy.slots:
            learned = self.algorithms[slot.name].update(self._part(slot, rollout), progress)
            metrics |= {f"{slot.name}/{name}": value for name, value in learned.items()}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The state of each group's algorithm."""
        return {name: algorithm.state_dict() for name, algorithm in self.algorithms.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from state_dict(). Raises ValueError for the state of other groups."""
        if list(state) != list(self.algorithms):
            raise ValueError(f"saved were the groups {', '.join(state)}, and these are {', '.join(self.algorithms)}")
        for name, algorithm in self.algorithms.items():
            algorithm.load_state_dict(state[name])

    def _part(self, slot: Slot, rollout: Rollout) -> Rollout:
        """A copy of a group's part of a rollout, in the same memory each time."""
        rows = slot.columns(rollout.num_envs, self.policy.num_agents)
        part = self._parts.get(slot.name)
        if part is None:
            columns = {name: self._column(slot, name, column) for name, column in rollout.columns.items()}
            part = self._parts[slot.name] = Rollout(rollout.num_steps, rows.stop - rows.start, columns, rollout.device)
        part.env = None if rollout.env is None else rollout.env[rows] - rows.start
        for name in rollout.columns:
            value = getattr(rollout, name)
            if self.policy.nested and name in ("observation", "action"):
                source = getattr(value, slot.name)
            else:
                source = tree_map(lambda column: column[:, rows], value)
            if name == "rnn_state":
                source = source[..., : slot.width]
            tree_map(lambda target, column: target.copy_(column), getattr(part, name), source)
        return part

    def _column(self, slot: Slot, name: str, column: Any) -> Any:
        if self.policy.nested and name in ("observation", "action"):
            return of_envs(column[slot.name], None)
        return replace(column, shape=(slot.width,)) if name == "rnn_state" else column


def seed_of(seed: int, group: int) -> int:
    """The seed of a group's algorithm: the training's own for the first group."""
    return (seed + group * APART) % SEEDS
