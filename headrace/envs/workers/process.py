"""The parent's side of a worker process: start it, give it orders, end it; and a set of processes for reuse."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import weakref
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from multiprocessing import connection
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler, send_handle
from multiprocessing.util import Finalize
from numbers import Integral
from time import monotonic
from typing import Any

from headrace.core.cores import cores
from headrace.core.processes.state import ProcessState
from headrace.core.trust import refused_folders
from headrace.core.writing import explained
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
from headrace.envs.workers.start import UNKNOWN, Process

START_TIMEOUT = 120.0  # s for a process to make its role
GRACE = 3.0  # s for a process to close its role


class WorkerError(RuntimeError):
    """A worker process died or hung."""


class ProcessLost(WorkerError):
    """A worker process is gone, or communication with it has failed."""


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker process."""


class WorkerProcess:
    """A process, which may be replaced by another, and the connection to it. It starts with its first task."""

    process: Process
    orders: Connection
    task: Task
    state: ProcessState  # that its task was first given in, also for a process that takes its place

    def __init__(self, spin: float) -> None:
        self.spin = spin  # see spin_wait.Waiting
        self.running = False

    def assign(self, task: Task, state: ProcessState | None = None) -> None:
        """Order the process to make the role of a task; facts() waits until it is made. state: the state of this
        process, now or earlier."""
        state = state or ProcessState.now()
        # modules that a process has loaded may have read variables
        if self.running and (self.process.exitcode is not None or self.state.variables != state.variables):
            self.end(0.0 if self.process.exitcode is not None else GRACE)
        self.task, self.state = task._replace(refused=task.refused or refused_folders()), state
        if not self.running:
            self._launch()
        message = state.sent(), self.task.refused, bytes(ForkingPickler.dumps(self.task))
        self.tell(ASSIGN, 0, message)

    def _launch(self) -> None:
        what = f"a process cannot be started for {self}"
        with explained(what):
            self.orders, theirs = Pipe()
            _limit_waits(self.orders)
            self.process = Process(self.state.variables, run, theirs, self.spin)
            try:
                self.process.start()
            except EOFError as error:
                raise WorkerError(
                    f"{what}: the fork server was killed, as the system does where memory runs out"
                ) from error
            finally:
                theirs.close()
        self.running = True
        RUNNING.add(self)
        _end_at_exit(os.getpid())

    def facts(self) -> Any:
        """Wait for the facts of the role. Raises the exception of making it, WorkerError, ProcessLost."""
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
        """Send an order with its message. A lost process is noticed when its answer is read."""
        with suppress(*GONE):
            os.write(self.orders.fileno(), ORDER.pack(what, where))
            if message is not None:
                self.orders.send(message)
            for descriptor in descriptors:
                send_handle(self.orders, descriptor, self.process.pid)  # type: ignore[arg-type]

    def death(self) -> ProcessLost:
        """Make an error that says how the process ended."""
        self.process.join(GRACE)
        code = self.process.exitcode
        if code == UNKNOWN:
            return ProcessLost(f"{self} ended, and so did the fork server, which knew how: memory may have run out")
        if code is None:
            return ProcessLost(f"{self} stopped in the middle of a message")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if code == -signal.SIGKILL:
            how += ", as the system does where memory runs out"
        return ProcessLost(f"{self} {how}")

    def end(self, grace: float) -> None:
        """End the process, by force after `grace` seconds."""
        if not self.running:
            return
        self.tell(CLOSE)
        self.process.join(grace)
        if self.process.exitcode == UNKNOWN:
            connection.wait([self.orders], grace)  # its end of the connection closes as it ends
        if self.process.is_alive():
            self.process.kill()
        self.process.join(GRACE)
        if self.process.exitcode is not None and self.process.pid is not None:
            lifetime.end_group(self.process.pid)
        self.orders.close()
        self.running = False
        RUNNING.discard(self)

    @property
    def has_spoken(self) -> bool:
        """True if an answer, or the end of the process, can be read."""
        return self.orders.poll(0) or self.process.exitcode not in (None, UNKNOWN)

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
        """Acquire up to `most` idle processes, until release(). Raises RuntimeError where none is idle."""
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


@cache
def _end_at_exit(pid: int) -> None:
    """End processes when this one, with number `pid`, ends, even if multiprocessing has started it, which does not call
    atexit's functions."""
    Finalize(None, _end, (RUNNING,), exitpriority=1)


def _forget() -> None:
    """Forget these processes in a forked child: they belong to the parent."""
    for process in RUNNING:
        process.running = False
        process.orders.close()
    RUNNING.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)


def _again(failure: Failure) -> BaseException:
    """A worker's exception, to be raised here, with the worker's traceback in a note, which `headrace` prints, or as
    its cause."""
    error: BaseException = (
        pickle.loads(failure.error) if failure.error else RuntimeError("its exception cannot be sent to this process")
    )
    where = f"in a worker process:\n{failure.text}"
    if failure.is_message:
        error.__cause__ = WorkerTraceback(where)
    else:
        error.add_note(where)
    return error


def _limit_waits(connection: Connection) -> None:
    """Let reads and writes that the other process does not finish fail after START_TIMEOUT, not wait for ever."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(START_TIMEOUT), 0))
