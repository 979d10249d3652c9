"""Rollouts: columns [T, N, ...], written and read in place by environments, policies and algorithms.

A rollout has T steps of N environments. Row t holds what is observed before step t (observation, valid), the policy's
output (action, log_prob, value) and the step's outcome (reward, terminated, truncated). Bootstrap columns have one more
row, T: the observation after the last step and its value. The next rollout continues from it.

Endings follow Gymnasium's next-step autoreset: after an ending, `observation[t + 1]` is the final observation, and row
t + 1 is masked (`valid` false, reward 0, flags false): its step resets the environment. A masked row holds the finished
episode's `episode_return` and `episode_length`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar, Union, overload

import numpy as np
import torch
from torch import Tensor

Value = Union[Tensor, "Group"]
Tree = Union[Tensor, "Group", None]
SomeTree = TypeVar("SomeTree", bound=Tree)
NestedValue: TypeAlias = "Value | Rollout | Mapping[str, NestedValue] | Sequence[NestedValue] | float | str | None"
Index = int | slice | Tensor | tuple[int | slice | Tensor, ...]


@dataclass(frozen=True)
class Column:
    """Layout of a column: its entry for each step and environment.

    shape: of one entry, () for a scalar. bootstrap: has a row T. feature_major: stored as [F, T, N], so that kernels
    run SIMD across environments and minibatches flatten for free; indexed as [T, N, F] all the same. envs: the number
    of environments, where it differs from the rollout's: for the column of a group of agents.
    """

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    bootstrap: bool = False
    feature_major: bool = False
    envs: int | None = None

    def allocate(self, num_steps: int, num_envs: int, device: torch.device | str) -> Tensor:
        """Zeros [T or T + 1, N, *shape] in this column's layout."""
        return self.place(num_steps, num_envs, partial(torch.zeros, device=device))

    def place(self, num_steps: int, num_envs: int, new: Callable[..., Tensor]) -> Tensor:
        """Same as allocate(), in memory that new(shape, dtype=dtype) returns."""
        rows, num_envs = num_steps + self.bootstrap, self.envs or num_envs
        if self.feature_major and len(self.shape) == 1:
            return new((*self.shape, rows, num_envs), dtype=self.dtype).permute(1, 2, 0)
        return new((rows, num_envs, *self.shape), dtype=self.dtype)


Columns = Mapping[str, Union[Column, "Columns"]]


def column_map(function: Callable[[Column], Any], column: Column | Columns) -> Any:
    """Apply `function` to a column, or to each column of a (nested) group, which gives a dict."""
    if isinstance(column, Column):
        return function(column)
    return {name: column_map(function, member) for name, member in column.items()}


def each_column(columns: Columns, *values: Rollout | Group) -> Iterator[tuple[Any, ...]]:
    """Iterate over all columns, also in nested groups, each with the corresponding tensor of each of `values`."""
    for name, column in columns.items():
        members = [getattr(value, name) for value in values]
        if isinstance(column, Column):
            yield (column, *members)
        else:
            yield from each_column(column, *members)


class Group:
    """Columns under one name, such as those of a Dict observation. Each is an attribute; an index applies to all of
    them.

    group["name"] is a member too, as in a Gymnasium observation."""

    def __init__(self, members: Mapping[str, Value]) -> None:
        self.__dict__.update(members)

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return iter(self.__dict__.items())

    @overload
    def __getitem__(self, index: str) -> Value: ...
    @overload
    def __getitem__(self, index: Index) -> Group: ...
    def __getitem__(self, index: Index | str) -> Value:
        if isinstance(index, str):
            return self.__dict__[index]  # type: ignore[no-any-return]
        return Group({name: member[index] for name, member in self})

    def __setitem__(self, index: Index, value: Group) -> None:
        for name, member in self:
            member[index] = getattr(value, name)

    def copy_(self, value: Group) -> Group:
        """Copy the values of a group of the same shape, as Tensor.copy_ does."""
        return tree_map(torch.Tensor.copy_, self, value)

    def __repr__(self) -> str:
        return f"Group({', '.join(f'{name}={_shape(member)}' for name, member in self)})"


def tree_map(function: Callable[..., Tensor], value: SomeTree, *others: Tree) -> SomeTree:
    """Apply `function` to a tensor, or to each tensor of a (nested) group, dict, tuple, list or NamedTuple. Returns an
    object of the same kind; None stays None."""
    if value is None or isinstance(value, Tensor):
        return value if value is None else function(value, *others)  # type: ignore[return-value]
    if isinstance(value, Group):
        members = {name: tree_map(function, member, *(getattr(o, name) for o in others)) for name, member in value}
        return Group(members)  # type: ignore[return-value]
    whole: Any = value
    if isinstance(whole, dict):
        return {name: tree_map(function, x, *(o[name] for o in others)) for name, x in whole.items()}  # type: ignore
    if isinstance(whole, tuple | list):
        parts = [tree_map(function, *each) for each in zip(whole, *others, strict=True)]
        return getattr(type(whole), "_make", type(whole))(parts)
    return function(value, *others)  # type: ignore[return-value]


def flatten(value: SomeTree) -> SomeTree:
    """[T, N, ...] -> [T * N, ...]: a view in either layout, if the rows have all N environments."""
    return tree_map(lambda column: column.flatten(0, 1), value)


