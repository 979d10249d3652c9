"""Batches of any space in memory that processes share: one array for each leaf of the space."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from headrace.data.shared_memory import Memory, padded
from headrace.data.spaces import WHY_NOT, Dict, Key, Sample, Tuple, leaves, members
from headrace.envs.gym.columns import NUMBERS

Leaves = list[tuple[tuple[Key, ...], np.ndarray]]  # of each: the keys that lead to it, and its array


def batch_bytes(space: Space, num_envs: int) -> int:
    """Bytes of a batch. Raises TypeError, naming the space, where its size differs from sample to sample."""
    total = 0
    for keys, leaf in leaves(space):
        if leaf.shape is None or leaf.dtype is None:
            why = next((why for kind, why in WHY_NOT.items() if isinstance(leaf, kind)), "it has no fixed shape")
            where = "".join(f"[{key!r}]" for key in keys)
            raise TypeError(f"{leaf}{where and f' at {where}'} cannot be in shared memory: {why}; leave workers out")
        total += padded(num_envs * prod(leaf.shape) * leaf.dtype.itemsize)
    return total


def batch_in(space: Space, num_envs: int, memory: Memory, offset: int) -> Leaves:
    """The arrays [N, *shape] of a batch that begins at an offset in the memory, in the dtypes of the space."""
    found: Leaves = []
    for keys, leaf in leaves(space):
        shape, dtype = (num_envs, *(leaf.shape or ())), np.dtype(leaf.dtype)
        array = np.frombuffer(memory.bytes, dtype, prod(shape), offset).reshape(shape)
        found.append((keys, array))
        offset += padded(array.nbytes)
    return found


def write(batch: Leaves, index: Any, sample: Sample) -> None:
    """Write a sample at an index, or a batch at slice(None). Raises ValueError where its shape is another, TypeError
    where it is not of numbers."""
    for keys, array in batch:
        part = sample
        for key in keys:
            part = part[key]
        values, place = np.asarray(part), array[index]
        if values.shape != place.shape or values.dtype.kind not in NUMBERS:
            where = "".join(f"[{key!r}]" for key in keys)
            where = where and f" at {where}"
            if values.shape != place.shape:
                raise ValueError(f"its shape{where} is {values.shape}, not {place.shape}")
            # an assignment would take text for the number that it spells
            raise TypeError(f"its entries{where} are of dtype {values.dtype}, not numbers")
        array[index] = values


def nested(space: Space, batch: Leaves, copy: bool = False) -> Any:
    """The arrays of a batch, in the form of the space's samples: dicts and tuples of them."""
    arrays = dict(batch)

    def build(part: Space, keys: tuple[Key, ...]) -> Any:
        if isinstance(part, Dict):
            return {key: build(member, (*keys, key)) for _, key, member in members(part)}
        if isinstance(part, Tuple):
            return tuple(build(member, (*keys, key)) for _, key, member in members(part))
        return arrays[keys].copy() if copy else arrays[keys]

    return build(space, ())
