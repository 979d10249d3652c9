"""Between Gymnasium's values and the columns of a rollout: observations, rewards and flags, actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import torch

from headrace.core.terminal import tell
from headrace.core.text import shown
from headrace.data.flat_action import FlatAction, FlatBox
from headrace.data.rollout import Value
from headrace.data.spaces import Box, Key, Sample, Space, leaves

Views = list[tuple[tuple[Key, ...], np.ndarray]]
MISSES = 5  # episodes of some environments, after which a name in log_info that none of them had is an error
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
    """Write one observation. Raises ValueError, TypeError, KeyError, IndexError where it does not fit."""
    for keys, column in columns:
        part = observation
        for key in keys:
            part = part[key]
        values = np.asarray(part)
        if values.shape != column.shape[2:]:  # which an assignment would stretch to fit
            raise ValueError(f"its shape is {values.shape}, not {column.shape[2:]}")
        if values.dtype.kind not in NUMBERS:  # an assignment would take text for the number that it spells
            raise TypeError(f"its entries are of dtype {values.dtype}, not numbers")
        column[row, index] = values


def copied(value: Sample) -> Sample:
    """A value that an environment gave, to be kept for longer than a step: the environment may write into its arrays
    again. Objects other than arrays, tensors, dicts, tuples and lists stay as they are."""
    if isinstance(value, Mapping):
        return {key: copied(member) for key, member in value.items()}
    if isinstance(value, tuple | list):
        members = map(copied, value)
        return list(members) if isinstance(value, list) else tuple(members)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return np.array(value) if hasattr(value, "__array__") and not isinstance(value, np.generic) else value


def as_number(value: Sample, what: str) -> float:
    """A reward, a flag or a number of an info that an environment gave: a number of any kind, or an array or tensor
    with one entry, whatever its shape.

    Raises TypeError for what is not one real number or bool: assignments and float() would take text for the number
    that it spells, and "False" for true.
    """
    one = value if isinstance(value, _NUMBER) else _only_entry(value)
    if not isinstance(one, _NUMBER):
        size = getattr(value, "size", 1)
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        several = ", such as their weighted sum, in a wrapper (--wrapper)" if isinstance(size, int) and size > 1 else ""
        raise TypeError(f"its {what} is {shown(value, 60)}, a {type(value).__name__}{shape}: give one number{several}")
    return float(one)


def as_flag(value: Sample, what: str) -> bool:
    """As as_number(), of terminated or truncated."""
    return value if type(value) is bool else as_number(value, what) != 0


def _only_entry(value: Sample) -> Any:
    """The entry of an array, a tensor, a list or a tuple that has one; anything else as it is."""
    try:
        entry = value.item() if hasattr(value, "item") else np.asarray(value).item()  # type: ignore[union-attr]
    except (TypeError, ValueError, RuntimeError):  # there are more, or none
        return value
    return entry if isinstance(entry, _NUMBER) else value


def outcome_of(outcome: Sample) -> tuple[Any, float, bool, bool, Any]:
    """What step() returned, with a number and flags. Raises TypeError where that is not Gymnasium's five-tuple."""
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
    """The observation and the info that reset() returned."""
    if not (isinstance(outcome, tuple) and len(outcome) == 2):
        raise TypeError(f"reset() gave {shown(outcome)}: it must give (observation, info)")
    return outcome


class EndNumbers:
    """Reads what log_info names of the infos of episodes' last steps: numbers; NaN where an info has none, or None."""

    def __init__(self) -> None:
        self._found: set[str] = set()  # names that an episode has had
        self._episodes = 0

    def of(self, info: Mapping[str, Any], names: Iterable[str]) -> list[float]:
        """The numbers of an episode. Raises TypeError for what is no number, KeyError for a name that none of the first
        MISSES episodes has had: it is not that of anything. is_success may come later, as in a task that is not solved
        yet: there a line says so."""
        self._episodes += 1
        given = {name: info[name] for name in names if info.get(name) is not None}
        self._found.update(given)
        missing = [name for name in names if name not in self._found]
        if missing and self._episodes == MISSES:
            has = ", ".join(map(repr, info)) or "nothing"
            text = f"log_info names {', '.join(missing)}, and the info of an episode's last step has {has}"
            if missing != [SUCCESS]:
                raise KeyError(text)
            tell(f"{text}: there is no success_rate until one has it, and episodes without it do not count")
        return [as_number(given[name], f"info[{name!r}]") if name in given else math.nan for name in names]


def each_action(space: Space) -> Callable[[np.ndarray], Sequence[Any]]:
    """A function from a row of the action column, [N, ...], to N actions of the space, one after the other."""
    return space.each if isinstance(space, FlatBox | FlatAction) else action_caster(space)


def action_caster(space: Space) -> Callable[[np.ndarray], Any]:
    """A function from a row of the action column, [N, ...], to a batch of N actions in the dtype of the space; of
    actions of several parts, batches of these in dicts and tuples."""
    if isinstance(space, FlatBox | FlatAction):
        return space.batch
    if isinstance(space, Box):
        # [1, ...]: of the shape of one environment's row, for which NumPy takes a third of the time
        low, high, dtype = space.low[None], space.high[None], space.dtype
        if dtype.kind != "f":
            return lambda row: np.rint(np.minimum(np.maximum(row, low), high)).astype(dtype)
        return lambda row: np.minimum(np.maximum(row, low), high).astype(dtype, copy=False)
    return lambda row: row.astype(space.dtype)
