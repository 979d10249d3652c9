"""A worker process as its parent handles it: started, given orders, replaced, ended; and a set of them for reuse."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import send_handle
from time import monotonic
from typing import Any

from headrace.core.cores import cores
from headrace.data.shared_memory import SharedRollout
from headrace.envs.workers.protocol import (
    ANSWER,
    ASSIGN,
    BIND,
    CLOSE,
    DISMISS,
    FAILED,
    ORDER,
    TAKE_OVER,
    EnvFacts,
    Failure,
    Message,
    Task,
    read,
    run,
)
from headrace.envs.workers.spin_wait import spin_of

START_TIMEOUT = 120.0  # s for a worker to make its environments
GRACE = 3.0  # s for a worker to close them
PRELOADED = [
    "headrace.envs.workers.protocol",
    "headrace.envs.gym.inline",
    "headrace.envs.workers.spin_wait",
    "headrace.data.shared_memory",
]


class WorkerError(RuntimeError):
    """A worker process died, hung, or raised what cannot be raised again here."""


class WorkerProcess:
    """A process, which may be replaced by another, and the connection to it. It starts with its first task."""

    process: BaseProcess
    orders: Connection
    task: Task

    def __init__(self, spin: float) -> None:
        self.spin = spin  # see spin_wait.Waiting
        self.running = False
        self.lost = 0  # environments made again because their process was gone
        self.restarts = 0  # environments that this process has made again

    def assign(self, task: Task) -> None:
        """Let it make the environments of a task; facts() waits until they are made."""
        if self.running and not self.process.is_alive():
            self.end(0.0)
        if not self.running:
            self._launch()
        self.task, self.lost, self.restarts = task, 0, 0
        self.tell(ASSIGN, 0, task)

    def _launch(self) -> None:
        context: Any = get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            context.set_forkserver_preload(PRELOADED)
        self.orders, theirs = context.Pipe()
        self.process = context.Process(target=run, args=(theirs, self.spin), daemon=True, name="headrace worker")
        with _without_main():
            self.process.start()
        theirs.close()
        self.running = True

    def facts(self) -> EnvFacts:
        """The facts of its environments, once they are made. Raises the exception of making them, or WorkerError."""
        if not self.orders.poll(START_TIMEOUT):
            raise WorkerError(f"{self} had not made its environments after {START_TIMEOUT:g} s")
        return self._received()

    def answer(self) -> None:
        """Read its answer to an order. Raises its exception, or WorkerError where the process is gone."""
        try:
            (answer,) = ANSWER.unpack(read(self.orders.fileno(), ANSWER.size))
        except (EOFError, ConnectionResetError):
            raise self.death() from None
        if answer == FAILED:
            self._received()
        self.restarts = answer

    def _received(self) -> EnvFacts:
        try:
            answer = self.orders.recv()
        except (EOFError, ConnectionResetError):
            raise self.death() from None
        if isinstance(answer, Failure):
            raise _again(answer)
        return answer

    def tell(self, what: int, where: int = 0, message: Message = None) -> None:
        """Send an order. A process that is gone is noticed when its answer is read."""
        with suppress(BrokenPipeError, ConnectionResetError):
            os.write(self.orders.fileno(), ORDER.pack(what, where))
            if message is not None:
                self.orders.send(message)

    def bind(self, rollout: SharedRollout) -> None:
        """Let it write into a rollout from now on."""
        self.tell(BIND, 0, (rollout.num_steps, rollout.num_envs, rollout.columns, rollout.store.size))
        with suppress(BrokenPipeError, ConnectionResetError):
            send_handle(self.orders, rollout.store.descriptor, self.process.pid)  # type: ignore[arg-type]

    def replace(self, rollouts: list[SharedRollout], seed: int) -> None:
        """Start another process in the place of this one. Its environments begin an episode at their next reset."""
        lost = self.lost + self.restarts + self.task.size
        self.end(0.0)
        self.assign(self.task)
        self.lost = lost
        self.facts()
        for rollout in rollouts:
            self.bind(rollout)
        self.tell(TAKE_OVER, 0, (seed, lost))

    def failure(self, timeout: float) -> WorkerError:
        """Why it has not answered."""
        if self.process.is_alive():
            return WorkerError(f"{self} has not answered for {timeout:g} s: it hangs, or step_timeout is too short")
        return self.death()

    def death(self) -> WorkerError:
        """How the process ended."""
        self.process.join(GRACE)
        code = self.process.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        return WorkerError(f"{self} {how}")

    def dismiss(self) -> None:
        """Let it close its environments, and wait for the next task."""
        self.tell(DISMISS)

    def end(self, grace: float) -> None:
        """End it, by force after `grace` seconds."""
        if not self.running:
            return
        self.tell(CLOSE)
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.orders.close()
        self.running = False

    def __str__(self) -> str:
        last = self.task.first + self.task.size - 1
        return f"worker {self.task.place} (envs {self.task.first} to {last} of {self.task.name})"


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
        if number is not None and number < 1:
            raise ValueError(f"there must be 1 worker or more, got {number}")
        self.number = number or max(1, cores() - 1)
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


def _end(processes: list[WorkerProcess]) -> None:
    """End processes, all at once."""
    for process in processes:
        if process.running:
            process.tell(CLOSE)
    until = monotonic() + GRACE
    while processes:
        processes.pop().end(max(0.0, until - monotonic()))


def _again(failure: Failure) -> BaseException:
    """A worker's exception, to be raised here, with its traceback in the worker."""
    error: BaseException = (
        pickle.loads(failure.error) if failure.error else WorkerError("an environment raised what cannot be sent")
    )
    error.add_note(f"in a worker process:\n{failure.text}")
    return error


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes started inside do not run the main script again, so that it needs no `if __name__ == "__main__"`."""
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
