"""Trials of a sweep: trainings in this process or in others that report their learning curves and may be pruned."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.cli.several.agents import Agent
from headrace.core.processes.state import shown
from headrace.core.text import is_message
from headrace.evaluation.playing import Evaluation
from headrace.runs.run import Run
from headrace.runs.task_processes import NotTogether, Processes
from headrace.runs.task_threads import Threads
from headrace.training.iteration import IterationResult
from headrace.training.loop import Training
from headrace.training.multi_agent import NOT_COMPARED

REPORTS = 20  # number of points of a learning curve at which trials are compared
NO_SELF_PLAY = f"self_play=True is nothing for the trials of a sweep: {NOT_COMPARED}"
PRUNED = "pruned"  # reason for the end of a pruned run
Train = Callable[..., tuple[Run, Evaluation | None]]
Report = Callable[[int, float], bool]  # (point of the curve, mean return there) -> whether to prune


@dataclass(frozen=True)
class Outcome:
    """The result of a trial."""

    path: str
    score: float | None  # mean return after training; None if training did not finish
    steps: int
    reason: str  # reason for its end
    interrupted: bool = False
    error: str = ""  # its exception
    follows: Mapping[str, Any] = field(default_factory=dict)  # settings that followed from those of this trial


def carry_out(train: Train, arguments: Sequence[str], report: Report) -> Outcome:
    """Train with these arguments. train: headrace.cli.train.trained."""
    reported, follows = 0, dict[str, Any]()

    def each(training: Training, row: IterationResult) -> None:
        nonlocal reported
        if training.trainer.config.self_play:  # set in a file
            raise ValueError(NO_SELF_PLAY)
        follows.update(training.trainer.plan.derived)
        point = int(training.trainer.progress() * REPORTS)
        if point > reported and row.mean_return is not None:
            reported = point
            if report(point, row.mean_return):
                training.stop(PRUNED)

    run, evaluation = train(list(arguments), quiet=True, each=each)
    score = None if evaluation is None else evaluation.mean
    return Outcome(str(shown(run.path)), score, run.steps, run.reason, run.interrupted, follows=follows)


def attempt(train: Train, arguments: Sequence[str], ask: Callable[[tuple[int, float]], bool]) -> Outcome:
    """Call carry_out(). A training that fails is an outcome, too. ask: a Report with both values in one argument."""

    def report(point: int, mean_return: float) -> bool:
        return ask((point, mean_return))

    try:
        return carry_out(train, arguments, report)
    except NotTogether:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}" if is_message(error) else traceback.format_exc()
        return Outcome("", None, 0, "error", error=text)


def _at_once(report: Report) -> Callable[[tuple[int, float]], bool]:
    """A Report with both values in one argument."""
    return lambda point: report(*point)


class Here:
    """Runs trials in this process, one after another."""

    def __init__(self, train: Train) -> None:
        self._train = train

    def run(self, tasks: Iterator[tuple[Sequence[str], Report]], done: Callable[[int, Outcome], None]) -> None:
        """Carry out tasks until there are no more, or one is interrupted; done: called with its number and outcome."""
        for number, (arguments, report) in enumerate(tasks):
            outcome = attempt(self._train, arguments, _at_once(report))
            done(number, outcome)
            if outcome.interrupted:
                return


class Elsewhere:
    """Runs trials at the same time, in processes that share the cores or in threads of this process."""

    def __init__(self, train: Train, jobs: int, together: bool = False) -> None:
        if together:
            self._processes: Processes | Threads = Threads(partial(attempt, partial(train, make=Agent)), jobs, "trial")
        else:
            self._processes = Processes(partial(attempt, train), jobs, "trial")

    def run(self, tasks: Iterator[tuple[Sequence[str], Report]], done: Callable[[int, Outcome], None]) -> None:
        """Carry out tasks as Here.run() does."""

        def end(number: int, outcome: Outcome | None, signal: str) -> None:
            killed = "" if signal else "the process of this trial was killed"
            done(number, outcome or Outcome("", None, 0, signal or "error", bool(signal), killed))

        with self._processes:
            self._processes.run(((arguments, _at_once(report)) for arguments, report in tasks), end)
