"""`headrace train ... --seeds 0-4`: the same training for several seeds, one after another or at the same time."""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean
from typing import Any

from headrace.cli.several.agents import Agent
from headrace.core.cores import cores
from headrace.core.processes.state import shown
from headrace.core.terminal import say
from headrace.core.text import is_message, plain_table
from headrace.evaluation.playing import Evaluation
from headrace.runs.run import Run
from headrace.runs.signals import Interrupts
from headrace.runs.task_processes import LOOK, no_question, pass_on
from headrace.runs.task_threads import Threads

Train = Callable[..., tuple[Run, Evaluation | None]]
HEADINGS = ("seed", "return", "evaluated", "success rate", "steps", "seconds", "ended by", "run")


@dataclass(frozen=True)
class Done:
    """The result of one seed's training."""

    seed: int
    path: Path
    mean_return: float | None  # of its last training episodes
    evaluated: float | None  # mean return of episodes after training
    success_rate: float | None  # of its last training episodes, if log_info has is_success
    steps: int
    seconds: float
    reason: str
    interrupted: bool
    failed: str = ""  # the exception of one of several agents in a process


def main(arguments: list[str], train: Train) -> None:
    """Train for all seeds, and print a table. train: headrace.cli.train.trained."""
    together = "--together" in arguments
    rest, given = _without([word for word in arguments if word != "--together"], "--seeds")
    rest, jobs = _without(rest, "--jobs")
    seeds, number = parsed(given or ""), _jobs(jobs, cores() if together else 1)
    for flag in ("--seed", "--resume"):
        if _without(rest, flag)[1] is not None:
            raise ValueError(f"--seeds trains anew for each seed: leave out {flag}")
    number = min(number, len(seeds))
    if together:
        done = _together(train, rest, seeds, number)
    else:
        done = _in_turn(train, rest, seeds) if number == 1 else _side_by_side(train, rest, seeds, number)
    done.sort(key=lambda one: seeds.index(one.seed))
    say(plain_table([HEADINGS, *map(_cells, done)]))
    for name in ("mean_return", "evaluated", "success_rate"):
        if values := [value for one in done if (value := getattr(one, name)) is not None]:
            say(f"{name.replace('_', ' ')}: mean {fmean(values):.4g}, lowest {min(values):.4g}")
    if missing := sorted({*seeds} - {one.seed for one in done}):
        say(f"not begun: seeds {', '.join(map(str, missing))}")
    if done:
        say(f"  headrace plot {shlex.join(str(one.path) for one in done)}")
    if failed := [f"seed {one.seed}: {one.failed}" for one in done if one.failed]:
        raise RuntimeError("\n".join(["some agents have failed", *failed]))


def parsed(text: str) -> list[int]:
    """The seeds of "0-4", "1,5,7" or "0-2,9". Raises ValueError for another text."""
    seeds: list[int] = []
    for part in text.split(","):
        if not (found := re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())):
            raise ValueError(f"--seeds takes numbers and ranges, such as 0-4 or 1,5,7, got {text!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"--seeds has the range {part.strip()!r}, which ends before it begins")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds names a seed twice: {text!r}")
    return seeds


def _jobs(text: str | None, otherwise: int) -> int:
    if text is not None and not (text.isdecimal() and int(text)):
        raise ValueError(f"--jobs must be a number of trainings at a time, at least 1, got {text!r}")
    return int(text or otherwise)


def _without(arguments: Sequence[str], flag: str) -> tuple[list[str], str | None]:
    """Remove a flag and its value from the arguments. Returns the rest and the value, None without the flag."""
    rest, value, words = list[str](), None, iter(arguments)
    for word in words:
        if word == flag:
            value = next(words, "")
        elif word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
        else:
            rest.append(word)
    return rest, value


def _in_turn(train: Train, arguments: Sequence[str], seeds: Sequence[int]) -> list[Done]:
    done: list[Done] = []
    for seed in seeds:
        say(f"seed {seed}")
        done.append(_train(train, arguments, seed))
        if done[-1].interrupted:
            break
    return done


