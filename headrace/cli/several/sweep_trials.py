"""Trials of a sweep: trainings in this process or in others, which report their learning curves and may be pruned."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from headrace.cli.several.seeds import LOOK, pass_on
from headrace.core.cores import cores
from headrace.core.processes.state import shown
from headrace.core.text import is_message
from headrace.evaluation.playing import Evaluation
from headrace.runs.run import Run
from headrace.runs.signals import Interrupts
from headrace.training.iteration import IterationResult
from headrace.training.loop import Training

REPORTS = 20  # points of a learning curve, by which trials are compared
PRUNED = "pruned"  # why such a run has ended
Train = Callable[..., tuple[Run, Evaluation | None]]
Report = Callable[[int, float], bool]  # of a point of the curve and the mean return there: whether to prune


@dataclass(frozen=True)
class Outcome:
    """What a trial came to."""

    path: str
    score: float | None  # mean return after training; None for one that did not end its training
    steps: int
    reason: str  # why it ended
    interrupted: bool = False
    error: str = ""  # what it raised


def carry_out(train: Train, arguments: Sequence[str], report: Report) -> Outcome:
    """Train by these arguments. train: headrace.cli.train.trained."""
    reported = 0

    def each(training: Training, row: IterationResult) -> None:
        nonlocal reported
        point = int(training.trainer.progress() * REPORTS)
        if point > reported and row.mean_return is not None:
            reported = point
            if report(point, row.mean_return):
                training.stop(PRUNED)

    run, evaluation = train(list(arguments), quiet=True, each=each)
    score = None if evaluation is None else evaluation.mean
    return Outcome(str(shown(run.path)), score, run.steps, run.reason, run.interrupted)


def attempt(train: Train, arguments: Sequence[str], report: Report) -> Outcome:
    """carry_out(), where a training that fails is an outcome too."""
    try:
        return carry_out(train, arguments, report)
    except Exception as error:
        text = f"{type(error).__name__}: {error}" if is_message(error) else traceback.format_exc()
        return Outcome("", None, 0, "error", error=text)


class Here:
    """Trials in this process, one after another."""

    def __init__(self, train: Train) -> None:
        self._train = train

    def run(self, tasks: Iterator[tuple[Sequence[str], Report]], done: Callable[[int, Outcome], None]) -> None:
        """Carry out tasks until there are no more, or one is interrupted; done: called with its number and outcome."""
        for number, (arguments, report) in enumerate(tasks):
            outcome = attempt(self._train, arguments, report)
            done(number, outcome)
            if outcome.interrupted:
                return


class Elsewhere:
    """Trials side by side, in processes that share the cores."""

    def __init__(self, train: Train, jobs: int) -> None:
        self._train, self._jobs = train, jobs
        os.environ.setdefault("HEADRACE_THREADS", str(max(1, cores() // jobs)))

    def run(self, tasks: Iterator[tuple[Sequence[str], Report]], done: Callable[[int, Outcome], None]) -> None:
        """As Here.run()."""
        context, numbered = multiprocessing.get_context("spawn"), enumerate(tasks)
        processes: dict[Connection, BaseProcess] = {}
        at_work: dict[Connection, tuple[int, Report]] = {}

        def start() -> Connection:
            here, there = context.Pipe()
            process: BaseProcess = context.Process(target=_work, args=(there, self._train), name="trial")
            process.start()
            there.close()
            processes[here] = process
            return here

        def give(connection: Connection | None) -> None:
            """The next task, to a new process for None; where there is none, the process ends."""
            task = None if interrupts.caught else next(numbered, None)
            if connection is None:
                if task is None:
                    return
                connection = start()
            with suppress(OSError):  # a signal may have ended it
                connection.send(None if task is None else task[1][0])
            if task is not None:
                at_work[connection] = task[0], task[1][1]

        def receive(connection: Connection) -> Outcome | tuple[int, float]:
            """What a process sends; one that was killed gives its place to another."""
            try:
                return connection.recv()  # type: ignore[no-any-return]
            except (EOFError, OSError):
                processes.pop(connection).join()
                signal, killed = interrupts.caught, "the process of this trial was killed"
                return Outcome("", None, 0, signal or "error", bool(signal), "" if signal else killed)

        with Interrupts() as interrupts:
            for _ in range(self._jobs):
                give(None)
            told = ""
            while at_work:
                if interrupts.caught and not told:
                    told = interrupts.caught
                    pass_on(told, processes.values())
                for connection in [one for one in wait(list(at_work), LOOK) if isinstance(one, Connection)]:
                    number, report = at_work[connection]
                    answer = receive(connection)
                    if isinstance(answer, Outcome):
                        del at_work[connection]
                        done(number, answer)
                        give(connection if connection in processes else None)
                    else:
                        with suppress(OSError):
                            connection.send(report(*answer))
        for process in processes.values():
            process.join()


def _work(parent: Connection, train: Train) -> None:
    """Carry out one task after another."""

    def report(point: int, mean_return: float) -> bool:
        parent.send((point, mean_return))
        return bool(parent.recv())

    with suppress(KeyboardInterrupt):  # between two tasks
        while (arguments := parent.recv()) is not None:
            parent.send(attempt(train, arguments, report))
