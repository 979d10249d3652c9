"""Gymnasium spaces: the columns of a rollout that hold their values, and their form in JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Space, Text, Tuple

from headrace.core.types import Json
from headrace.data.flat_action import FlatAction, FlatBox, flat_action
from headrace.data.flat_dict import FlatDict
from headrace.data.rollout import Column, Columns, column_map

WHY_NOT: dict[type[Space], str] = {
    Text: "text has no numbers that a network could read",
    Sequence: "its length differs from step to step",
    Graph: "its size differs from step to step",
    OneOf: "which of its spaces a sample is of differs from step to step",
}
CHANNELS = (1, 2, 3, 4)  # sizes by which a dimension is known to hold channels, colors or stacked frames
NUMBERS: dict[type[Space], tuple[str, ...]] = {  # of spaces of whole numbers, as their constructors take them
    Discrete: ("n", "start"),
    MultiDiscrete: ("nvec", "start"),
    MultiBinary: ("n",),
}
FARTHEST = 1e15  # a bound this far from 0 counts as none: authors of environments write huge numbers for no bound
INFINITE = ("-inf", "inf")
EXACT = 2**24  # whole numbers below it are exact in float32
MOST = 2**31  # whole numbers are stored as int32
Key = str | int  # of a member of a Dict or a Tuple
Sample: TypeAlias = Any  # a value of a space, or a batch of them: an array, a number, or a dict or tuple of Samples


def env_columns(observation_space: Space) -> dict[str, Column | Columns]:
    """Columns that every environment writes, for an environment with this observation space."""
    return {
        "observation": observation_column(observation_space),
        "valid": Column(dtype=torch.bool, bootstrap=True),
        "reward": Column(),
        "terminated": Column(dtype=torch.bool),
        "truncated": Column(dtype=torch.bool),
        "episode_return": Column(),
        "episode_length": Column(dtype=torch.int32),
    }


def observation_column(
    space: Space, path: str = "observation", instead: str | None = None, ignorable: bool = False
) -> Column | Columns:
    """Column of an observation, with a bootstrap row. Boxes are float32, vectors feature-major; images keep uint8 and
    their layout; Discrete and MultiDiscrete are int32, MultiBinary is uint8; a Dict is a group; a Tuple is a group of
    "0", "1" ...

    Whole numbers of a Box are exact up to 2^24, as float32 has them. ignorable: whether members of a Dict may be left
    out by the setting `ignore`; instead: what to do about a space that is not supported.
    Raises TypeError, with the path to it, for a space that is not supported.
    """
    if isinstance(space, Dict | Tuple):
        if len(space.spaces) == 0:
            raise _refusal(space, path, "it has no members", instead or OBSERVED)
        if isinstance(space, Dict) and not all(isinstance(key, str) for key in space):
            raise _refusal(space, path, f"its keys are not all strings: {list(space)}", "")
        ignorable = ignorable and isinstance(space, Dict) and len(space.spaces) > 1
        return {
            name: observation_column(member, f"{path}[{key!r}]", IGNORED.format(key) if ignorable else instead)
            for name, key, member in members(space)
        }
    why = _why_not(space)
    if why:
        raise _refusal(space, path, why, instead or OBSERVED)
    shape = space.shape or ()
    if isinstance(space, Box):
        if is_image(space) and len(shape) > 3:
            raise _refusal(space, path, "images are [H, W], [H, W, C] or [C, H, W]; stack frames as channels", "")
        dtype = torch.uint8 if is_image(space) else torch.float32
        return Column(shape, dtype, bootstrap=True, feature_major=len(shape) == 1)
    dtype = torch.uint8 if isinstance(space, MultiBinary) else torch.int32
    return Column(shape, dtype, bootstrap=True, feature_major=len(shape) == 1)


def action_column(space: Space, path: str = "action") -> Column:
    """Column of an action: int32 for Discrete (), MultiDiscrete and MultiBinary (K,); float32 for a Box (K,), and for
    the vectors that actions of several parts or dimensions become (see data.flat_action).

    Raises TypeError, with the path to it, for a space that is not supported.
    """
    space = flat_action(space)
    if isinstance(space, Dict | Tuple):
        for _, key, member in members(space):
            action_column(member, f"{path}[{key!r}]")
        raise _refusal(space, path, "it has no members", ACTED)
    for part in space.parts if isinstance(space, FlatAction) else ():
        last = max((int(x.max()) for x in _numbers(part.flat)), default=0, key=abs)
        if abs(last) >= EXACT:
            raise _refusal(space, path, f"a choice is number {last}, which float32 does not hold exactly", ACTED)
    if not isinstance(space, FlatAction) and (why := _why_not(space)):
        raise _refusal(space, path, why, ACTED)
    if isinstance(space, Discrete):
        return Column((), torch.int32)
    numbers = torch.float32 if isinstance(space, Box | FlatAction) else torch.int32
    return Column(space.shape or (), numbers, feature_major=True)


def _numbers(space: Space) -> list[np.ndarray]:
    """First and last number of each choice of a space of whole numbers; empty for other spaces."""
    if not isinstance(space, Discrete | MultiDiscrete):
        return []
    count = space.n if isinstance(space, Discrete) else space.nvec
    return [np.asarray(space.start), np.asarray(space.start + count - 1)]


IGNORED = "; leave it out with ignore=[{0!r}] (--ignore {0}), or give numbers for it in a wrapper (--wrapper)"
OBSERVED = "; use Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
ACTED = "; use Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these"


def _why_not(space: Space) -> str:
    """Reason why a space without members is not supported; empty if it is."""
    if isinstance(space, Discrete):
        least, most = int(space.start), int(space.start) + int(space.n) - 1
    elif isinstance(space, MultiDiscrete):
        least, most = int(space.start.min(initial=0)), int((space.start + space.nvec).max(initial=0)) - 1
    elif isinstance(space, Box | MultiBinary):
        least = most = 0
    else:
        return next((why for kind, why in WHY_NOT.items() if isinstance(space, kind)), "it is of a kind not known here")
    if 0 in (space.shape or ()):
        return "it is empty"
    return "" if least >= -MOST and most < MOST else f"its numbers, {least} to {most}, do not fit into 32 bits"


def _refusal(space: Space, path: str, why: str, instead: str) -> TypeError:
    return TypeError(f"{path}: {space} is not supported: {why}{instead}")


def members(space: Dict | Tuple) -> list[tuple[str, Key, Space]]:
    """List of each member's name in a group of columns, its key in an observation, and its space."""
    if isinstance(space, Dict):
        return [(key, key, member) for key, member in space.spaces.items()]
    return [(str(place), place, member) for place, member in enumerate(space.spaces)]