def sequences(value: SomeTree, length: int) -> SomeTree:
    """[T, N, ...] -> [T * N, ...]: sequences of `length` consecutive rows of one environment.

    Raises ValueError where length does not divide T.
    """

    def cut(column: Tensor) -> Tensor:
        if len(column) % length:
            raise ValueError(f"{len(column)} steps cannot be cut into sequences of {length}: let it divide num_steps")
        return column.unflatten(0, (-1, length)).transpose(1, 2).flatten(0, 2)

    return tree_map(cut, value)


def _shape(value: Value) -> str:
    return repr(value) if isinstance(value, Group) else str(list(value.shape))


class Rollout:
    """T steps of N environments. Each column is an attribute: `rollout.reward[t]`.

    Columns of every rollout, written by environments: observation, valid (with a bootstrap row); reward, terminated,
    truncated, episode_return, episode_length. Algorithms declare the rest: action, log_prob, value ...
    new: returns the memory of a column, see Column.place(); None for zeros on the device.
    """

    observation: Any
    valid: Tensor
    action: Any
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    episode_return: Tensor
    episode_length: Tensor
    env: Tensor | None = None  # int64 [N]: the environment of each column; None where column n is of environment n.
    # Of two columns of one environment the first is the earlier one
    lag: Tensor | None = None  # float32 [N]: updates of the policy since the one that collected a column began

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        columns: Columns,
        device: torch.device | str = "cpu",
        new: Callable[..., Tensor] | None = None,
    ) -> None:
        if num_steps < 1 or num_envs < 1:
            raise ValueError(f"a rollout needs at least one step and one env, got {num_steps} steps of {num_envs} envs")
        self.num_steps, self.num_envs, self.columns = num_steps, num_envs, columns
        self.device = torch.device(device)
        for name, column in columns.items():
            setattr(self, name, _place(column, num_steps, num_envs, new or partial(torch.zeros, device=device)))

    def __getattr__(self, name: str) -> Any:
        names = ", ".join(self.__dict__.get("columns", ()))
        raise AttributeError(f"this rollout has no column {name!r}; it has {names}")

    def __getitem__(self, index: slice | tuple[slice, slice]) -> Rollout:
        """A view of some steps, or of some steps and some environments: rollout[:8], rollout[:, 64:128].

        Bootstrap columns keep the row after the last step chosen.
        """
        steps, envs = index if isinstance(index, tuple) else (index, slice(None))
        start, stop, stride = steps.indices(self.num_steps)
        if stride != 1 or envs.step not in (None, 1):
            raise ValueError("a rollout is sliced in steps of 1")
        part = object.__new__(Rollout)
        part.num_steps, part.device, part.columns = stop - start, self.device, self.columns
        part.num_envs = len(range(*envs.indices(self.num_envs)))
        for name, column in self.columns.items():
            setattr(part, name, _slice(getattr(self, name), column, start, stop, envs))
        part.env, part.lag = (x if x is None else x[envs] for x in (self.env, self.lag))
        return part

    def continue_from(self, previous: Rollout) -> None:
        """Begin where `previous`, a rollout of the same columns, ended: its bootstrap rows become the first rows of
        this one.

        previous may be this rollout, which is then overwritten by the steps that follow.
        """
        for column, value, earlier in each_column(self.columns, self, previous):
            if column.bootstrap:
                value[0].copy_(earlier[-1])

    def to(self, device: torch.device | str) -> Rollout:
        """Copy to another device, in the same layout; returns itself if it is on that device already."""
        if torch.device(device) == self.device:
            return self
        other = Rollout(self.num_steps, self.num_envs, self.columns, device)
        for name in self.columns:
            tree_map(lambda target, source: target.copy_(source), getattr(other, name), getattr(self, name))
        other.env, other.lag = (x if x is None else x.to(device) for x in (self.env, self.lag))
        return other

    def valid_steps(self) -> int:
        """Number of valid steps among the T * N. NumPy counts them on the CPU, since torch would wake other threads."""
        valid = self.valid[: self.num_steps]
        return int(np.count_nonzero(valid.numpy()) if valid.device.type == "cpu" else valid.sum())

    def __repr__(self) -> str:
        names = ", ".join(f"{name}={_shape(getattr(self, name))}" for name in self.columns)
        return f"Rollout({self.num_steps} steps of {self.num_envs} envs on {self.device}: {names})"


def _place(column: Column | Columns, num_steps: int, num_envs: int, new: Callable[..., Tensor]) -> Value:
    if isinstance(column, Column):
        return column.place(num_steps, num_envs, new)
    return Group({name: _place(member, num_steps, num_envs, new) for name, member in column.items()})


def _slice(value: Value, column: Column | Columns, start: int, stop: int, envs: slice) -> Value:
    if isinstance(column, Column):
        return value[start : stop + column.bootstrap, envs]
    return Group({name: _slice(getattr(value, name), member, start, stop, envs) for name, member in column.items()})


def named_tensors(value: NestedValue, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in a nested value, each with its path: "rollout.observation.position"."""
    if isinstance(value, Tensor):
        yield path, value
        return
    for name, member in _members(value):
        yield from named_tensors(member, f"{path}{name}" if path else name.removeprefix("."))


def _members(value: NestedValue) -> Iterator[tuple[str, NestedValue]]:
    named: Iterable[tuple[str, NestedValue]] = ()
    if isinstance(value, Rollout):
        named = ((name, getattr(value, name)) for name in value.columns)
    elif isinstance(value, Group):
        named = value
    elif isinstance(value, Mapping):
        named = value.items()
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        named = value._asdict().items()
    elif isinstance(value, list | tuple):
        yield from ((f"[{place}]", member) for place, member in enumerate(value))
    yield from ((f".{name}", member) for name, member in named)
