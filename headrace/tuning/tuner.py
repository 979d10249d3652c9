"""tune(): finds the settings with which a training is fastest on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.algorithms.base import algorithm_classes, is_offline
from headrace.core.processes.state import same_folder
from headrace.core.types import EnvArgument, Json, Settings
from headrace.runs.signals import Interrupts
from headrace.training.config import read_toml, to_toml
from headrace.training.plan import TrainPlan, saved_settings, settle
from headrace.training.trainer import Trainer
from headrace.tuning import store
from headrace.tuning.candidates import TRIED, Task, different
from headrace.tuning.measure import Interrupted, Pools, Row, Speedometer, raise_first
from headrace.tuning.race import Race, finalists
from headrace.tuning.report import reason, table
from headrace.tuning.search import Search

LEAST = 5.0  # s
BY_STEPS = 0.55  # share of the time for measuring steps per second, if times to a return are also compared


@dataclass(frozen=True)
class Tuning:
    """The result of tune(). str() of it is a table and the choice with its reason."""

    settings: Json  # for train(): the chosen and the given settings
    rows: tuple[Row, ...]  # all candidates, in the order in which they were tried
    chosen: Row
    reason: str  # in a sentence
    seconds: float
    interrupted: bool  # by Ctrl-C or another signal
    kept: Path | None  # the file that stores it for later trainings; None if the environment has no name
    named: Json  # names of the algorithm and the environment

    def toml(self) -> str:
        """The settings as a file for `headrace train --config`."""
        comment = "\n".join(f"# {line}" for line in (f"headrace tune, {time.strftime('%Y-%m-%d')}", self.reason))
        return f"{comment}\n{to_toml(**{name: value for name, value in self.named.items() if value}, **self.settings)}"

    def __str__(self) -> str:
        return f"{table(self.rows, self.chosen)}\n\n{self.reason}"


@same_folder()
def tune(
    algorithm: str | None = None,
    env: EnvArgument = None,
    *,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    config: str | Path | None = None,
    watch: Callable[[str], None] | None = None,
    **options: Any,
) -> Tuning:
    """Find the fastest settings for a training on this machine: workers, actors, modes, number of environments,
    threads, devices.

        tuning = hr.tune("ppo", "LunarLander-v3", seconds=60)
        run = hr.train("ppo", "LunarLander-v3", **tuning.settings)

    Whole iterations are measured in steps per second. Then (by="return") the fastest few that learn in different ways
    are trained to the same return: `target_return`, or one that the first of them rises to. A candidate that fails is a
    row with the reason. Ctrl-C ends the search with the best result so far. The result is stored for this machine.
    workers="auto", actors="auto" and device="auto" use it, and so does the number of environments if no settings are
    registered.

    algorithm: its name. env: as for make(). seconds: total time, without starting processes and compiling. config: a
    TOML file. options: as for train(); settings given here or in config are not changed. watch: called with a line
    after each measurement.
    Raises TypeError, ValueError for wrong settings, and the exception of an environment that fails in every candidate.
    """
    if not seconds >= LEAST:
        raise ValueError(f"seconds must be at least {LEAST:g}, got {seconds!r}")
    if by not in ("return", "steps"):
        raise ValueError(f"by must be 'return' or 'steps', got {by!r}")
    given = {**(read_toml(config) if config else {}), **options}
    config = config and Path(config).absolute()
    plan = _checked(settle(algorithm, env, config, None, options))

    def settled(settings: Settings) -> TrainPlan:
        return settle(plan.algorithm, plan.env, config, None, {**options, **settings})

    began = time.perf_counter()
    with Interrupts() as interrupts, Pools() as pools:
        speeds = Speedometer(settled, Trainer.of, pools, lambda: bool(interrupts.caught), plan.config.seed)
        task = Task.of(plan, frozenset(name for name in TRIED if given.get(name, "auto") != "auto"))
        search = Search(task, speeds, seconds * (BY_STEPS if by == "return" else 1.0), watch or _ignore)
        search.run()
        chosen, target = _chosen(search), None
        if by == "return" and not search.interrupted:
            chosen, target = _by_return(search, plan, seconds)
    text = reason(search.rows, chosen, search.task, target)
    if target is None and by == "return":
        text += f"; by steps/s alone: {_why_not(search)}"
    kept = store.save(plan, _entry(search.rows, chosen))
    settings = _others(given) | different(chosen.candidate.settings, plan.config)
    names = saved_settings(plan, plan.config, None, None)
    return Tuning(
        *(settings, tuple(search.rows), chosen, text, time.perf_counter() - began, search.interrupted, kept),
        {name: names[name] for name in ("algorithm", "env")},
    )


def _chosen(search: Search) -> Row:
    """The fastest row. If nothing could be measured, raises the error, or KeyboardInterrupt."""
    best = search.best()
    if best is None and search.interrupted:
        raise KeyboardInterrupt
    return best or raise_first(search.rows)


def _others(given: Settings) -> Json:
    """Given settings that are not among those tried."""
    return {name: value for name, value in given.items() if name not in (*TRIED, "algorithm", "env")}


def _by_return(search: Search, plan: TrainPlan, seconds: float) -> tuple[Row, float | None]:
    """The row that reaches a return first, and this return. If that cannot be decided, the fastest row and None."""
    left = seconds - (time.perf_counter() - search.began)
    race = Race(search.speeds, left, plan.config.target_return, plan.config.seed, search.say)
    try:
        winner = race.run(finalists(search.ranked(), search.task.base))
        if winner is not None:
            return winner, race.target
        search.seconds = seconds
        search.run()
    except Interrupted:
        search.interrupted = True
    return _chosen(search), None


def _checked(plan: TrainPlan) -> TrainPlan:
    """Check that tune() can make the plan's parts many times. Raises ValueError if not."""
    config = plan.config
    if not isinstance(plan.algorithm, str):
        raise ValueError("tune() makes the algorithm many times: give its name, such as 'ppo'")
    if is_offline(algorithm_classes(plan.algorithm).algorithm):
        raise ValueError(
            f"tune() tries how environments are stepped, and {plan.algorithm} steps none: leave tune() out"
        )
    if plan.source is None or plan.borrowed is not None:
        given = "environments" if plan.source is None else "Workers"
        raise ValueError(f"tune() makes environments and processes many times: give a name or a function, not {given}")
    if config.learners > 1 or config.cluster is not None:
        what = f"learners={config.learners}" if config.learners > 1 else f"cluster={config.cluster!r}"
        raise ValueError(f"tune() tries processes of this machine with one learner: leave out {what}")
    return plan


def _entry(rows: list[Row], chosen: Row) -> store.Entry:
    measured = tuple(store.Measured(row.candidate.settings, row.rate) for row in rows if row.rates)
    return store.Entry(time.strftime("%Y-%m-%d"), chosen.candidate.settings, measured)


def _why_not(search: Search) -> str:
    """Reason why times to a return were not compared."""
    if search.interrupted:
        return "it was ended before times to a return could be compared"
    if len(finalists(search.ranked(), search.task.base)) < 2:
        return "all that were measured learn the same way"
    return next((row.behind for row in search.rows if row.behind), "there was no time left for others")


def _ignore(_: str) -> None:
    """Stand in for a missing `watch`."""