def leaves(space: Space, keys: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Space]]:
    """The spaces without members in a nested space, each with the keys that lead to it in an observation."""
    if not isinstance(space, Dict | Tuple):
        yield keys, space
        return
    for _, key, member in members(space):
        yield from leaves(member, (*keys, key))


def of_envs(column: Column | Columns, envs: int | None) -> Any:
    """Restrict a column, or a nested group of columns, to `envs` environments; None for all of the rollout."""
    return column_map(lambda one: replace(one, envs=envs), column)


def alike(space: Space, other: Space) -> bool:
    """Tell whether values of the two spaces look the same to a policy. The bounds of a Box and the dtypes of whole
    numbers may differ."""
    if isinstance(space, Dict | Tuple) and isinstance(other, Dict | Tuple):
        ours, theirs = members(space), members(other)
        return [x[1] for x in ours] == [x[1] for x in theirs] and all(
            alike(mine[2], their[2]) for mine, their in zip(ours, theirs, strict=True)
        )
    if isinstance(space, FlatDict) or isinstance(other, FlatDict):
        slices = [getattr(x, "slices", None) for x in (space, other)]
        return slices[0] == slices[1]
    if isinstance(space, Box) and isinstance(other, Box):
        return space.shape == other.shape and is_image(space) == is_image(other)
    for kind, fields in NUMBERS.items():
        if isinstance(space, kind) and isinstance(other, kind):
            return all(np.array_equal(getattr(space, name), getattr(other, name)) for name in fields)
    return space == other


