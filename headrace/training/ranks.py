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
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.algorithms.reduce import gathered, of_each
from headrace.core.cores import partition
from headrace.core.fused import silence
from headrace.core.stopping import Stopped
from headrace.core.types import StateDict
from headrace.data.pieces import Rows
from headrace.data.rollout import Rollout, named_tensors
from headrace.data.shared_memory import Memory
from headrace.envs.workers.env import sendable
from headrace.envs.workers.process import ProcessLost, WorkerProcess
from headrace.envs.workers.process import _end as end_all
from headrace.envs.workers.protocol import Task
from headrace.parallel.actor import Part
from headrace.parallel.fragments import packed, unpacked
from headrace.parallel.learners import Ended, RankLost, SharedSum
from headrace.training.config import TrainConfig
from headrace.training.episodes import ended_episodes

JOIN, ITERATE, SAVE, LOAD = range(4)  # orders
PATIENCE = 10  # multiple of step_timeout that a sum of torch.distributed waits for another rank
COMPARED_EVERY = 100  # updates between comparisons of the ranks' weights
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Collected(NamedTuple):
    """The result of collecting, over all ranks."""

    stopped: bool  # whether a rank gave up its rollout
    steps: int  # valid ones
    restarts: int  # environments made again so far
    ended: Tensor  # episodes, float64 [E, 4]: step, environment, return, length; by step, then environment
    details: dict[str, float]  # of actors on a cluster


