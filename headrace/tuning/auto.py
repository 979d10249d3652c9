"""Settings chosen for the machine: workers, actors and device if "auto", and num_envs if none is registered.

Measurements of `headrace tune` decide. Without them, actors and workers are tried for a short time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from headrace import envs
from headrace.algorithms.base import Algorithm, algorithm_classes
from headrace.core.cores import cores
from headrace.core.device import kernel_threads
from headrace.core.terminal import tell
from headrace.core.types import EnvArgument, Settings
from headrace.envs.sources import EnvSpec
from headrace.envs.workers.tuning import StepTime, choose, row_seconds
from headrace.training.config import read_toml
from headrace.training.plan import TrainPlan, settle, stepped_by
from headrace.tuning.candidates import Candidate, Task
from headrace.tuning.measure import Make, Pools, Speedometer, raise_first
from headrace.tuning.search import Search, simplest
from headrace.tuning.store import Entry, Measured, load

MOST, SHARE = 10.0, 0.05  # largest s of trials, and largest fraction of the run
START = 1.0  # approximate s for the start of a candidate's processes
FIRST = 1.0  # s of trying one process, which shows how long the run will take
WORTH = 1.1  # least speed-up for which more processes or another number of environments are chosen
SIMILAR = 2.0  # largest ratio of numbers of environments for which a measurement with one applies to the other
PLACING = {"workers", "actors", "backend", "cluster"}  # settings that decide where environments are stepped
# settings in which a measurement must agree with a training
SHARED = ("collection", "threads", "precision", "backend")


def settled(
    algorithm: str | Algorithm | None,
    env: EnvArgument,
    config: str | Path | None,
    agent_info: Any,
    options: Settings,
    make: Make,
) -> TrainPlan:
    """Make a plan with settle(), replacing "auto" by numbers and a device. The choice and its reason are printed on
    stderr.

    make: makes the trainer of a plan. Raises as settle(), and ValueError for actors="auto" with environments or an
    algorithm made by the user.
    """
    plan = settle(algorithm, env, config, agent_info, options)
    entry = load(plan) if _may_use(plan) else None
    given = {**(read_toml(config) if config else {}), **options}
    if entry is not None and "num_envs" not in given and not _has_defaults(plan):
        plan = _sized(plan, entry, lambda number: settle(algorithm, env, config, agent_info, options | number))
    if entry is not None and plan.config.device == "auto" and torch.cuda.is_available():
        plan = _on_device(plan, entry)
    if _leaves_workers(plan):
        plan = _with(plan, {"workers": "auto"})
    return _decided(plan, entry, make)


def _leaves_workers(plan: TrainPlan) -> bool:
    """Tell whether the time of a step decides the number of workers. This is so for an environment of Gymnasium's
    registry if no setting decides where it is stepped. Environments and wrappers of the user's own stay in this
    process, where breakpoints and shared objects work. So do all environments if trainings share the cores."""
    config = plan.config
    if plan.source is None or not isinstance(plan.algorithm, str) or not config.registered or config.wrapper:
        return False
    if (plan.given.keys() | plan.registered.keys()) & PLACING:
        return False
    shared = max(config.learners, config.shards or 1) > 1 or config.collection != "sync" or config.actors is not None
    if shared or config.num_envs == 1 or cores() == 1 or kernel_threads() < cores():
        return False
    entry = envs.entry_of(plan.source)
    module = getattr(entry, "entry_point", None)
    if stepped_by(plan, config.num_envs)[0] != plan.source:  # by compiled loops, in threads
        return False
    return isinstance(entry, EnvSpec) and isinstance(module, str) and not module.startswith("__main__")


def _may_use(plan: TrainPlan) -> bool:
    """Tell whether a training uses measurements: not with --no-registered, several learners or a cluster."""
    config = plan.config
    return config.registered and config.learners == 1 and config.cluster is None


def _has_defaults(plan: TrainPlan) -> bool:
    assert plan.source is not None and isinstance(plan.algorithm, str)
    return bool(envs.spec(plan.source).defaults.get(algorithm_classes(plan.algorithm).algorithm.name))


def _sized(plan: TrainPlan, entry: Entry, settle_with: Any) -> TrainPlan:
    """Set the plan's number of environments to the fastest one measured for the way in which they step, if any."""
    config = plan.config
    automatic = "auto" in (config.workers, config.actors)
    rows = [row for row in entry.measured if _fits(row, plan)]
    if automatic and (chosen := _row_of(entry, entry.choice)) in rows:
        best: Measured | None = chosen
    else:
        best = max(rows, key=lambda row: row.steps_per_second, default=None)
    if best is None or best.settings["num_envs"] == config.num_envs:
        return plan
    usual = entry.fastest(**{**best.settings, "num_envs": config.num_envs})
    if usual and best.steps_per_second < WORTH * usual.steps_per_second:
        return plan
    number = int(best.settings["num_envs"])
    against = f", {usual.steps_per_second:,.0f} with {config.num_envs}" if usual else ""
    _say(f"num_envs={number}", best, entry, against)
    result: TrainPlan = settle_with({"num_envs": number})
    return result