def is_continuous(space: Space) -> bool:
    """Tell whether a space of actions is a Box, or has one as a member."""
    return any(isinstance(leaf, Box) for _, leaf in leaves(space))


def is_image(space: Space) -> TypeGuard[Box]:
    """Tell whether observations are images: a Box of uint8 with two dimensions or more."""
    return isinstance(space, Box) and len(space.shape) >= 2 and space.dtype == np.uint8


def bounds(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of a Box in float64, infinite on sides without one. A bound beyond FARTHEST, or at the end of the range of
    a float dtype or of one of 32 bits or more, counts as none."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    least, most = -FARTHEST, FARTHEST
    if space.dtype.kind == "f" or space.dtype.itemsize >= 4:
        dtype: Any = space.dtype
        ends = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        least, most = max(least, float(ends.min) or least), min(most, float(ends.max))  # a least of 0 is a bound
    below, above = space.bounded_below & (low > least), space.bounded_above & (high < most)
    return np.where(below, low, -np.inf), np.where(above, high, np.inf)


def unit_bounds(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """bounds(), with a range of length 2 for each entry that lacks one: from -1 to 1, or at its one bound if that
    excludes 0."""
    low, high = bounds(space)
    bounded = np.isfinite(low) & np.isfinite(high)
    center = np.where(low > 0, low + 1, np.where(high < 0, high - 1, 0.0))
    return np.where(bounded, low, center - 1), np.where(bounded, high, center + 1)


def drawable(space: Space) -> Space:
    """A Box that samples as an unbounded one on sides without a bound in bounds(); the space itself if nothing
    differs."""
    if not isinstance(space, Box):
        return space
    below, above = map(np.isfinite, bounds(space))
    if np.array_equal(below, space.bounded_below) and np.array_equal(above, space.bounded_above):
        return space
    copied = deepcopy(space)
    copied.bounded_below, copied.bounded_above = below, above
    return copied


def channels_first(shape: tuple[int, ...]) -> tuple[bool, tuple[int, int, int]]:
    """Find the layout of images of a space's shape: True if their channels are first, and (channels, height, width).

    [H, W] has one channel. Of three dimensions the channels are the first or last one, whichever is 4 or less, or else
    the smaller of both. If that does not decide, they are the last, as in Gymnasium's renderings. Raises TypeError for
    another number of dimensions.
    """
    if len(shape) == 2:
        return True, (1, *shape)
    if len(shape) != 3:
        raise TypeError(f"images are [H, W], [H, W, C] or [C, H, W], and these are of shape {shape}")
    first, last = shape[0], shape[2]
    in_front = first < last if (first in CHANNELS) == (last in CHANNELS) else first in CHANNELS
    return in_front, shape if in_front else (last, *shape[:2])


def to_json(space: Space) -> Json:
    """A JSON object from which `from_json` makes an equal space, with the order of a Dict's members. Raises TypeError
    for a space of another kind."""
    if isinstance(space, Dict):
        if not all(isinstance(name, str) for name in space):
            raise TypeError(f"{space} cannot be written as JSON: its keys are not all strings")
        return {"type": "Dict", "spaces": {name: to_json(member) for name, member in space.spaces.items()}}
    if isinstance(space, Tuple):
        return {"type": "Tuple", "spaces": [to_json(member) for member in space.spaces]}
    if isinstance(space, FlatDict):
        return {"type": "FlatDict", "spaces": {name: to_json(member) for name, member in space.members.items()}}
    if isinstance(space, FlatAction | FlatBox):
        return {"type": "flat action", "space": to_json(space.whole)}
    if isinstance(space, Box):
        bounds = {"low": _texts(space.low, space.bounded_below), "high": _texts(space.high, space.bounded_above)}
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    for kind, fields in NUMBERS.items():
        if isinstance(space, kind):
            dtype = {} if space.dtype == _dtype_of(kind) else {"dtype": str(space.dtype)}
            return {
                "type": kind.__name__,
                **{name: np.asarray(getattr(space, name)).tolist() for name in fields},
                **dtype,
            }
    raise TypeError(f"{space} cannot be written as JSON")


def from_json(data: Json) -> Space:
    """The space that `to_json` wrote."""
    match data["type"]:
        case "Dict":  # made of pairs, whose order Dict keeps; it would sort a mapping
            return Dict([(name, from_json(member)) for name, member in data["spaces"].items()])
        case "FlatDict":
            return FlatDict({name: from_json(member) for name, member in data["spaces"].items()})
        case "flat action":
            return flat_action(from_json(data["space"]))
        case "Tuple":
            return Tuple([from_json(member) for member in data["spaces"]])
        case "Box":
            return _box(np.dtype(data["dtype"]), data["shape"], data["low"], data["high"])
    for kind, fields in NUMBERS.items():
        if data["type"] == kind.__name__:
            given = {name: data[name] for name in fields}
            return kind(**given, dtype=np.dtype(data["dtype"]).type) if "dtype" in data else kind(**given)
    raise ValueError(f"unknown space type {data['type']!r}")


def _dtype_of(kind: type[Space]) -> type[np.generic]:
    """Default dtype of a space of whole numbers."""
    return np.int8 if kind is MultiBinary else np.int64


def _texts(bound: np.ndarray, bounded: np.ndarray) -> list[str]:
    """The exact numbers of a bound as text, for JSON, which has no infinities. Whole numbers have none either: where a
    side has no bound, "inf" or "-inf" replaces the dtype's largest or least number."""
    number = _number(bound.dtype)
    found = [str(number(x)) for x in bound.ravel()]
    if bound.dtype.kind == "f":
        return found
    return [text if known else INFINITE[int(text) > 0] for text, known in zip(found, bounded.ravel(), strict=True)]


def _box(dtype: np.dtype[Any], shape: list[int], *sides: list[str]) -> Box:
    """Make a Box of the _texts() of both bounds."""
    number = _number(dtype)
    least, most = (0, 0) if dtype.kind in "fb" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    ends = {} if dtype.kind == "f" else dict(zip(INFINITE, (least, most), strict=True))
    low, high = (np.array([ends[x] if x in ends else number(x) for x in side], dtype) for side in sides)
    box = Box(low.reshape(shape), high.reshape(shape), dtype=dtype)
    if ends:
        below, above = (np.array([x not in ends for x in side], bool).reshape(shape) for side in sides)
        box.bounded_below, box.bounded_above = below, above
    return box


def _number(dtype: npt.DTypeLike) -> Callable[[Any], Any]:
    """The type that holds a dtype's numbers exactly and writes all of their digits."""
    dtype = np.dtype(dtype)
    return int if dtype.kind in "iub" else float if dtype.itemsize <= 8 else dtype.type


def describe(space: Space) -> str:
    """A short name of a space: "Box(4)", "Box(1) ±2", "Box(50) [0, 1]", "Discrete(3)"."""
    if isinstance(space, FlatAction | FlatBox):
        return describe(space.whole)
    if not isinstance(space, Box):
        return str(space)
    shape = ", ".join(map(str, space.shape))
    (low, *lows), (high, *highs) = (np.unique(side) for side in bounds(space))
    if lows or highs or not np.isfinite((low, high)).all():
        return f"Box({shape})"
    return f"Box({shape}) ±{high:g}" if low == -high else f"Box({shape}) [{low:g}, {high:g}]"
