"""Fragments of rollouts in shared memory, as actors collect them, and the collector's state after each."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.core.types import StateDict
from headrace.data.rollout import Column, Columns, Group, Rollout, column_map, each_column
from headrace.data.shared_memory import LINE, Memory, SharedRollout, padded, shared_size

SLOTS = 2  # number of fragments: one is read while the next one is written
STATES = 3  # states: of the last fragment that was taken, and of as many as there are slots


class Fragments:
    """The memory of one actor. Fragment `number` is in `rollouts[number % slots]`, the state after it in slot `number %
    states`.

    state_size: bytes of the largest state that is expected. memory: the other process's memory; None for a new one.
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        columns: Columns,
        state_size: int,
        memory: Memory | None = None,
        *,
        slots: int = SLOTS,
        states: int | None = None,
    ) -> None:
        each = shared_size(num_steps, num_envs, columns)
        states = slots + 1 if states is None else states
        self.room, self.slots, self.states = padded(8 + state_size), slots, states
        self.memory = memory = memory or Memory(LINE + slots * each + states * self.room)
        flags = memory.tensor(0, (4,), torch.int64).numpy()
        # a counter of steps; whether to give up the fragment; whether plain functions run instead of kernels
        self.heartbeat, self.give_up, self.plain = flags[:1], flags[1:2], flags[2:3]
        self.restarts = flags[3:]  # environments that were made again so far
        # timing of the last fragment, s: wall time, CPU time, and time that the actor waited for the order
        self.spent = memory.tensor(flags.nbytes, (3,), torch.float64).numpy()
        self.rollouts = [
            SharedRollout(num_steps, num_envs, columns, memory, LINE + slot * each) for slot in range(slots)
        ]
        self._states = LINE + slots * each

    def rollout(self, number: int) -> Rollout:
        """The rollout of a fragment."""
        return self.rollouts[number % self.slots]

    def write_state(self, number: int, state: bytes) -> None:
        """Store the state after a fragment. Raises ValueError if it does not fit."""
        self.memory.write(self._states + number % self.states * self.room, self.room, state)

    def state(self, number: int) -> bytes:
        """The state after a fragment."""
        return self.memory.read(self._states + number % self.states * self.room)


def slots_of(collection: str, max_policy_lag: int) -> int:
    """Largest number of fragments of one actor that are ordered or collected, but not learned from yet.

    More than two help when actors run asynchronously: an actor with fast episodes continues while the learner waits for
    another one. At most one for each rollout until a fragment is too old, and one being written, can be in use.
    """
    return max(SLOTS, max_policy_lag + 2) if collection == "async" else SLOTS


def part_columns(columns: Columns, of: int, size: int) -> Columns:
    """Columns for rollouts of `size` of the `of` environment copies."""

    def part(column: Column) -> Column:
        return column if column.envs is None else replace(column, envs=column.envs // of * size)

    return column_map(part, columns)


class _Packed(NamedTuple):
    """Stands for a tensor in a pickle."""

    array: np.ndarray


def packed(state: StateDict) -> bytes:
    """Pickle a collector's state for another process of this run."""
    return pickle.dumps(_converted(state, Tensor, lambda tensor: _Packed(tensor.cpu().numpy())), protocol=5)


def unpacked(state: bytes) -> StateDict:
    """Unpickle the state that packed() was given."""
    found: StateDict = _converted(pickle.loads(state), _Packed, lambda packed: torch.from_numpy(packed.array))
    return found


def _converted(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, Group):
        return Group({name: _converted(member, kind, convert) for name, member in value})
    if isinstance(value, dict):
        return {name: _converted(member, kind, convert) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_converted(member, kind, convert) for member in value)
    return value


def columns_of(rollout: Rollout, columns: Columns | None = None) -> list[Tensor]:
    """The tensors of a rollout's columns, or of some of them, in order."""
    return [column for _, column in each_column(rollout.columns if columns is None else columns, rollout)]


def of_copies(rollout: Rollout, copies: int, part: slice) -> list[Tensor]:
    """Views [T, agents, n, ...] of a rollout's columns, for the part `part` of its `copies` environment copies."""
    return [column.unflatten(1, (-1, copies))[:, :, part] for column in columns_of(rollout)]
