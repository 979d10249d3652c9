"""A worker process as its parent handles it: started, given orders, ended; and a set of them for reuse."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import socket
import struct
import sys
import types
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import send_handle
from numbers import Integral
from time import monotonic
from typing import Any

from headrace.core.cores import cores
from headrace.core.trust import refused_folders
from headrace.envs.workers import lifetime
from headrace.envs.workers.protocol import (
    ANSWER,
    ASSIGN,
    CLOSE,
    FAILED,
    GONE,
    ORDER,
    RESULT,
    Failure,
    Message,
    Task,
    read,
    run,
)
from headrace.envs.workers.spin_wait import spin_of

START_TIMEOUT = 120.0  # s for a process to make its role
GRACE = 3.0  # s for a process to close it
PRELOADED = [
    "headrace.parallel.gradient_actor",
    "headrace.bindings.collector_cpu",
    "headrace.bindings.rng_returns_cpu",
    "headrace.envs.workers.stepping",
    "headrace.envs.gym.pettingzoo",
    "headrace.envs.workers.spin_wait",
    "headrace.data.shared_memory",
    "headrace.envs.workers.fork_server",
]


class WorkerError(RuntimeError):
    """A worker process died or hung."""


class ProcessLost(WorkerError):
    """A worker process is gone, or cannot be talked to any more."""


class WorkerProcess:
    """A process, which may be replaced by another, and the connection to it. It starts with its first task."""

    process: BaseProcess
    orders: Connection
    task: Task

    def __init__(self, spin: float) -> None:
        self.spin = spin  # see spin_wait.Waiting
        self.running = False

    def assign(self, task: Task) -> None:
        """Let it make the role of a task; facts() waits until it is made."""
        if self.running and not self.process.is_alive():
            self.end(0.0)
        if not self.running:
            self._launch()
        self.task = task._replace(refused=task.refused or refused_folders())
        self.tell(ASSIGN, 0, self.task)

    def _launch(self) -> None:
        from multiprocessing import forkserver

        context: Any = get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, lifetime.DECIDED_BY_PARENT)
        try:
            forkserver.ensure_running()  # inherits the blocked signals
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.orders, theirs = context.Pipe()
        _limit_waits(self.orders)
        self.process = context.Process(target=run, args=(theirs, self.spin), daemon=True, name="headrace worker")
        with _without_main():
            self.process.start()
        theirs.close()
        self.running = True
        RUNNING.add(self)

    def facts(self) -> Any:
        """The facts of its role, once it is made. Raises the exception of making it, WorkerError, ProcessLost."""
        if not self.orders.poll(START_TIMEOUT):
            raise WorkerError(f"{self} had not made its environments after {START_TIMEOUT:g} s")
        return self._received()

    def answer(self) -> Any:
        """Read its answer to an order, see Role. Raises its exception, or ProcessLost."""
        try:
            (answer,) = ANSWER.unpack(read(self.orders.fileno(), ANSWER.size))
        except GONE:
            raise self.death() from None
        return self._received() if answer in (FAILED, RESULT) else answer

    def _received(self) -> Any:
        try:
            answer = self.orders.recv()
        except GONE:
            raise self.death() from None
        if isinstance(answer, Failure):
            raise _again(answer)
        return answer

    def tell(self, what: int, where: int = 0, message: Message = None, *descriptors: int) -> None:
        """Send an order, with what belongs to it. A process that is gone is noticed when its answer is read."""
        with suppress(*GONE):
            os.write(self.orders.fileno(), ORDER.pack(what, where))
            if message is not None:
                self.orders.send(message)
            for descriptor in descriptors:
                send_handle(self.orders, descriptor, self.process.pid)  # type: ignore[arg-type]

    def death(self) -> ProcessLost:
        """How the process ended."""
        self.process.join(GRACE)
        code = self.process.exitcode
        if code is None:
            return ProcessLost(f"{self} stopped in the middle of a message")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if code == -signal.SIGKILL:
            how += ", as the system does where memory runs out"
        return ProcessLost(f"{self} {how}")

    def end(self, grace: float) -> None:
        """End it, by force after `grace` seconds."""
        if not self.running:
            return
        self.tell(CLOSE)
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
        self.process.join(GRACE)
        if self.process.exitcode and self.process.pid is not None:
            lifetime.end_group(self.process.pid)
        self.orders.close()
        self.running = False
        RUNNING.discard(self)

    def __str__(self) -> str:
        return f"{self.task.kind} {self.task.place} ({self.task.name})"


class Workers:
    """Worker processes for several trainings and evaluations, one after another.

        with hr.Workers(8) as workers:
            hr.train("ppo", "LunarLander-v3", workers=workers)
            hr.train("ppo", "BipedalWalker-v3", workers=workers)

    number: of processes; None for one per core, except one for the learner. Processes start when they are first needed,
    and are reused until close(): the next training only replaces their environments.
    Raises ValueError for a number below 1.
    """

    def __init__(self, number: int | None = None) -> None:
        if number is not None and not (isinstance(number, Integral) and number >= 1):
            raise ValueError(f"give a number of workers, 1 or more, or None for one per core but one, got {number!r}")
        self.number = int(number or 0) or max(1, cores() - 1)
        self._idle = [WorkerProcess(spin_of(self.number + 1)) for _ in range(self.number)]
        self._all = list(self._idle)
        self.close = weakref.finalize(self, _end, self._all)

    def acquire(self, most: int) -> list[WorkerProcess]:
        """Up to `most` idle processes, until release(). Raises RuntimeError where none is idle."""
        if not self.close.alive:
            raise RuntimeError("these workers are closed: make the environments inside the `with`")
        if not self._idle:
            raise RuntimeError(f"all {self.number} workers are busy: close the environments they run, or make others")
        acquired, self._idle = self._idle[:most], self._idle[most:]
        return acquired

    def release(self, acquired: list[WorkerProcess]) -> None:
        """Processes that may be acquired again."""
        self._idle += acquired

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(processes: Collection[WorkerProcess]) -> None:
    """End processes, all at once."""
    for process in processes:
        if process.running:
            process.tell(CLOSE)
    until = monotonic() + GRACE
    for process in list(processes):
        process.end(max(0.0, until - monotonic()))


RUNNING: set[WorkerProcess] = set()
# before multiprocessing's own, which would send SIGTERM, and wait for ever
atexit.register(_end, RUNNING)


def _again(failure: Failure) -> BaseException:
    """A worker's exception, to be raised here, with its traceback in the worker."""
    error: BaseException = (
        pickle.loads(failure.error) if failure.error else RuntimeError("its exception cannot be sent to this process")
    )
    error.add_note(f"in a worker process:\n{failure.text}")
    return error


def _limit_waits(connection: Connection) -> None:
    """Let reads and writes that a process leaves half done fail after START_TIMEOUT, instead of waiting for ever."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(START_TIMEOUT), 0))


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes started inside do not run the main script again, so that it needs no `if __name__ == "__main__"`."""
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
