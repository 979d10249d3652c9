"""Several learners on one machine: rank 0 is the process that trains, the others are processes that follow its orders.

Each rank has a trainer of its own, with its part of the environments. Rank 0 alone decides when to iterate, to save and
to stop, and writes files; within an iteration all ranks meet in the same sums (parallel.learners).
"""

from __future__ import annotations

import hashlib
import pickle
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import current_process
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.algorithms.reduce import gathered, of_each
from headrace.core.fused import silence
from headrace.core.partition import partition
from headrace.core.types import StateDict
from headrace.data.pieces import Rows
from headrace.data.rollout import named_tensors
from headrace.data.shared_memory import Memory
from headrace.envs.workers.env import sendable
from headrace.envs.workers.process import ProcessLost, WorkerProcess
from headrace.envs.workers.process import _end as end_all
from headrace.envs.workers.protocol import Task
from headrace.parallel.actor import Part
from headrace.parallel.fragments import packed, unpacked
from headrace.parallel.learners import Ended, RankLost, SharedSum
from headrace.training.config import TrainConfig

JOIN, ITERATE, SAVE, LOAD = range(4)  # orders
COMPARED_EVERY = 100  # updates after which the ranks compare their weights
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Collected(NamedTuple):
    """Of all ranks."""

    stopped: bool  # whether one gave up its rollout
    steps: int  # valid ones
    restarts: int  # environments made again so far
    ended: Tensor  # episodes, float64 [E, 4]: step, environment, return, length; by step, then environment
    details: dict[str, float]  # of actors on a cluster


class Ranks:
    """One rank's view of all: its part of the environments, and the sums over all ranks.

    part: of num_envs environments. step_timeout: seconds without a step after which a rank counts as hanging.
    """

    of_torchrun = False  # whether torchrun has started this rank

    def __init__(self, rank: int, size: int, num_envs: int, step_timeout: float) -> None:
        self.rank, self.size, self.step_timeout = rank, size, step_timeout
        own = partition(num_envs, size)[rank]
        self.part = Part(own.start, own.stop - own.start, num_envs)
        self.sum: Any  # a Reduce: SharedSum, or training.distributed's

    def join(self, room: int, memory: Memory | None = None) -> None:
        """Share the memory of the sums; room: see SharedSum."""
        self.sum = SharedSum(self.rank, self.size, room, memory, self.step_timeout)

    def begin_with(self, algorithm: Any) -> None:
        """Let an algorithm add its sums to those of the others, and begin with the weights of rank 0."""
        algorithm.reduce = self.sum
        state = algorithm.state_dict()
        for tensor in learned(state):
            value = tensor.double() if self.rank == 0 else torch.zeros_like(tensor, dtype=torch.float64)
            self.sum(value)
            tensor.copy_(value)
        algorithm.load_state_dict(state | ({"replay": None} if "replay" in state else {}))

    def plan(self, actors: int, own: str) -> str:
        """What there is of actors and their memory, of all ranks; own: this one's, which has so many actors."""
        number = int(of_each(torch.tensor(actors), self.sum).sum())
        whole = f"{number} actors with {self.part.total} environments, of {self.size} learners"
        return f"{whole}; rank {self.rank} has {own}"

    def stop_asking(self, stop: Callable[[], bool] | None, may_stop: bool) -> Callable[[], bool]:
        """What a collector asks before each step: whether any rank gives up the rollout. It is a sign of life, too."""

        def ask() -> bool:
            self.sum.beat()
            if not may_stop:
                return False
            if stop is not None and stop():
                self.sum.flags[0] = 1
            return bool(self.sum.flags[0])

        return ask

    def collected(
        self, stopped: bool, steps: int, restarts: int, ended: Tensor, details: dict[str, float]
    ) -> Collected:
        """What all ranks have collected. stopped: whether this one gave up its rollout. ended: see ended_episodes().
        details: of this one's actors."""
        totals = torch.tensor([stopped, steps, restarts])
        self.sum(totals)
        self.sum.flags[0] = 0
        if totals[0]:
            return Collected(True, 0, 0, ended, {})
        ended[:, 1] += self.part.first
        ended = gathered(ended, self.sum)
        order = (ended[:, 0] * self.part.total + ended[:, 1]).argsort(stable=True)
        return Collected(False, int(totals[1]), int(totals[2]), ended[order], self._details_of_all(details))

    def _details_of_all(self, own: dict[str, float]) -> dict[str, float]:
        """What is to be logged of the actors of all ranks: their numbers added, and the longest time."""
        if not own:
            return {}
        values = of_each(torch.tensor(list(own.values()), dtype=torch.float64), self.sum)
        sums, longest = values.sum(0).tolist(), values.amax(0).tolist()
        return {name: longest[at] if name.startswith("seconds") else int(sums[at]) for at, name in enumerate(own)}

    def compare(self, algorithm: Any) -> None:
        """Raise RuntimeError, naming the rank, where one has other weights than rank 0."""
        digest = hashlib.sha256()
        for tensor in learned(algorithm.state_dict()):
            digest.update(tensor.detach().cpu().numpy().tobytes())
        hashes = of_each(torch.tensor(int.from_bytes(digest.digest()[:7], "little")), self.sum)
        others = (hashes != hashes[0]).nonzero().flatten().tolist()
        if others:
            raise RuntimeError(
                f"after {algorithm.iteration} updates rank {others[0]} has other weights than rank 0: something that "
                "depends on the process, such as time or an unseeded random number, changes them"
            )


