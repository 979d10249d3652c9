"""Rollouts in shared memory, which several processes read and write.

The memory is a file without a name, which the system removes when its last process ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from headrace.core.writing import REMEDIES, explained
from headrace.data.rollout import Columns, Rollout, each_column

LINE = 64  # bytes: columns begin on a cache line
FULL = REMEDIES | {
    errno.ENOSPC: "use fewer environments, steps or learners, remove what other programs have left there, or give it "
    "more room (in Docker: --shm-size)"
}
FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()  # in memory on Linux


class Memory:
    """Bytes shared between processes. descriptor: of the file, as received by another process; None for a new file.

    Raises OSError where the memory cannot be allocated.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = max(size, 1)
        with explained(f"{self.size / 1e6:,.3g} MB of shared memory cannot be allocated in {FOLDER}", FULL):
            if descriptor is None:
                with tempfile.TemporaryFile(dir=FOLDER) as file:
                    os.posix_fallocate(file.fileno(), 0, self.size)  # fails here, rather than by a signal at first use
                    descriptor = os.dup(file.fileno())
            self.descriptor = descriptor
            # closes the descriptor; the memory is kept while there are views of it
            self.close = weakref.finalize(self, os.close, descriptor)
            self.bytes = mmap.mmap(descriptor, self.size)

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A view of part of the memory."""
        return torch.frombuffer(self.bytes, dtype=dtype, count=prod(shape), offset=offset).view(shape)

    def write(self, offset: int, room: int, content: bytes) -> None:
        """Write the number of bytes, then the bytes. Raises ValueError if both do not fit into `room` bytes."""
        size = len(content)
        if 8 + size > room:
            raise ValueError(f"{size} bytes do not fit into {room - 8}")
        self.bytes[offset : offset + 8 + size] = size.to_bytes(8, "little") + content

    def read(self, offset: int) -> bytes:
        """Read the bytes that write() stored."""
        size = int.from_bytes(self.bytes[offset : offset + 8], "little")
        return self.bytes[offset + 8 : offset + 8 + size]


def shared_size(num_steps: int, num_envs: int, columns: Columns) -> int:
    """Number of bytes of a rollout with these columns."""
    return sum(
        padded((num_steps + column.bootstrap) * (column.envs or num_envs) * prod(column.shape) * column.dtype.itemsize)
        for (column,) in each_column(columns)
    )


class SharedRollout(Rollout):
    """Make a rollout with its columns in shared memory: in a new Memory, or in the given one from `offset` bytes on."""

    def __init__(
        self, num_steps: int, num_envs: int, columns: Columns, memory: Memory | None = None, offset: int = 0
    ) -> None:
        # columns follow each other in the order in which they are declared
        self.store = memory = memory or Memory(shared_size(num_steps, num_envs, columns))

        def new(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            nonlocal offset
            tensor = memory.tensor(offset, shape, dtype)
            offset += padded(tensor.nbytes)
            return tensor

        super().__init__(num_steps, num_envs, columns, "cpu", new)


def padded(size: int) -> int:
    """Round a size in bytes up, so that what follows begins on a cache line."""
    return -(-size // LINE) * LINE