class Ranks:
    """One rank's view of all: its part of the environments, and the sums over all ranks.

    part: of num_envs environments. step_timeout: seconds without a step after which a rank counts as hanging.
    device: the device on which this rank learns: the CPU, or its own GPU, for which NCCL computes the sums.
    """

    of_torchrun = False  # whether torchrun has started this rank

    def __init__(self, rank: int, size: int, num_envs: int, step_timeout: float, device: torch.device) -> None:
        self.rank, self.size, self.step_timeout, self.device = rank, size, step_timeout, device
        own = partition(num_envs, size)[rank]
        self.part = Part(own.start, own.stop - own.start, num_envs)
        self.host: Any  # a Reduce for tensors of the CPU: SharedSum, or training.distributed's
        self.sum: Any  # a Reduce for all tensors: the same, or with GPUs the next
        self.device_sum: Any = None  # parallel.cuda.device_sum.DeviceSum

    def join(self, room: int, memory: Memory | None = None, store: str = "") -> None:
        """Share the memory of the sums; room: see SharedSum. store: a file by which ranks with GPUs find each other."""
        self.begin_to_add(SharedSum(self.rank, self.size, room, memory, self.step_timeout), store)

    def begin_to_add(self, host: Any, store: str) -> None:
        """Use `host` for sums of tensors on the CPU, and a process group for those on GPUs."""
        host.columns = [each.stop - each.start for each in partition(self.part.total, self.size)]
        self.host = self.sum = host
        if self.device.type != "cpu":
            from headrace.parallel.cuda.device_sum import DeviceSum

            group, patience = self.device_group(store), PATIENCE * self.step_timeout
            self.sum = self.device_sum = DeviceSum(host, group, self.device, patience)
            self.device_sum.watch = self.watch_device

    def device_group(self, store: str) -> Any:
        """The group of the sums on GPUs."""
        from headrace.parallel.cuda.device_sum import nccl_group

        return nccl_group(store, self.rank, self.size, PATIENCE * self.step_timeout)

    def watch_device(self) -> None:
        """Raise what should end the wait for a GPU."""
        if isinstance(self.host, SharedSum):
            self.host.check_ended()

    def wait(self) -> None:
        """Wait until this rank's GPU has finished its queue, while the other ranks are alive."""
        if self.device_sum is not None:
            self.device_sum.wait()

    def leave(self) -> None:
        """Leave the group of the sums on GPUs. A second call does nothing."""
        if self.device_sum is not None:
            self.device_sum.close()

    def begin_with(self, algorithm: Any) -> None:
        """Make an algorithm add its sums to the other ranks' sums, and begin with the weights of rank 0."""
        algorithm.reduce = self.sum
        state = algorithm.state_dict()
        for tensor in learned(state):
            value = tensor.double() if self.rank == 0 else torch.zeros_like(tensor, dtype=torch.float64)
            self.sum(value)
            tensor.copy_(value)
        algorithm.load_state_dict(state | ({"replay": None} if "replay" in state else {}))

    def plan(self, actors: int, own: str) -> str:
        """Describe the actors and memory of all ranks. actors: number of this rank's actors. own: its description."""
        number = int(of_each(torch.tensor(actors), self.sum).sum())
        whole = f"{number} actors with {self.part.total} environments, of {self.size} learners"
        return f"{whole}; rank {self.rank} has {own}"

    def stop_asking(self, stop: Callable[[], bool] | None, may_stop: bool) -> Callable[[], bool]:
        """Make a function for a collector to call before each step: whether any rank gives up the rollout. It also
        records that this rank is at work."""

        def ask() -> bool:
            self.host.beat()
            if not may_stop:
                return False
            if stop is not None and stop():
                self.host.flags[0] = 1
            return bool(self.host.flags[0])

        return ask

    def collected(self, stopped: bool, rollout: Rollout, restarts: int, details: dict[str, float]) -> Collected:
        """Gather what all ranks have collected. stopped: whether this rank gave up its rollout. details: metrics of its
        actors."""
        totals = torch.tensor([stopped, 0 if stopped else rollout.valid_steps(), restarts])
        self.sum(totals)
        self.host.flags[0] = 0
        ended = ended_episodes(rollout)
        if totals[0]:
            return Collected(True, 0, 0, ended, {})
        ended[:, 1] += self.part.first
        ended = gathered(ended, self.sum)
        order = (ended[:, 0] * self.part.total + ended[:, 1]).argsort(stable=True)
        return Collected(False, int(totals[1]), int(totals[2]), ended[order], self._details_of_all(details))

    def _details_of_all(self, own: dict[str, float]) -> dict[str, float]:
        """Metrics of all ranks' actors to log: sums of counts, and the longest of the times."""
        if not own:
            return {}
        values = of_each(torch.tensor(list(own.values()), dtype=torch.float64), self.sum)
        sums, longest = values.sum(0).tolist(), values.amax(0).tolist()
        return {name: longest[at] if name.startswith("seconds") else int(sums[at]) for at, name in enumerate(own)}

    def compare(self, algorithm: Any) -> None:
        """Raise RuntimeError, naming the rank, if a rank's weights differ from those of rank 0."""
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
    """Rank 0, which starts the other ranks and gives them orders. make: a function that makes another rank's trainer,
    given its Ranks.

    Raises the exception of a rank that failed, with its traceback, and RankLost for one that died or hangs.
    """

    def __init__(self, config: TrainConfig, make: Callable[[Ranks], Any]) -> None:
        super().__init__(0, config.learners, config.num_envs, config.step_timeout, device_of(config, 0))
        self.caught = ""  # the signal that another rank has received
        self.processes = [WorkerProcess(0.0) for _ in range(1, self.size)]
        self._early: dict[int, Any] = {}  # answers that came before they were asked for, by rank
        self._folder = TemporaryDirectory(prefix="headrace-") if self.device.type != "cpu" else None
        self._own: list[Any] = []  # objects of its sums, once they exist: on the host, then on GPUs
        self.close = weakref.finalize(self, _close, self.processes, self._own, self._folder)
        sent = sendable(make)
        for rank, process in enumerate(self.processes, 1):
            part = partition(self.part.total, self.size)[rank]
            what = f"envs {part.start} to {part.stop - 1}"
            settings = (rank, self.size, config.num_envs, config.step_timeout, device_of(config, rank))
            process.assign(Task(partial(Following, sent, settings), what, rank, self.size, kind="rank"))

    def join(self, room: int, memory: Memory | None = None, store: str = "") -> None:
        for process in self.processes:
            process.facts()
        store = "" if self._folder is None else f"{self._folder.name}/ranks"
        host = SharedSum(0, self.size, room, memory, self.step_timeout)
        self._own.append(host)
        host.watch = self._watch
        self._tell(JOIN, (room, host.memory.size, store), host.memory.descriptor)
        self.begin_to_add(host, store)  # where a group of the device waits for the others
        self._own.append(self.device_sum)

    def _tell(self, what: int, message: Any, *descriptors: int) -> None:
        for process in self.processes:
            process.tell(what, 0, message, *descriptors)

    def _watch(self) -> None:
        """Raise the exception of a rank that answers while it should take part in a sum."""
        for rank, process in enumerate(self.processes, 1):
            if process.has_spoken and self.host.awaits(
                rank
            ):  # in this order: it may have begun the last sum, and be done
                self._answer(process)

    def watch_device(self) -> None:
        """Raise the exception of a rank that should take part in a sum on GPUs."""
        for rank, process in enumerate(self.processes, 1):
            if rank not in self._early and process.has_spoken:
                self._early[rank] = self._answer(process)  # without an exception, it has done its part

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
        """The other ranks' answers to the last order, in order of rank."""
        early, self._early = self._early, {}
        return [
            early[rank] if rank in early else self._answer(process) for rank, process in enumerate(self.processes, 1)
        ]

    def iterated(self) -> None:
        """Wait until all ranks have finished the iteration."""
        for answer in self.answers():
            if answer:
                self.caught = signal.Signals(answer).name

    def states(self) -> list[tuple[StateDict, StateDict | None]]:
        """State of the collector of each other rank, and of its algorithm if that has a replay buffer."""
        self.order(SAVE)
        return [unpacked(answer)["state"] for answer in self.answers()]

    def load(self, states: list[tuple[StateDict, StateDict, StateDict]]) -> None:
        """Send each other rank the arguments of its trainer's load_own_state()."""
        for process, state in zip(self.processes, states, strict=True):
            process.tell(LOAD, 0, (packed({"state": materialised(state)}),))
        self.answers()