class Leader(Ranks):
    """Rank 0, which starts the other ranks and gives them orders. make: of the Ranks of another one, gives its trainer.

    Raises the exception of a rank that failed, with its traceback, and RankLost for one that died or hangs.
    """

    def __init__(self, config: TrainConfig, make: Callable[[Ranks], Any]) -> None:
        super().__init__(0, config.learners, config.num_envs, config.step_timeout)
        self.caught = ""  # the signal that another rank has received
        self.processes = [WorkerProcess(0.0) for _ in range(1, self.size)]
        self._sums: list[SharedSum] = []  # its own, once there is one
        self.close = weakref.finalize(self, _close, self.processes, self._sums)
        sent = sendable(make)
        for rank, process in enumerate(self.processes, 1):
            part = partition(self.part.total, self.size)[rank]
            what = f"envs {part.start} to {part.stop - 1}"
            settings = (rank, self.size, config.num_envs, config.step_timeout)
            process.assign(Task(partial(Following, sent, settings), what, rank, self.size, kind="rank"))

    def join(self, room: int, memory: Memory | None = None) -> None:
        for process in self.processes:
            process.facts()
        super().join(room, memory)
        self._sums.append(self.sum)
        self.sum.watch = self._watch
        self._tell(JOIN, (room, self.sum.memory.size), self.sum.memory.descriptor)

    def _tell(self, what: int, message: Any, *descriptors: int) -> None:
        for process in self.processes:
            process.tell(what, 0, message, *descriptors)

    def _watch(self) -> None:
        """Raise what has happened to a rank that answers while it should take part in a sum."""
        for rank, process in enumerate(self.processes, 1):
            spoke = process.orders.poll(0) or not process.process.is_alive()
            if spoke and self.sum.awaits(rank):  # in this order: it may have begun the last sum, and be done
                self._answer(process)

    def _answer(self, process: WorkerProcess) -> Any:
        try:
            return process.answer()
        except ProcessLost as error:
            raise RankLost(str(error)) from error
        except Exception as error:
            error.add_note(f"raised by {process}")
            raise

    def order(self, what: int, message: tuple[Any, ...] = ()) -> None:
        """Give an order to all other ranks."""
        self._tell(what, message)

    def answers(self) -> list[Any]:
        """Their answers to the last order, in order of rank."""
        return [self._answer(process) for process in self.processes]

    def iterated(self) -> None:
        """Wait until all have iterated."""
        for answer in self.answers():
            if answer:
                self.caught = signal.Signals(answer).name

    def states(self) -> list[tuple[StateDict, StateDict | None]]:
        """Of each other rank, the state of its collector, and with a replay buffer that of its algorithm."""
        self.order(SAVE)
        return [unpacked(answer)["state"] for answer in self.answers()]

    def load(self, states: list[tuple[StateDict, StateDict]]) -> None:
        """Let each other rank go on from the state of its collector and its algorithm."""
        for process, state in zip(self.processes, states, strict=True):
            process.tell(LOAD, 0, (packed({"state": materialised(state)}),))
        self.answers()


def _close(processes: list[WorkerProcess], sums: list[SharedSum]) -> None:
    for each in sums:
        each.flags[1] = 1  # those that wait in a sum end, too
    end_all(processes)


class Following:
    """A Role (envs.workers.protocol): a rank that does what rank 0 orders.

    make: of its Ranks, whose arguments are the settings, gives its trainer; by cloudpickle.
    """

    def __init__(self, make: bytes, settings: tuple[int, int, int, float], orders: Connection) -> None:
        silence()
        current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # its actors end with it all the same
        self.orders, self.facts, self.caught = orders, settings[0], 0
        self.ranks = Ranks(*settings)
        self.trainer: Any = pickle.loads(make)(self.ranks)
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _: object) -> None:
        self.caught = number
        with suppress(AttributeError):  # it has not joined yet
            self.ranks.sum.flags[0] = 1

    def carry_out(self, what: int, where: int) -> Any:
        """Carry out one of the orders above."""
        message = self.orders.recv()
        if what == JOIN:
            room, size = message
            memory = Memory(size, recv_handle(self.orders))
            self.ranks.join(room, memory)
            memory.close()
            self.trainer.begin()
            return None
        if what == ITERATE:
            self.ranks.sum.beat()
            with suppress(Ended):
                self.trainer.follow(*message)
            caught, self.caught = self.caught, 0
            return caught
        if what == SAVE:
            return packed({"state": materialised(self.trainer.own_state())})
        self.trainer.load_own_state(*unpacked(message[0])["state"])
        return 0

    def close(self) -> None:
        """Close the trainer."""
        self.trainer.close()


def learned(state: StateDict) -> Iterator[Tensor]:
    """The tensors of an algorithm's state that are the same at all ranks: not those of its own environments."""
    shared = {name: member for name, member in state.items() if name != "replay"}
    return (tensor for name, tensor in named_tensors(shared) if name.rpartition(".")[2] != "exploration")


def materialised(state: Any) -> Any:
    """A state in which the rows of replay buffers are there, instead of read when they are used."""
    if isinstance(state, Rows):
        return list(state)
    if isinstance(state, dict):
        return {name: materialised(member) for name, member in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(materialised, state))
    return state
