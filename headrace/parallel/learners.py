"""Sums over learners (algorithms.reduce.Reduce) on one machine, through shared memory.

Each learner writes its tensors into its slot, announces it, waits for the others, and adds all slots in order of rank.
So all get the same bits, whichever was first. Each has two slots, used in turn. When a learner begins sum n + 2 it has
seen that all others have begun sum n + 1. So they have read the slot of sum n, which it now overwrites.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.core.cores import cores
from headrace.data.shared_memory import LINE, Memory, padded

SLOTS = 2
SPIN = 20e-6  # s of polling, if each learner has a core, before yielding the core
YIELD = 2e-3  # s of yielding the core before sleeping
NAPS = (50e-6, 2e-3)  # s of the first sleep, which doubles, and of the longest
SPARE = 2**14  # extra bytes of a slot


class RankLost(RuntimeError):
    """A learner died or hangs. The training can go on from its last checkpoint."""


class Ended(RuntimeError):
    """Another learner has ended the training."""


class Board(NamedTuple):
    """Counters of the learners in shared memory."""

    arrived: memoryview  # int64 [size * 8], a cache line each: number of sums that each has begun
    beats: np.ndarray  # float64 [size, 8]: time.monotonic() of each one's last step


class SharedSum:
    """A Reduce through shared memory. Tensors must have the same shapes at all ranks, and may be on any device.

    room: bytes of the tensors of a sum; larger ones are added in several pieces. memory: another rank's memory; None
    for a new one. timeout: seconds without a beat() after which another rank counts as hanging, from the creation of
    the memory on.
    watch: called from time to time while waiting; what it raises ends the wait. columns: the number of columns of each
    rank. Raises RankLost, Ended, and what `watch` raises.
    """

    def __init__(self, rank: int, size: int, room: int, memory: Memory | None = None, timeout: float = 60.0) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.room = padded(room + SPARE)
        new = memory is None
        header = (1 + 2 * size) * LINE
        self.memory = memory = memory or Memory(header + SLOTS * size * self.room)
        arrived = memoryview(memory.bytes)[LINE : (1 + size) * LINE].cast("q")
        beats = memory.tensor((1 + size) * LINE, (size, LINE // 8), torch.float64).numpy()
        self.board = Board(arrived, beats)
        # int64 [2]: whether to give up the rollout; whether the training has ended
        self.flags = memory.tensor(0, (2,), torch.int64).numpy()
        self.watch: Callable[[], None] = lambda: None
        self.columns: Sequence[int] = ()
        self.number = 0  # sums begun
        if new:
            self.board.beats[:, 0] = monotonic()
        self._header, self._views = header, dict[Any, list[list[np.ndarray]]]()
        self._spins, self._fence = size <= cores(), threading.Lock()

    def beat(self) -> None:
        """Record that this rank is at work."""
        self.board.beats[self.rank, 0] = monotonic()

    @torch.no_grad()
    def __call__(self, *tensors: Tensor) -> None:
        """Replace the tensors by their sums over all ranks."""
        if sum(padded(x.nbytes) for x in tensors) > self.room:
            if len(tensors) > 1:
                for tensor in tensors:
                    self(tensor)
                return
            flat = tensors[0].contiguous().view(-1)
            for piece in flat.split(self.room // flat.itemsize):
                self(piece)
            tensors[0].copy_(flat.view(tensors[0].shape))
            return
        self._add([x.detach() if x.device.type == "cpu" else x.detach().cpu() for x in tensors], tensors)

    def _add(self, own: list[Tensor], tensors: tuple[Tensor, ...]) -> None:
        arrays = [x.numpy() for x in own]
        slots = self._slots(arrays)
        for view, array in zip(slots[self.rank], arrays, strict=True):
            np.copyto(view, array)
        self.number += 1
        self._arrive()
        self._wait()
        for place, array in enumerate(arrays):
            np.add(slots[0][place], slots[1][place], out=array)
            for rank in range(2, self.size):
                array += slots[rank][place]
        for target, source in zip(tensors, own, strict=True):
            if target.device.type != "cpu":
                target.copy_(source)

    def _slots(self, arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
        """The arrays of each rank in the slots of the present sum."""
        turn = self.number % SLOTS
        key = (turn, *((x.shape, x.dtype) for x in arrays))
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = [self._place(arrays, turn * self.size + rank) for rank in range(self.size)]
        return found

    def _place(self, arrays: list[np.ndarray], slot: int) -> list[np.ndarray]:
        offset, views = self._header + slot * self.room, []
        for array in arrays:
            views.append(np.frombuffer(self.memory.bytes, array.dtype, array.size, offset).reshape(array.shape))
            offset += padded(array.nbytes)
        return views

    def _arrive(self) -> None:
        self.beat()
        self._order_memory()
        self.board.arrived[self.rank * (LINE // 8)] = self.number

    def _order_memory(self) -> None:
        """Make a memory fence: earlier reads and writes complete before later ones, which ARM does not guarantee."""
        for _ in range(2):
            self._fence.acquire()
            self._fence.release()

    def _wait(self) -> None:
        """Wait until all ranks have begun the present sum."""
        arrived, number = self.board.arrived, self.number
        places = [rank * (LINE // 8) for rank in range(self.size) if rank != self.rank]
        began, nap = monotonic(), NAPS[0]
        while any(arrived[place] < number for place in places):
            waited = monotonic() - began
            if waited > YIELD:
                self._check()
                sleep(nap)
                nap = min(2 * nap, NAPS[1])
            elif waited > SPIN or not self._spins:
                os.sched_yield()
        self._order_memory()

    def check_ended(self) -> None:
        """Raise Ended where another rank has ended the training."""
        if self.flags[1]:
            raise Ended("the training was ended by another rank")

    def _check(self) -> None:
        """Raise if the sum cannot complete."""
        self.check_ended()
        self.watch()
        now = monotonic()
        for rank in range(self.size):
            silent = now - self.board.beats[rank, 0]
            if silent > self.timeout and self.awaits(rank):
                raise RankLost(f"rank {rank} has made no step for {silent:.3g} s (step_timeout)")

    def awaits(self, rank: int) -> bool:
        """Tell whether a rank has not begun the present sum."""
        return self.board.arrived[rank * (LINE // 8)] < self.number


class ThreadSum(SharedSum):
    """A SharedSum of learners that are threads of one process, which wait for each other without polling."""

    def __init__(self, rank: int, size: int, room: int, memory: Memory | None, barrier: threading.Barrier) -> None:
        super().__init__(rank, size, room, memory)
        self._barrier = barrier

    def _arrive(self) -> None:
        self._barrier.wait()

    def _wait(self) -> None:
        """Wait at the barrier until all threads have arrived."""
