"""Worker processes as their parent sees them: started, told, waited for, replaced, ended."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import send_handle
from time import monotonic
from typing import Any

from headrace.envs.worker import ADOPT, ANSWER, BIND, CLOSE, ORDER, Facts, Failure, Task, run
from headrace.shared_memory import SharedRollout

START_TIMEOUT = 120.0  # s for a worker to make its environments
GRACE = 3.0  # s for a worker to close them
PRELOADED = ["headrace.envs.worker", "headrace.envs.inline", "headrace.shared_memory"]


class WorkerError(RuntimeError):
    """A worker process died, hung, or raised what cannot be raised again here."""


class WorkerProcess:
    """One worker process after another for the same environments, and the way to it."""

    process: BaseProcess
    orders: Connection

    def __init__(self, task: Task, answers: Connection, numbers: Iterator[int]) -> None:
        self.task, self._answers, self._numbers = task, answers, numbers
        self.lost = 0  # environments made anew because their process was gone
        self.restarts = 0  # environments that this process has made anew
        self._launch()

    def _launch(self) -> None:
        context: Any = get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            context.set_forkserver_preload(PRELOADED)
        self.number = next(self._numbers)
        self.orders, theirs = context.Pipe()
        self.process = context.Process(
            target=run, args=(self.number, theirs, self._answers, self.task), daemon=True, name="headrace worker"
        )
        with _without_main():
            self.process.start()
        theirs.close()

    def facts(self) -> Facts:
        """What it says once its environments are made. Raises what making them raised, or WorkerError."""
        if not self.orders.poll(START_TIMEOUT):
            raise WorkerError(f"{self} had not made its environments after {START_TIMEOUT:g} s")
        facts: Facts = self.received()
        return facts

    def received(self) -> Any:
        """Its message. Raises what it failed with, or WorkerError where it is gone."""
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
        self.end(0.0)
        self.lost += self.restarts + self.task.size
        self.restarts = 0
        self._launch()
        self.facts()
        for rollout in rollouts:
            self.bind(rollout)
        self.tell(ADOPT, 0, (seed, self.lost))

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

    def end(self, grace: float) -> None:
        """See it ended, by force after `grace` seconds."""
        self.tell(CLOSE)
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.orders.close()

    def __str__(self) -> str:
        last = self.task.first + self.task.size - 1
        return f"worker {self.task.place} (envs {self.task.first} to {last} of {self.task.name})"


class WorkerPool:
    """Workers that step together. Raises what making an environment raises."""

    def __init__(self, tasks: list[Task]) -> None:
        self._read, self._write = get_context("spawn").Pipe(duplex=False)
        numbers = count()
        self.workers = [WorkerProcess(task, self._write, numbers) for task in tasks]
        try:
            self.facts = [worker.facts() for worker in self.workers].pop()
        except BaseException:
            self.close()
            raise

    def tell(self, what: int, where: int = 0, message: Any = None) -> None:
        """Give all workers an order."""
        for worker in self.workers:
            worker.tell(what, where, message)

    def wait(self, timeout: float) -> list[WorkerProcess]:
        """Wait until every worker has answered; give those that are dead, or have not after `timeout` seconds.

        Raises what a worker's environment raised.
        """
        waiting = {worker.number: worker for worker in self.workers}
        poll = select.poll()
        poll.register(self._read.fileno(), select.POLLIN)
        speaking = {worker.orders.fileno(): worker for worker in self.workers}
        for descriptor in speaking:
            poll.register(descriptor, select.POLLIN)
        until = monotonic() + timeout
        lost: list[WorkerProcess] = []
        while waiting:
            ready = poll.poll(max(0.0, until - monotonic()) * 1000)
            if not ready:
                return lost + list(waiting.values())
            for descriptor, _ in ready:
                if descriptor == self._read.fileno():
                    self._answered(waiting)
                    continue
                worker = speaking[descriptor]
                try:
                    worker.received()  # nothing but a failure is said without being asked
                except WorkerError:
                    lost.append(worker)
                    waiting.pop(worker.number, None)
                    poll.unregister(descriptor)
        return lost

    def _answered(self, waiting: dict[int, WorkerProcess]) -> None:
        """Take in answers; those of processes that have been replaced do not count."""
        answers = os.read(self._read.fileno(), ANSWER.size * 64)
        for number, restarts in ANSWER.iter_unpack(answers):
            worker = waiting.pop(number, None)
            if worker is not None:
                worker.restarts = restarts

    def restarts(self) -> int:
        """Environments that had to be made anew so far."""
        return sum(worker.lost + worker.restarts for worker in self.workers)

    def close(self) -> None:
        """End all workers. Twice does no harm."""
        for worker in self.workers:
            worker.tell(CLOSE)
        until = monotonic() + GRACE
        while self.workers:
            self.workers.pop().end(max(0.0, until - monotonic()))
        self._read.close()
        self._write.close()


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