def _row_of(entry: Entry, settings: Settings) -> Measured | None:
    return next((row for row in entry.measured if row.settings == settings), None)


def _on_device(plan: TrainPlan, entry: Entry) -> TrainPlan:
    """Set the plan's device to the fastest one."""
    rows = [row for row in entry.measured if _fits(row, plan) and _as_many(row, plan)]
    devices = {row.settings["device"] for row in rows}
    if len(devices) < 2:  # the other one was not measured
        return plan
    best = max(rows, key=lambda row: row.steps_per_second)
    other = max(
        (row for row in rows if row.settings["device"] != best.settings["device"]), key=lambda row: row.steps_per_second
    )
    against = f", {other.steps_per_second:,.0f} on {other.settings['device']}"
    _say(f"device={best.settings['device']}", best, entry, against)
    collect = plan.config.collect_device or best.settings["collect_device"]
    return replace(plan, config=replace(plan.config, device=best.settings["device"], collect_device=collect))


def _decided(plan: TrainPlan, entry: Entry | None, make: Make) -> TrainPlan:
    """Replace "auto" in the plan by a number of actors or workers, or neither."""
    config = plan.config
    if "auto" not in (config.actors, config.workers):
        return plan
    name = "actors" if config.actors == "auto" else "workers"
    if plan.source is None or not isinstance(plan.algorithm, str):
        if name == "workers":
            return plan  # make() estimates their number
        raise ValueError('actors="auto" tries environments and algorithms that it makes by name: give a number')
    task = Task.of(plan, frozenset(Candidate.of(config).settings) - {"actors", "workers"})
    fixed = task.compiled and (name == "workers" or config.collection == "sync")
    if task.vector or fixed or (name == "workers" and config.backend not in ("auto", "workers")):
        if name == "actors":
            tell("actors=auto: none: compiled environments and vectors are fastest in the learner's process")
        return _with(plan, {"workers": None, "actors": None})
    if entry is not None:
        rows = [row for row in entry.measured if _fits(row, plan) and _as_many(row, plan)]
        alone = [row for row in rows if not (row.settings["workers"] or row.settings["actors"])]
        if len(rows) > len(alone):
            best = max(rows, key=lambda row: row.steps_per_second)
            against = f", {alone[0].steps_per_second:,.0f} in one process" if alone else ""
            _say(f"{name}=auto: {_processes(best.settings)}", best, entry, against)
            return _with(plan, best.settings)
    if name == "workers" and "workers" not in plan.given and task.step is not None:
        return _by_step(plan, task.step)
    return _tried(plan, task, name, make)


def _by_step(plan: TrainPlan, step: StepTime) -> TrainPlan:
    """Set the plan's number of workers from the time of a step, if the run is long enough for them to save the time of
    starting them. Trials of trainings would delay each first run by seconds."""
    num_envs = plan.config.num_envs
    chosen = choose(step, num_envs)[0]
    saved = 1 - row_seconds(chosen, num_envs, step) / row_seconds(0, num_envs, step)  # of the time to step
    worth = chosen > 0 and saved * _expected(plan, 1 / step.seconds) >= START
    number = chosen if worth else None
    if number is None and not plan.assumed:  # nothing changes, so there is no message
        return _with(plan, {"workers": None})
    registered = {**plan.registered, **({} if number is None else {"workers": number})}
    facts = (*plan.facts, f"{step.seconds * 1e3:.3g} ms a step on {cores()} cores")
    return replace(_with(plan, {"workers": number}), registered=registered, facts=facts)


def _fits(row: Measured, plan: TrainPlan) -> bool:
    """Tell whether a training may use a measured combination, for any number of environments."""
    config, settings = plan.config, row.settings
    if any(settings[name] != getattr(config, name) for name in SHARED):
        return False
    if config.device not in ("auto", settings["device"]) or (config.device == "auto" and not _exists(settings)):
        return False
    free = {"workers": config.workers == "auto" or config.actors == "auto", "actors": config.actors == "auto"}
    return all(settings[name] == getattr(config, name) for name in free if not free[name])


