"""Several learners that torchrun has started, on one or several machines. torch.distributed adds their sums.

gloo adds tensors on the CPU, NCCL those on GPUs. Connections between machines are neither encrypted nor authenticated:
use a private network.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.core.types import StateDict
from headrace.data.shared_memory import Memory
from headrace.parallel.cuda.device_sum import on_loopback
from headrace.parallel.fragments import packed, unpacked
from headrace.parallel.learners import RankLost
from headrace.training.config import TrainConfig
from headrace.training.ranks import ITERATE, LOAD, PATIENCE, SAVE, SIGNALS, Ranks, device_of, materialised

END = -1  # an order, in addition to those of training.ranks
BETWEEN_ORDERS = timedelta(days=1)  # after which ranks without an order give up: rank 0 may evaluate meanwhile


class DistributedSum:
    """A Reduce by a process group of torch.distributed. group: has allreduce(); sums on the CPU.

    Raises RankLost if another rank is gone, or does not reach the sum within the group's timeout.
    """

    def __init__(self, rank: int, size: int, group: Any) -> None:
        self.rank, self.size, self.group = rank, size, group
        self.flags = np.zeros(2, np.int64)  # of this rank alone, see Ranks.stop_asking()
        self.columns: Sequence[int] = ()  # of each rank

    def beat(self) -> None:
        """Do nothing: the group's timeout detects ranks that hang."""

    @torch.no_grad()
    def __call__(self, *tensors: Tensor) -> None:
        """Replace the tensors by their sums over all ranks."""
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.detach().flatten().cpu() for tensor in same])
            try:
                self.group.allreduce([flat]).wait()
            except RuntimeError as error:
                raise RankLost(f"a rank was lost, as rank {self.rank} has noticed: {error}") from error
            for tensor, part in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
                tensor.copy_(part.view(tensor.shape))


class TorchrunRanks(Ranks):
    """A rank that torchrun has started. Rank 0 gives orders, which the others follow()."""

    of_torchrun = True
    caught = ""

    def __init__(self, rank: int, size: int, local: tuple[int, int], config: TrainConfig) -> None:
        """local: see training.torchrun.local_rank()."""
        super().__init__(rank, size, config.num_envs, config.step_timeout, device_of(config, local[0]))
        if self.device.type == "cuda" and local[1] == size:
            on_loopback()
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=BETWEEN_ORDERS)
        self._dist = dist

    def join(self, room: int, memory: Memory | None = None, store: str = "") -> None:
        """Make the groups of the sums."""
        self.begin_to_add(DistributedSum(self.rank, self.size, self._group("gloo")), store)

    def device_group(self, store: str) -> Any:
        """The group of the sums on GPUs."""
        return self._group("nccl")

    def _group(self, backend: str) -> Any:
        return self._dist.new_group(backend=backend, timeout=timedelta(seconds=PATIENCE * self.step_timeout))

    def order(self, what: int, message: tuple[Any, ...] = ()) -> None:
        """Give an order to all other ranks."""
        self._dist.broadcast_object_list([what, message], src=0)

    def iterated(self) -> None:
        """Wait until all ranks have finished the iteration."""
        for caught in self._gathered(""):
            self.caught = self.caught or caught

    def _gathered(self, own: Any) -> list[Any]:
        """Gather a value of each rank at rank 0; an empty list elsewhere."""
        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        self._dist.gather_object(own, found, dst=0)
        return found or []

    def states(self) -> list[tuple[StateDict, StateDict | None]]:
        """State of the collector of each other rank, and of its algorithm if that has a replay buffer."""
        self.order(SAVE)
        return [unpacked(state)["state"] for state in self._gathered(b"")[1:]]

    def load(self, states: list[tuple[StateDict, StateDict, StateDict]]) -> None:
        """Send each other rank the arguments of its trainer's load_own_state()."""
        self.order(LOAD, tuple(packed({"state": materialised(state)}) for state in states))

    def close(self) -> None:
        """Leave the group; rank 0 first orders the others to end. A second call does nothing."""
        if not self._dist.is_initialized():
            return
        if self.rank == 0:
            with suppress(RuntimeError):  # one of them is gone
                self.order(END)
        if self.device_sum is not None and self.device_sum.lost:
            self.leave()  # before what follows, which would wait for the lost one
        self._dist.destroy_process_group()

    def follow(self, trainer: Any) -> None:
        """Carry out orders of rank 0 until the end. Rank 0 alone reacts to signals."""
        caught: list[str] = []
        for number in SIGNALS:
            signal.signal(number, lambda number, _: caught.append(signal.Signals(number).name))
        while True:
            order: list[Any] = [None, None]
            self._dist.broadcast_object_list(order, src=0)
            what, message = order
            if what == END:
                return
            if what == ITERATE:
                trainer.follow(*message)
                self._gathered(caught[-1] if caught else "")
            elif what == SAVE:
                self._gathered(packed({"state": materialised(trainer.own_state())}))
            elif what == LOAD:
                trainer.load_own_state(*unpacked(message[self.rank - 1])["state"])
