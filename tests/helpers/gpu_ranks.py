"""Learners on GPUs without GPUs: ranks are threads, and NCCL's group is imitated.

A sum is an operation of torch's, as NCCL's is one in a GPU's queue: what records operations records it, too, and a
simulated device computes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from helpers.strict_device import META

from headrace.training.distributed import TorchrunRanks
from headrace.training.ranks import Ranks


class Meeting:
    """Meeting at which threads add tensors, in order of rank. log: dtype and length of each rank's sums, by group."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size)
        self.slots: list[Any] = [None] * size
        self.log: list[list[tuple[str, torch.dtype, int]]] = [[] for _ in range(size)]

    def exchange(self, rank: int, own: Any) -> list[Any]:
        """Collect what all ranks bring."""
        self.slots[rank] = own
        self.barrier.wait()
        found = [*self.slots]
        self.barrier.wait()
        return found

    def add(self, name: str, rank: int, flat: torch.Tensor) -> None:
        self.log[rank].append((name, flat.dtype, flat.numel()))
        first, *others = self.exchange(rank, flat.clone())
        for other in others:
            first = first + other
        flat.copy_(first)


MEETINGS: dict[int, Meeting] = {}


@torch.library.custom_op("headrace_tests::all_reduce", mutates_args=("flat",))
def all_reduce(flat: torch.Tensor, meeting: int, rank: int) -> None:
    MEETINGS[meeting].add("nccl", rank, flat)


class Done:
    def wait(self) -> None:
        pass


class Group:
    """A process group of a thread: NCCL's, whose sums are operations, or another."""

    def __init__(self, meeting: Meeting, rank: int, nccl: bool = True) -> None:
        self.meeting, self.rank, self.nccl, self.aborted = meeting, rank, nccl, False
        MEETINGS[id(meeting)] = meeting

    def allreduce(self, tensors: list[torch.Tensor]) -> Done:
        (flat,) = tensors
        if self.nccl:
            all_reduce(flat, id(self.meeting), self.rank)
        else:
            self.meeting.add("gloo", self.rank, flat)
        return Done()

    def abort(self) -> None:
        self.aborted = True


class Distributed:
    """Imitation of torch.distributed, as far as training.distributed uses it, for a thread."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.groups = meeting, rank, {}

    def new_group(self, backend: str, timeout: Any) -> Group:
        self.groups[backend] = Group(self.meeting, self.rank, backend == "nccl")
        return self.groups[backend]

    def broadcast_object_list(self, message: list[Any], src: int) -> None:
        message[:] = self.meeting.exchange(self.rank, [*message])[src]

    def gather_object(self, own: Any, found: list[Any] | None, dst: int) -> None:
        each = self.meeting.exchange(self.rank, own)
        if self.rank == dst:
            found[:] = each

    def is_initialized(self) -> bool:
        return True

    def destroy_process_group(self) -> None:
        self.groups.clear()


class ThreadRanks(TorchrunRanks):
    """A rank that torchrun would have started, on the simulated device."""

    def __init__(self, rank: int, meeting: Meeting, config: Any) -> None:
        Ranks.__init__(self, rank, meeting.size, config.num_envs, config.step_timeout, META)
        self._dist: Any = Distributed(meeting, rank)


def together(calls: list[Callable[[], Any]], meeting: Meeting | None = None) -> list[Any]:
    """Make several calls at the same time, a thread each, and return their results. Raises the error of the first call
    that failed."""
    found: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            found[place] = calls[place]()
        except BaseException as error:
            errors.append(error)
            if meeting is not None:
                meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found