def _exists(settings: Settings) -> bool:
    return settings["device"] == "cpu" or torch.cuda.is_available()


def _as_many(row: Measured, plan: TrainPlan) -> bool:
    """Tell whether a measurement has about as many environments as the plan, and not more processes than that."""
    number, now = row.settings["num_envs"], plan.config.num_envs
    processes = row.settings["actors"] or row.settings["workers"] or 1
    exact = plan.config.collection != "async" or now % processes == 0
    return exact and processes <= now and max(number, now) <= SIMILAR * min(number, now)


def _tried(plan: TrainPlan, task: Task, name: str, make: Make) -> TrainPlan:
    """Try the placements for at most MOST s and SHARE of the run."""
    candidates = [one for one in task.placements() if name == "actors" or not one["actors"]]
    first = candidates[0]
    if len(candidates) == 1:
        tell(f"{name}=auto: {first.placed()}: there is nothing else to try")
        return _with(plan, first.settings)
    with Pools() as pools:
        speeds = Speedometer(lambda settings: _with(plan, settings), make, pools, lambda: False)
        search = Search(task, speeds, MOST, lambda text: None)
        began = perf_counter()
        rate = 1 / task.step.seconds if task.step is not None and not first.processes else 0.0
        if not first.processes and task.seconds(first) < FIRST:
            row = search.try_one(first, 1.0)
            rate = row.rate or rate
        expected = _expected(plan, rate)
        search.began, search.seconds = perf_counter(), min(MOST, SHARE * expected - (perf_counter() - began))
        if search.seconds < START * (len(candidates) - len(search.rows)):
            short = f"the run takes about {expected:.0f} s, too short to try processes"
            return _untried(plan, task, name, first, short)
        search.try_all(candidates, 1.0)
        search.halve()
    ranked = search.ranked()
    if not ranked and all(row.error is None for row in search.rows):
        return _untried(plan, task, name, first, "an iteration takes too long to try processes")
    if not ranked:
        raise_first(search.rows)
    best = simplest(ranked, task.base)
    alone = next((row for row in ranked if not row.candidate.processes), None)
    if alone is not None and best.rate < WORTH * alone.rate:
        best = alone
    speeds_found = ", ".join(f"{row.candidate.placed()} {row.rate:,.0f} steps/s" for row in search.rows if row.rates)
    tell(f"{name}=auto: {best.candidate.placed()}: {speeds_found}")
    return _with(plan, best.candidate.settings)


def _untried(plan: TrainPlan, task: Task, name: str, first: Candidate, reason: str) -> TrainPlan:
    """Choose without trials, by the time of one environment's step. reason: why there are no trials."""
    why = f"{reason}; `headrace tune` measures once for all runs"
    if name == "workers" and task.step is not None:
        number, text = choose(task.step, plan.config.num_envs)
        tell(f"workers=auto: {text} ({why})")
        return _with(plan, {"workers": number or None, "actors": None})
    tell(f"{name}=auto: {first.placed()}: {why}")
    return _with(plan, first.settings)


def _expected(plan: TrainPlan, rate: float) -> float:
    """Largest time that the run will take, s. rate: steps/s, 0 if unknown."""
    total = plan.config.total_steps if rate else None
    limits = [plan.config.max_seconds, total and total / rate]
    return min([limit for limit in limits if limit is not None], default=float("inf"))


def _with(plan: TrainPlan, settings: Settings) -> TrainPlan:
    """Set the plan's numbers of processes, or existing processes."""
    given = {name: settings.get(name) for name in ("workers", "actors")}
    pools = [pool for pool in given.values() if hasattr(pool, "acquire")]
    numbers: Any = {name: getattr(value, "number", value) for name, value in given.items()}
    return replace(plan, config=replace(plan.config, **numbers), borrowed=pools[0] if pools else plan.borrowed)


def _processes(settings: Settings) -> str:
    number = settings["actors"] or settings["workers"]
    return f"{number} {'actors' if settings['actors'] else 'workers'}" if number else "one process"


def _say(what: str, row: Measured, entry: Entry, against: str) -> None:
    tell(f"{what}: measured by `headrace tune` on {entry.when}, {row.steps_per_second:,.0f} steps/s{against}")
