"""Rollouts in memory that several processes see: nothing is sent between them but positions.

The memory is a file without a name, so that whatever happens to a process, nothing of it stays behind.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.data.rollout import Column, Columns, Group, Rollout

LINE = 64  # bytes: columns begin on a cache line
FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()  # where Linux keeps files in memory


class Memory:
    """Bytes shared between processes. descriptor: of the file, as another process was handed it; a new one where None.

    Raises OSError where the memory cannot be had.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = max(size, 1)
        if descriptor is None:
            with tempfile.TemporaryFile(dir=FOLDER) as file:
                os.posix_fallocate(file.fileno(), 0, self.size)  # now, rather than by a signal when it is first used
                descriptor = os.dup(file.fileno())
        self.descriptor = descriptor
        # gives the descriptor back, at the latest with this; the memory itself lives as long as views of it
        self.close = weakref.finalize(self, os.close, descriptor)
        self.bytes = mmap.mmap(descriptor, self.size)

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A view of part of the memory."""
        return torch.frombuffer(self.bytes, dtype=dtype, count=prod(shape), offset=offset).view(shape)


def shared_size(num_steps: int, num_envs: int, columns: Columns) -> int:
    """Bytes that such a rollout takes."""
    return _place(columns, num_steps, num_envs, 0, [])


def shared_rollout(num_steps: int, num_envs: int, columns: Columns, memory: Memory | None = None) -> SharedRollout:
    """A rollout whose columns lie in shared memory: in new one, or where another process has made the same."""
    places: list[tuple[Column, int]] = []
    size = _place(columns, num_steps, num_envs, 0, places)
    return SharedRollout(num_steps, num_envs, columns, memory or Memory(size), iter(places))


class SharedRollout(Rollout):
    """See shared_rollout()."""

    def __init__(self, num_steps: int, num_envs: int, columns: Columns, memory: Memory, places: Any) -> None:
        if num_steps < 1 or num_envs < 1:
            raise ValueError(f"a rollout needs at least one step and one env, got {num_steps} steps of {num_envs} envs")
        self.num_steps, self.num_envs, self.columns = num_steps, num_envs, columns
        self.device, self.store = torch.device("cpu"), memory
        for name, column in columns.items():
            setattr(self, name, self._taken(column, places))

    def _taken(self, column: Column | Columns, places: Any) -> Any:
        if not isinstance(column, Column):
            return Group({name: self._taken(member, places) for name, member in column.items()})
        _, offset = next(places)
        rows, envs = self.num_steps + column.bootstrap, column.envs or self.num_envs
        if column.feature_major and len(column.shape) == 1:
            shape = (*column.shape, rows, envs)
            return self.store.tensor(offset, shape, column.dtype).permute(1, 2, 0)
        return self.store.tensor(offset, (rows, envs, *column.shape), column.dtype)


def _place(columns: Columns, steps: int, envs: int, offset: int, places: list[tuple[Column, int]]) -> int:
    """Note where each column begins, in the order in which they are declared; gives where the last one ends."""
    for column in columns.values():
        if isinstance(column, Column):
            places.append((column, offset))
            size = (steps + column.bootstrap) * (column.envs or envs) * prod(column.shape) * column.dtype.itemsize
            offset += -(-size // LINE) * LINE
        else:
            offset = _place(column, steps, envs, offset, places)
    return offset
