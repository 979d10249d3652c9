"""Actions of several parts, or of another shape than a vector, as one vector.

A policy has one action, a row of a column [N, K]. So an action space that is a Dict or Tuple, or a Box, MultiDiscrete
or MultiBinary of several dimensions, becomes one of vectors. If all of its members are Boxes it becomes a FlatBox,
which suits every algorithm for Boxes, and otherwise a FlatAction. `batch` converts vectors to actions of the
environment's own space.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

Keys = tuple[str | int, ...]


class Part(NamedTuple):
    """A space without members inside an action space. keys: the keys that lead to it. flat: the same space with vectors
    as values (a Discrete space stays as it is). entries: its entries in the whole vector."""

    keys: Keys
    space: Space
    flat: Space
    entries: slice


class _Parts:
    """Methods of FlatBox and FlatAction. whole: the environment's space. parts: its spaces without members, in
    order."""

    def __init__(self, whole: Space, parts: list[tuple[Keys, Space]]) -> None:
        self.whole = whole
        flat = [_flat(space) for _, space in parts]
        ends = np.cumsum([_size(space) for space in flat]).tolist()
        entries = map(slice, [0, *ends[:-1]], ends)
        found = zip(parts, flat, entries, strict=True)
        self.parts = [Part(keys, space, own, place) for (keys, space), own, place in found]

    def batch(self, rows: np.ndarray) -> Any:
        """Convert vectors [N, K] to the environment's actions: arrays [N, ...] in dtypes and bounds of the space,
        nested in dicts and tuples as the space is."""
        found = [(part.keys, _typed(part, rows[:, part.entries])) for part in self.parts]
        return _nested(self.whole, dict(found))

    def each(self, rows: np.ndarray) -> list[Any]:
        """Convert vectors [N, K] to a list of N actions of the environment's."""
        found = [(part.keys, _typed(part, rows[:, part.entries])) for part in self.parts]
        return [_nested(self.whole, {keys: values[i] for keys, values in found}) for i in range(len(rows))]

    def join(self, action: Any) -> np.ndarray:
        """Convert an action of the environment's to a vector, float32 [K]."""
        values = [np.ravel(_member(action, part.keys)).astype(np.float32) for part in self.parts]
        return np.concatenate(values)

    def join_batch(self, actions: Any) -> np.ndarray:
        """Convert actions of the environment's, arrays [N, ...], to vectors, float32 [N, K]: the reverse of `batch`."""
        values = [np.asarray(_member(actions, part.keys), np.float32) for part in self.parts]
        return np.concatenate([value.reshape(len(value), -1) for value in values], axis=1)


class FlatBox(_Parts, Box):
    """Boxes as one vector."""

    def __init__(self, whole: Space, parts: list[tuple[Keys, Space]]) -> None:
        _Parts.__init__(self, whole, parts)
        sides = {side: [getattr(part.flat, side) for part in self.parts] for side in ("low", "high")}
        with np.errstate(over="ignore"):  # a bound beyond float32's range becomes infinite, that is, no bound
            low, high = (np.concatenate(own).astype(np.float32) for own in sides.values())
        Box.__init__(self, low, high)  # type: ignore[arg-type]
        for side in ("bounded_below", "bounded_above"):
            setattr(self, side, np.concatenate([getattr(part.flat, side) for part in self.parts]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatBox) and self.whole == other.whole

    def __repr__(self) -> str:
        return f"FlatBox({self.whole})"


class FlatAction(_Parts, Space[np.ndarray]):
    """Actions of several kinds as one vector, float32: a choice of a Discrete space is its number."""

    def __init__(self, whole: Space, parts: list[tuple[Keys, Space]]) -> None:
        _Parts.__init__(self, whole, parts)
        Space.__init__(self, (self.parts[-1].entries.stop,), np.float32)

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:
        """A random action. The environment's own space takes masks."""
        return self.join(self.whole.sample())

    def contains(self, x: Any) -> bool:
        """True for a vector that stands for an action of the environment's."""
        rows = np.asarray(x)
        return rows.shape == self.shape and bool(self.whole.contains(self.each(rows[None])[0]))

    def seed(self, seed: Any = None) -> Any:
        """Seed the environment's own space."""
        return self.whole.seed(seed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatAction) and self.whole == other.whole

    def __repr__(self) -> str:
        return f"FlatAction({self.whole})"


def flat_action(space: Space) -> Space:
    """Convert an action space to one of vectors. A space that is Discrete, has vectors already, or has members of other
    kinds is returned as it is."""
    parts = [*_leaves(space)]
    if any(not isinstance(part, Box | Discrete | MultiDiscrete | MultiBinary) or _size(part) == 0 for _, part in parts):
        return space
    if not parts or (parts == [((), space)] and (isinstance(space, Discrete) or len(space.shape or ()) == 1)):
        return space
    return (FlatBox if all(isinstance(part, Box) for _, part in parts) else FlatAction)(space, parts)


def whole(space: Space) -> Space:
    """The environment's own space, given the space that flat_action() made of it."""
    return space.whole if isinstance(space, _Parts) else space


def is_hybrid(space: Space) -> bool:
    """True for a FlatAction of one Discrete space and Boxes."""
    flat = [part.flat for part in space.parts] if isinstance(space, FlatAction) else []
    others = [part for part in flat if not isinstance(part, Box)]
    return len(flat) > 1 and len(others) == 1 and isinstance(others[0], Discrete)


def component_sizes(space: Space) -> list[int]:
    """Number of choices of each component that an action mask covers. A Box and a MultiBinary have none."""
    if isinstance(space, FlatAction):
        return [size for part in space.parts for size in component_sizes(part.flat)]
    if isinstance(space, Discrete):
        return [int(space.n)]
    return [int(size) for size in space.nvec.ravel()] if isinstance(space, MultiDiscrete) else []


def _leaves(space: Space, keys: Keys = ()) -> Any:
    if isinstance(space, Dict):
        for name, member in space.spaces.items():
            yield from _leaves(member, (*keys, name))
    elif isinstance(space, Tuple):
        for place, member in enumerate(space.spaces):
            yield from _leaves(member, (*keys, place))
    else:
        yield keys, space


def _flat(space: Space) -> Space:
    if isinstance(space, Box):
        flat = Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype)  # type: ignore[arg-type]
        flat.bounded_below, flat.bounded_above = space.bounded_below.ravel(), space.bounded_above.ravel()
        return flat
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(space.nvec.ravel(), space.dtype.type, start=space.start.ravel())
    return MultiBinary(_size(space)) if isinstance(space, MultiBinary) else space


def _size(space: Space) -> int:
    return int(np.prod(space.shape or (), dtype=int))


def _typed(part: Part, rows: np.ndarray) -> np.ndarray:
    """Entries [N, k] of a part as values [N, ...] of its space."""
    if isinstance(part.space, Box):
        low, high = part.flat.low, part.flat.high  # type: ignore[attr-defined]
        rows = np.minimum(np.maximum(rows, low), high)
    whole = not isinstance(part.space, Box) or part.space.dtype.kind != "f"
    found = (np.rint(rows) if whole else rows).astype(part.space.dtype)
    return found.reshape(len(rows), *(part.space.shape or ()))


def _nested(space: Space, values: dict[Keys, Any], keys: Keys = ()) -> Any:
    if isinstance(space, Dict):
        return {name: _nested(member, values, (*keys, name)) for name, member in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_nested(member, values, (*keys, place)) for place, member in enumerate(space.spaces))
    return values[keys]


def _member(action: Any, keys: Keys) -> Any:
    for key in keys:
        action = action[key]
    return action
