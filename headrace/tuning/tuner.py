"""tune(): tries where and how a training is fastest on this machine."""

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
BY_STEPS = 0.55  # of the time for steps per second, where the time to a return is compared too


@dataclass(frozen=True)
class Tuning:
    """What tune() found. str() of it is a table and the choice with its reason."""

    settings: Json  # that train() takes: those that were chosen, and those that were given
    rows: tuple[Row, ...]  # all that was tried, in that order
    chosen: Row
    reason: str  # in a sentence
    seconds: float
    interrupted: bool  # by Ctrl-C or another signal
    kept: Path | None  # the file in which it is kept for later trainings; None where the environment has no name
    named: Json  # algorithm and environment, by name

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
    """Try how a training is fastest on this machine: workers, actors, modes, number of environments, threads, devices.

        tuning = hr.tune("ppo", "LunarLander-v3", seconds=60)
        run = hr.train("ppo", "LunarLander-v3", **tuning.settings)

    Whole iterations are measured in steps per second, then (by="return") the few that are fastest and learn in
    different ways are trained to the same return: `target_return`, or one that the first of them rises to. A candidate
    that fails is a row with the reason. Ctrl-C ends it with the best until then. What was found is kept for this
    machine, and used by workers="auto", actors="auto", device="auto", and for the number of environments where no
    settings are registered.

    algorithm: its name. env: what make() takes. seconds: in all, but for starting processes and compiling.
    config: a TOML file; options: as for train(); what they set stays as it is. watch: is given a line after each
    measurement.
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
    """The fastest. Raises what kept all from being measured, or KeyboardInterrupt."""
    best = search.best()
    if best is None and search.interrupted:
        raise KeyboardInterrupt
    return best or raise_first(search.rows)


def _others(given: Settings) -> Json:
    """The settings that were given and not tried."""
    return {name: value for name, value in given.items() if name not in (*TRIED, "algorithm", "env")}


def _by_return(search: Search, plan: TrainPlan, seconds: float) -> tuple[Row, float | None]:
    """The row that reaches a return first, and that return; the fastest, and None, where that cannot be said."""
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
    """The plan, where tune() can make it again and again. Raises ValueError where not."""
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
    """Why no times to a return are compared."""
    if search.interrupted:
        return "it was ended before times to a return could be compared"
    if len(finalists(search.ranked(), search.task.base)) < 2:
        return "all that were measured learn the same way"
    return next((row.behind for row in search.rows if row.behind), "there was no time left for others")


def _ignore(_: str) -> None:
    """Without watch."""