def _side_by_side(train: Train, arguments: Sequence[str], seeds: Sequence[int], jobs: int) -> list[Done]:
    """Train each seed in a process of its own. On a signal, trainings that have begun save and end; no more begin."""
    os.environ.setdefault("HEADRACE_THREADS", str(max(1, cores() // jobs)))
    waiting, running, done = [*seeds], dict[Connection, BaseProcess](), list[Done]()
    with Interrupts() as interrupts:
        while running or (waiting and not interrupts.caught):
            while waiting and len(running) < jobs and not interrupts.caught:
                connection, process = _started(train, _quiet(arguments), waiting.pop(0))
                running[connection] = process
            told = interrupts.caught
            ready = wait(list(running), LOOK)
            for connection in [one for one in running if one in ready]:
                process = running.pop(connection)
                answer = _answer(connection, process, running.values(), interrupts)
                if answer is not None:
                    done.append(answer)
                    say(f"seed {answer.seed} ended: {answer.path}")
            if interrupts.caught and not told:
                pass_on(interrupts.caught, running.values())
    return done


def _quiet(arguments: Sequence[str]) -> list[str]:
    """Arguments of trainings that run at the same time: without progress display, unless the user asks for it."""
    return [*arguments, *([] if "--progress" in arguments else ["--progress", "none"])]


def _together(train: Train, arguments: Sequence[str], seeds: Sequence[int], jobs: int) -> list[Done]:
    """Train each seed in a thread of its own. A failure ends one training, wrong settings end all."""
    done: list[Done] = []

    def ended(_: int, one: Done, signal: str) -> None:
        done.append(one)
        say(f"seed {one.seed} ended{f' by {one.reason}' if one.failed else ''}: {one.path}")

    with Threads(partial(_agent, train, _quiet(arguments)), jobs, "seed") as threads:
        threads.run(((seed, no_question) for seed in seeds), ended)
    return done


def _agent(train: Train, arguments: Sequence[str], seed: int, ask: object) -> Done:
    """Train for one seed, at the same time as others."""
    made = list[Agent]()

    def make(*names: str, **options: Any) -> Agent:
        made.append(Agent(*names, **options))
        return made[-1]

    try:
        return _train(partial(train, make=make), arguments, seed)
    except Exception as error:
        if not made or (folder := made[-1].own_folder) is None:
            raise
        failed = str(error) if is_message(error) else traceback.format_exc()
        trainer = made[-1].trainer
        facts = (trainer.steps, trainer.seconds, type(error).__name__, False)
        return Done(seed, shown(folder), None, None, None, *facts, failed=failed)


def _started(train: Train, arguments: Sequence[str], seed: int) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, train, arguments, seed), name=f"seed {seed}")
    process.start()
    there.close()
    return here, process


def _child(answer: Connection, train: Train, arguments: Sequence[str], seed: int) -> None:
    """Train, and send a Done, or a text with the error."""
    with suppress(KeyboardInterrupt):  # before the training begins, so there is nothing to save
        try:
            answer.send(_train(train, arguments, seed))
        except Exception as error:
            lines = [str(error), *error.__notes__] if is_message(error) else [traceback.format_exc()]
            answer.send("\n".join(lines))


def _answer(
    connection: Connection, process: BaseProcess, others: Iterable[BaseProcess], interrupts: Interrupts
) -> Done | None:
    """The message of a process; None if a signal ended it before its training began. If it has failed, raises
    RuntimeError after the others have saved and ended."""
    try:
        found = connection.recv()
    except (EOFError, OSError):
        found = None
    process.join()
    if found is None:
        if interrupts.caught:
            return None
        found = f"the process of {process.name} was killed"
    if isinstance(found, Done):
        return found
    pass_on("SIGTERM", others)
    for other in others:
        other.join()
    raise RuntimeError(found)


def _train(train: Train, arguments: Sequence[str], seed: int) -> Done:
    """Train for one seed."""
    try:
        run, evaluation = train([*arguments, "--seed", str(seed)], quiet=True)
    except Exception as error:
        error.add_note(f"(seed {seed})")
        raise
    evaluated = None if evaluation is None else evaluation.mean
    mean = run.metrics.get("return")
    success = run.metrics.get("success_rate")
    return Done(seed, shown(run.path), mean, evaluated, success, run.steps, run.seconds, run.reason, run.interrupted)


def _cells(one: Done) -> tuple[str, ...]:
    numbers = (one.mean_return, one.evaluated, one.success_rate)
    means = ["" if number is None else f"{number:.4g}" for number in numbers]
    return str(one.seed), *means, f"{one.steps:,}", f"{one.seconds:.1f}", one.reason, str(one.path)
