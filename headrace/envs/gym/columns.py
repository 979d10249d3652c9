"""Between Gymnasium's values and the columns of a rollout: observations, rewards and flags, actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from headrace.core.text import shown
from headrace.data.rollout import Value
from headrace.data.spaces import Box, Key, Sample, Space, leaves

Views = list[tuple[tuple[Key, ...], np.ndarray]]
NUMBERS = "biuf"  # kinds of NumPy dtypes: bool, integers, floats
_NUMBER = (float, int, np.floating, np.integer, np.bool_)


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
    """A reward or a flag that an environment gave. Raises TypeError for what is not one number or bool: assignments and
    float() would take text for the number that it spells, and "False" for true."""
    if not isinstance(value, _NUMBER):
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in NUMBERS:
            raise TypeError(f"its {what} is {shown(value, 60)}, a {type(value).__name__}")
        value = array.item()
    return float(value)


def outcome_of(outcome: Sample) -> tuple[Any, float, bool, bool, Any]:
    """What step() returned, with a number and flags. Raises TypeError where that is not Gymnasium's five-tuple."""
    try:
        observation, reward, terminated, truncated, info = outcome
        if not (type(terminated) is type(truncated) is bool):  # as Gymnasium has them
            terminated, truncated = as_number(terminated, "terminated") != 0, as_number(truncated, "truncated") != 0
        if type(reward) is not float:
            reward = as_number(reward, "reward")
        return observation, reward, terminated, truncated, info
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"step() gave {shown(outcome)}: it must give (observation, reward: a number, terminated: a bool, "
            f"truncated: a bool, info); {error}"
        ) from error


def logged(info: Mapping[str, Any], names: Iterable[str]) -> list[float]:
    """The numbers that an info has under these names. Raises KeyError for one that it lacks, TypeError for others."""
    missing = [name for name in names if name not in info]
    if missing:
        has = ", ".join(map(repr, info)) or "nothing"
        raise KeyError(f"log_info names {', '.join(missing)}, and the info of an episode's last step has {has}")
    return [as_number(info[name], f"info[{name!r}]") for name in names]


def action_caster(space: Space) -> Callable[[np.ndarray], np.ndarray]:
    """A function from a row of the action column, [N, ...], to N actions in the dtype of the space."""
    if isinstance(space, Box):
        # [1, ...]: of the shape of one environment's row, for which NumPy takes a third of the time
        low, high, dtype = space.low[None], space.high[None], space.dtype
        if dtype.kind != "f":
            return lambda row: np.rint(np.minimum(np.maximum(row, low), high)).astype(dtype)
        return lambda row: np.minimum(np.maximum(row, low), high).astype(dtype, copy=False)
    return lambda row: row.astype(space.dtype)
