"""One worker process as its parent sees it: started, engaged, told, replaced, ended; and a number of them to lend."""

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
    ADOPT,
    ANSWER,
    BIND,
    CLOSE,
    DISMISS,
    ENGAGE,
    FAILED,
    ORDER,
    Facts,
    Failure,
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
    """One process after another in the same place, and the way to it. The first starts when there is work for it."""

    process: BaseProcess
    orders: Connection
    task: Task

    def __init__(self, spin: float) -> None:
        self.spin = spin  # see waiting.Waiting
        self.running = False
        self.lost = 0  # environments made anew because their process was gone
        self.restarts = 0  # environments that this process has made anew

    def engage(self, task: Task) -> None:
        """Have it make environments; facts() waits until they are made."""
        if self.running and not self.process.is_alive():
            self.end(0.0)
        if not self.running:
            self._launch()
        self.task, self.lost, self.restarts = task, 0, 0
        self.tell(ENGAGE, 0, task)

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

    def facts(self) -> Facts:
        """What it says once its environments are made. Raises what making them raised, or WorkerError."""
        if not self.orders.poll(START_TIMEOUT):
            raise WorkerError(f"{self} had not made its environments after {START_TIMEOUT:g} s")
        facts: Facts = self._received()
        return facts

    def answer(self) -> None:
        """Take its answer to an order. Raises what it failed with, or WorkerError where it is gone."""
        try:
            (said,) = ANSWER.unpack(read(self.orders.fileno(), ANSWER.size))
        except (EOFError, ConnectionResetError):
            raise self.death() from None
        if said == FAILED:
            self._received()
        self.restarts = said

    def _received(self) -> Any:
        try:
            said = self.orders.recv()
        except (EOFError, ConnectionResetError):
            raise self.death() from None
        if isinstance(said, Failure):
            raise _again(said)
        return said

    def tell(self, what: int, where: int = 0, message: Any = None) -> None:
        """Give an order; one that is gone is found out when it is waited for."""
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
        """Start another process in the place of this one. Its environments begin when they are next reset."""
        lost = self.lost + self.restarts + self.task.size
        self.end(0.0)
        self.engage(self.task)
        self.lost = lost
        self.facts()
        for rollout in rollouts:
            self.bind(rollout)
        self.tell(ADOPT, 0, (seed, lost))

    def failure(self, timeout: float) -> WorkerError:
        """Why it has not answered."""
        if self.process.is_alive():
            return WorkerError(f"{self} has not answered for {timeout:g} s: it hangs, or step_timeout is too short")
        return self.death()

    def death(self) -> WorkerError:
        """How it ended, for people."""
        self.process.join(GRACE)
        code = self.process.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        return WorkerError(f"{self} {how}")

    def dismiss(self) -> None:
        """Have it close its environments, and be ready for others."""
        self.tell(DISMISS)

    def end(self, grace: float) -> None:
        """See it ended, by force after `grace` seconds."""
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

    number: how many; None for as many as there are cores, but one for the learner. Processes start when they are first
    needed, and stay until the end: the next training replaces their environments alone.
    Raises ValueError for a number below 1.
    """

    def __init__(self, number: int | None = None) -> None:
        if number is not None and number < 1:
            raise ValueError(f"there must be 1 worker or more, got {number}")
        self.number = number or max(1, cores() - 1)
        self._idle = [WorkerProcess(spin_of(self.number + 1)) for _ in range(self.number)]
        self._all = list(self._idle)
        self.close = weakref.finalize(self, _end, self._all)

    def lend(self, most: int) -> list[WorkerProcess]:
        """At most so many processes, for one who gives them back. Raises RuntimeError where none is left."""
        if not self.close.alive:
            raise RuntimeError("these workers are closed: make the environments inside the `with`")
        if not self._idle:
            raise RuntimeError(f"all {self.number} workers are busy: close the environments they run, or make others")
        lent, self._idle = self._idle[:most], self._idle[most:]
        return lent

    def take_back(self, lent: list[WorkerProcess]) -> None:
        """Processes that may be lent again."""
        self._idle += lent

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
    """A worker's exception, to be raised here, with the traceback it had there."""
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