@contextmanager
def iteration(ranks: Any, progress: float, may_stop: bool, speed: bool) -> Iterator[None]:
    """Wrap rank 0's part of an iteration of all ranks; see Trainer.follow(). After the block all ranks have finished
    the iteration, or given it up if the block raises Stopped, and are ready for the next order."""
    ranks.order(ITERATE, (progress, may_stop, speed))
    stopped: Stopped | None = None
    try:
        yield
    except Stopped as error:
        stopped = error
    ranks.iterated()
    if stopped is not None:
        raise stopped


def _close(processes: list[WorkerProcess], sums: list[Any], folder: TemporaryDirectory[str] | None) -> None:
    for host in sums[:1]:
        host.flags[1] = 1  # those that wait in a sum end, too
    end_all(processes)
    for device_sum in filter(None, sums[1:]):
        device_sum.close()
    if folder is not None:
        folder.cleanup()


class Following:
    """A Role (envs.workers.protocol): a rank that does what rank 0 orders.

    make: a function that makes the trainer, given Ranks(*settings); by cloudpickle.
    """

    def __init__(self, make: bytes, settings: tuple[int, int, int, float, torch.device], orders: Connection) -> None:
        silence()
        self.orders, self.facts, self.caught = orders, settings[0], 0
        self.ranks = Ranks(*settings)
        self.trainer: Any = pickle.loads(make)(self.ranks)
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _: object) -> None:
        self.caught = number
        with suppress(AttributeError):  # it has not joined yet
            self.ranks.host.flags[0] = 1

    def carry_out(self, what: int, where: int) -> Any:
        """Carry out one of the orders above."""
        message = self.orders.recv()
        if what == JOIN:
            room, size, store = message
            memory = Memory(size, recv_handle(self.orders))
            self.ranks.join(room, memory, store)
            memory.close()
            self.trainer.begin()
            return None
        if what == ITERATE:
            self.ranks.host.beat()
            with suppress(Ended):
                self.trainer.follow(*message)
            caught, self.caught = self.caught, 0
            return caught
        if what == SAVE:
            return packed({"state": materialised(self.trainer.own_state())})
        self.trainer.load_own_state(*unpacked(message[0])["state"])
        return 0

    def close(self) -> None:
        """Close the trainer. Its CUDA graph is freed before the process group whose sums it contains."""
        self.trainer.close()
        self.ranks.leave()


def device_of(config: TrainConfig, local: int) -> torch.device:
    """The device on which a learner learns. local: its number among the learners of its machine. "auto" is the CPU."""
    return torch.device("cuda", local) if config.device == "cuda" else torch.device("cpu")


def learned(state: StateDict) -> Iterator[Tensor]:
    """Tensors of an algorithm's state that are the same at all ranks, without those of its environments."""
    shared = {name: member for name, member in state.items() if name != "replay"}
    return (tensor for name, tensor in named_tensors(shared) if name.rpartition(".")[2] != "exploration")


def materialised(state: Any) -> Any:
    """Read the rows of replay buffers in a state, which are otherwise read when they are used."""
    if isinstance(state, Rows):
        return list(state)
    if isinstance(state, dict):
        return {name: materialised(member) for name, member in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(materialised, state))
    return state
