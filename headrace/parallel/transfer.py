"""Copies rollouts from the device that collects to the device that learns, each in one copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace.core.device import transfer
from headrace.data.rollout import Columns, Rollout
from headrace.data.shared_memory import padded, shared_size


class RolloutTransfer:
    """Copies `source`, a rollout on one device, to `target`, one on another. On one device they are the same.

    The columns of each are in one block of bytes, which is pinned if a GPU reads or writes it. So a rollout is one
    copy. With a GPU the copy runs while the policy learns from the target: the next rollout goes into another block on
    that device. The target's memory stays the same, as CUDA graphs of learning require.
    """

    def __init__(
        self, num_steps: int, num_envs: int, columns: Columns, source: torch.device, target: torch.device
    ) -> None:
        shape, size = (num_steps, num_envs, columns), shared_size(num_steps, num_envs, columns)
        gpu = next((device for device in (target, source) if device.type == "cuda"), None)
        self._here, self._arriving, self._there = (
            torch.zeros(size, dtype=torch.uint8, device=device, pin_memory=gpu is not None and device.type == "cpu")
            for device in (source, target, target)
        )
        if source == target:
            self._arriving = self._there = self._here
        self.source = Rollout(*shape, source, _carved(self._here))
        self.target = Rollout(*shape, target, _carved(self._there))
        self._stream = torch.cuda.Stream(gpu) if gpu is not None else None
        self._arrived: Any = None if gpu is None else torch.cuda.Event()
        self._taken: Any = None if gpu is None else torch.cuda.Event()

    def wait_to_write(self) -> None:
        """Wait until the source may be written again."""
        if self._arrived is not None:
            self._arrived.synchronize()

    def start(self) -> None:
        """Begin to copy the source, which must not be written before wait_to_write(). The target stays as it is."""
        if self._stream is None:
            self._arriving.copy_(self._here)
            return
        if self._here.is_cuda:  # what is queued there writes the source
            self._stream.wait_stream(torch.cuda.current_stream(self._here.device))
        self._stream.wait_event(self._taken)
        transfer(self._here, self._arriving, self._stream)
        self._arrived.record(self._stream)

    def finish(self) -> None:
        """Move what start() has copied into the target. A GPU's queue waits for it, not the caller."""
        if self._stream is None:
            self._there.copy_(self._arriving)
            return
        if not self._there.is_cuda:
            self.wait_to_write()
            self._there.copy_(self._arriving)
            return
        queue = torch.cuda.current_stream(self._there.device)
        queue.wait_event(self._arrived)
        self._there.copy_(self._arriving)
        self._taken.record(queue)


def _carved(block: Tensor) -> Callable[[tuple[int, ...], torch.dtype], Tensor]:
    """Make a function that allocates tensors in a block of bytes, one after another."""
    offset = 0

    def new(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        nonlocal offset
        size = torch.Size(shape).numel() * dtype.itemsize
        tensor = block[offset : offset + size].view(dtype).view(shape)
        offset += padded(size)
        return tensor

    return new
