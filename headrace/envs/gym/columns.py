"""Convert between Gymnasium's values and the columns of a rollout: observations, rewards and flags, actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import torch

from headrace.core.terminal import tell
from headrace.core.text import did_you_mean, shown
from headrace.data.flat_action import FlatAction, FlatBox
from headrace.data.flat_dict import FlatDict
from headrace.data.rollout import Value
from headrace.data.spaces import Box, Key, Sample, Space, leaves

Views = list[tuple[tuple[Key, ...], np.ndarray]]
MISSES = 5  # number of episodes after which a name in log_info that none of them had is an error
SUCCESS = "is_success"
NUMBERS = "biuf"  # kinds of NumPy dtypes: bool, integers, floats
_NUMBER = (float, int, np.floating, np.integer, np.bool_, Real, Decimal)  # the frequent ones first


def views(space: Space, column: Value) -> Views:
    """The NumPy arrays of an observation column, each with the keys of its part of an observation."""
    found = []
    for keys, _ in leaves(space):
        member: Any = column
        for key in keys:
            member = getattr(member, str(key))
        found.append((keys, member.numpy()))
    return found


def put(columns: Views, row: int, index: int, observation: Sample) -> None:
    """Write one observation. Raises ValueError, TypeError, KeyError, IndexError if it does not fit."""
    for keys, column in columns:
        part = observation
        for key in keys:
            part = part[key]
        values = np.asarray(part)
        if values.shape != column.shape[2:]:  # an assignment would broadcast it
            raise ValueError(f"its shape is {values.shape}, not {column.shape[2:]}")
        if values.dtype.kind not in NUMBERS:  # an assignment would parse text as a number
            raise TypeError(f"its entries are of dtype {values.dtype}, not numbers")
        column[row, index] = values


def lacking(space: Space, observation: Sample) -> str:
    """Name the key of a Dict space that an observation does not have; empty if it has all of them."""
    members = space.members if isinstance(space, FlatDict) else getattr(space, "spaces", None)
    if not isinstance(members, Mapping):
        return ""
    if not isinstance(observation, Mapping):
        return f"it is a {type(observation).__name__}, and has to be a dict with {', '.join(map(repr, members))}"
    for key, member in members.items():
        if key not in observation:
            others = ", ".join(map(repr, observation))
            return f"it has no {key!r}, " + (f"only {others}" if others else "and no other key")
        if inner := lacking(member, observation[key]):
            return f"in {key!r}, {inner}"
    return ""


def copied(value: Sample) -> Sample:
    """Copy an environment's value to keep it for longer than a step, since the environment may write into its arrays
    again. Objects other than arrays, tensors, dicts, tuples and lists are not copied."""
    if isinstance(value, Mapping):
        return {key: copied(member) for key, member in value.items()}
    if isinstance(value, tuple | list):
        members = map(copied, value)
        return list(members) if isinstance(value, list) else tuple(members)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return np.array(value) if hasattr(value, "__array__") and not isinstance(value, np.generic) else value


def as_number(value: Sample, what: str) -> float:
    """Read a reward, a flag or an info's number: a number of any kind, or an array or tensor with one entry, of any
    shape.

    Raises TypeError for anything but one real number or bool: assignments and float() would parse text as a number, and
    "False" as true.
    """
    one = value if isinstance(value, _NUMBER) else _only_entry(value)
    if not isinstance(one, _NUMBER):
        size = getattr(value, "size", 1)
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        several = ", such as their weighted sum, in a wrapper (--wrapper)" if isinstance(size, int) and size > 1 else ""
        raise TypeError(f"its {what} is {shown(value, 60)}, a {type(value).__name__}{shape}: give one number{several}")
    return float(one)


def as_flag(value: Sample, what: str) -> bool:
    """as_number() for terminated or truncated."""
    return value if type(value) is bool else as_number(value, what) != 0


def _only_entry(value: Sample) -> Any:
    """The entry of an array, a tensor, a list or a tuple with one entry; anything else is returned as it is."""
    try:
        entry = value.item() if hasattr(value, "item") else np.asarray(value).item()  # type: ignore[union-attr]
    except (TypeError, ValueError, RuntimeError):  # there are more, or none
        return value
    return entry if isinstance(entry, _NUMBER) else value


def outcome_of(outcome: Sample) -> tuple[Any, float, bool, bool, Any]:
    """Check step()'s result, and convert its reward and flags. Raises TypeError unless it is Gymnasium's five-tuple."""
    try:
        observation, reward, terminated, truncated, info = outcome
        terminated, truncated = as_flag(terminated, "terminated"), as_flag(truncated, "truncated")
        if type(reward) is not float:
            reward = as_number(reward, "reward")
        return observation, reward, terminated, truncated, info
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"step() gave {shown(outcome)}: it must give (observation, reward: a number, terminated: a bool, "
            f"truncated: a bool, info); {error}"
        ) from error


def began(outcome: Sample) -> tuple[Sample, Any]:
    """Check the result of reset(): an observation and an info."""
    if not (isinstance(outcome, tuple) and len(outcome) == 2):
        raise TypeError(f"reset() gave {shown(outcome)}: it must give (observation, info)")
    return outcome


class EndNumbers:
    """Reads the numbers that log_info names from the infos of episodes' last steps; NaN if an info does not have one,
    or has None. quiet: prints nothing, as in evaluations, whose training has said it."""

    quiet = False

    def __init__(self) -> None:
        self._found: set[str] = set()  # names that an episode had
        self._episodes = 0

    def of(self, info: Mapping[str, Any], names: Iterable[str]) -> list[float]:
        """The numbers of an episode. Raises TypeError for a value that is not a number, and ValueError for a name that
        none of the first MISSES episodes had. is_success may appear later, as in a task that is not solved yet, so for
        it only a line is printed."""
        self._episodes += 1
        given = {name: info[name] for name in names if info.get(name) is not None}
        self._found.update(given)
        missing = [name for name in names if name not in self._found]
        if missing and self._episodes == MISSES:
            has = ", ".join(map(repr, info)) or "nothing"
            text = f"log_info names {', '.join(missing)}, and the info of an episode's last step has {has}"
            if missing != [SUCCESS]:
                raise ValueError(text + did_you_mean(missing[0], info))
            if not self.quiet:
                tell(f"{text}: there is no success_rate until one has it, and episodes without it do not count")
        return [as_number(given[name], f"info[{name!r}]") if name in given else math.nan for name in names]


def each_action(space: Space) -> Callable[[np.ndarray], Sequence[Any]]:
    """Make a function that converts a row of the action column, [N, ...], to N single actions of the space."""
    return space.each if isinstance(space, FlatBox | FlatAction) else action_caster(space)


def action_caster(space: Space) -> Callable[[np.ndarray], Any]:
    """Make a function that converts a row of the action column, [N, ...], to a batch of N actions in the dtype of the
    space. Actions of several parts become dicts and tuples of batches."""
    if isinstance(space, FlatBox | FlatAction):
        return space.batch
    if isinstance(space, Box):
        # [1, ...]: of the shape of one environment's row, for which NumPy takes a third of the time
        low, high, dtype = space.low[None], space.high[None], space.dtype
        if dtype.kind != "f":
            return lambda row: np.rint(np.minimum(np.maximum(row, low), high)).astype(dtype)
        return lambda row: np.minimum(np.maximum(row, low), high).astype(dtype, copy=False)
    return lambda row: row.astype(space.dtype)
