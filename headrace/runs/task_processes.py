"""Run tasks at the same time in processes that share the cores: trials of a sweep, members of a population."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self, TypeAlias

from headrace.core.cores import cores
from headrace.runs.signals import Interrupts

LOOK = 0.2  # s between two checks for a signal
Ask: TypeAlias = Callable[[Any], Any]  # a running task's question -> its answer
Work: TypeAlias = Callable[[Any, Ask], Any]  # carries out a task: (task, a function for its questions) -> outcome
Task: TypeAlias = tuple[Any, Ask]  # a task, and a function that answers its questions


class NotTogether(ValueError):
    """A setting with which a training cannot share its process with others; see task_threads."""


class Processes:
    """Processes that each carry out one task after another. They end with the block of this context manager.

    work: a function that processes find by its name. It must not raise: a failure is an outcome, too.
    """

    def __init__(self, work: Work, jobs: int, name: str) -> None:
        self._work, self._jobs, self._name = work, jobs, name
        self._idle: list[Connection] = []
        self._processes: dict[Connection, BaseProcess] = {}
        self._begun: set[Connection] = set()  # connections of processes that have begun their first task
        os.environ.setdefault("HEADRACE_THREADS", str(max(1, cores() // jobs)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, at: TracebackType | None) -> None:
        for connection in self._idle:
            with suppress(OSError):
                connection.send(None)
        at_work = [process for connection, process in self._processes.items() if connection not in self._idle]
        pass_on("SIGTERM", at_work)  # there are running tasks only after an exception
        for process in self._processes.values():
            process.join()

    def run(self, tasks: Iterator[Task], done: Callable[[int, Any, str], None]) -> str:
        """Run all tasks. Returns the name of a signal that has come, else an empty text.

        done: called with the number of a task, its outcome (None if its process was killed), and the signal so far.
        After a signal, which is passed on to the processes, no further task begins. Raises RuntimeError if a process
        ends by itself before its first task.
        """
        numbered, at_work = enumerate(tasks), dict[Connection, tuple[int, Ask]]()
        with Interrupts() as interrupts:
            for _ in range(self._jobs):
                self._give(numbered, at_work, interrupts)
            passed_on = ""
            while at_work:
                if interrupts.caught and not passed_on:
                    passed_on = interrupts.caught
                    pass_on(passed_on, self._processes.values())
                for connection in [one for one in wait(list(at_work), LOOK) if isinstance(one, Connection)]:
                    number, answer = at_work[connection]
                    try:
                        ended, value = connection.recv()
                    except (EOFError, OSError):
                        self._end(connection, interrupts)
                        ended, value = True, None
                    if ended is None:
                        self._begun.add(connection)
                        continue
                    if not ended:
                        with suppress(OSError):
                            connection.send(answer(value))
                        continue
                    del at_work[connection]
                    if connection in self._processes:
                        self._idle.append(connection)
                    done(number, value, interrupts.caught)
                    self._give(numbered, at_work, interrupts)
            return interrupts.caught

    def _end(self, connection: Connection, interrupts: Interrupts) -> None:
        """Join a process that has ended. Raises RuntimeError, see run()."""
        process = self._processes.pop(connection)
        process.join()
        if process.exitcode and process.exitcode > 0 and connection not in self._begun and not interrupts.caught:
            raise RuntimeError(
                f"the process of a {self._name} has ended with exit code {process.exitcode} before its work, by the "
                "error above: processes import the script that starts them, so call this below `if __name__ == "
                '"__main__":`, or give jobs=1'
            ) from None

    def _give(
        self, tasks: Iterator[tuple[int, Task]], at_work: dict[Connection, tuple[int, Ask]], interrupts: Interrupts
    ) -> None:
        """Give the next task, if any, to an idle or a new process."""
        if interrupts.caught or (found := next(tasks, None)) is None:
            return
        number, (task, answer) = found
        connection = self._idle.pop() if self._idle else self._start()
        at_work[connection] = number, answer
        with suppress(OSError):  # a signal may have ended the process
            connection.send(task)

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, self._work), name=self._name)
        process.start()
        there.close()
        self._processes[here] = process
        return here


def _work(parent: Connection, work: Work) -> None:
    """Carry out one task after another, and end with the parent. A killed parent may be started again at once, and must
    not find its runs still being written."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()

    def ask(question: Any) -> Any:
        parent.send((False, question))
        return parent.recv()

    with suppress(KeyboardInterrupt, EOFError):  # between two tasks
        parent.send((None, None))
        while (task := parent.recv()) is not None:
            parent.send((True, work(task, ask)))


def _end_with_the_parent() -> None:
    """Wait until the parent has ended, and end this process."""
    if (parent := multiprocessing.parent_process()) is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)


def no_question(question: Any) -> Any:
    """Answer of tasks without questions."""


def pass_on(name: str, processes: Iterable[BaseProcess]) -> None:
    """Send a signal to processes. A process that has received it already, as by Ctrl-C in a terminal, takes both as one
    request."""
    for process in processes:
        if process.pid and process.is_alive():
            os.kill(process.pid, signal.Signals[name])
