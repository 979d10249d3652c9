"""actors="auto": tries how the environments of a training are stepped fastest, with its own policy and learning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from time import perf_counter
from typing import Any

from headrace import envs
from headrace.core.cores import cores
from headrace.core.device import torch_threads, without_denormals
from headrace.core.terminal import tell
from headrace.envs import sources
from headrace.envs.construct import entry_of
from headrace.envs.workers.tuning import StepTime, choose, step_time
from headrace.training.build import build
from headrace.training.config import WRAPPING
from headrace.training.plan import TrainPlan
from headrace.training.warm_up import warm_up

MOST, SHARE = 10.0, 0.05  # s of trials at most, and fraction of the run that they may take
FIRST = 1.0  # s of trying one process, which says how long the run will take
START = 1.0  # s in which processes start, about
WAITING = 32  # actors for environments that wait rather than compute, at most
WORTH = 1.1  # times as fast as one process, below which processes are not worth it


def decided(plan: TrainPlan) -> TrainPlan:
    """The plan with a number of actors or workers, or neither, in place of actors="auto". Says why on stderr.

    Raises ValueError where that cannot be tried: for environments or an algorithm made by the user.
    """
    if plan.config.actors != "auto":
        return plan
    if plan.source is None or not isinstance(plan.algorithm, str):
        raise ValueError('actors="auto" tries environments and algorithms that it makes by name: give a number')
    if sources.is_kernel(entry_of(plan.source)) and plan.config.backend in ("auto", "cpu", "cuda", "torch"):
        return _compiled(plan)
    config = plan.config
    wrapping = {name: getattr(config, name) for name in WRAPPING}
    factory = envs.factory(plan.source, wrappers=config.wrapper, **wrapping, **config.env_kwargs)  # type: ignore[arg-type]
    step = step_time(factory, config.seed)
    if plan.config.collection != "sync":
        number = _even(plan, min(WAITING, plan.config.num_envs) if step.waits else cores() - 1)
        _say(f"{number} actors: a step of one environment takes {step.seconds * 1e3:.3g} ms, {_kind(step)}")
        return _with(plan, actors=number)
    return _fastest(plan, step)


def _compiled(plan: TrainPlan) -> TrainPlan:
    """Compiled environments are fastest where learning is; processes are for collecting at the same time alone."""
    if plan.config.collection == "sync":
        _say("none: compiled environments are fastest in the learner's process")
        return _with(plan)
    number = _even(plan, cores() - 1)
    _say(f"{number}: compiled environments compute, and one of {cores()} cores is left to the learner")
    return _with(plan, actors=number)


def _even(plan: TrainPlan, most: int) -> int:
    """The largest number of actors, up to `most`, of which each has as many environments: async needs that."""
    number = plan.config.num_envs
    return max(x for x in range(1, max(1, min(most, number)) + 1) if number % x == 0)


def _fastest(plan: TrainPlan, step: StepTime) -> TrainPlan:
    """Try one process, workers and actors in turn, as long as the run is worth it."""
    began = perf_counter()
    num_steps = plan.algorithm_config.num_steps
    inline = 1 / step.seconds  # where a rollout would take too long to try
    if num_steps * plan.config.num_envs * step.seconds < FIRST:
        inline = _speed(_with(plan), FIRST)
    tried = {"one process": (inline, _with(plan))}
    left = min(MOST, SHARE * _expected(plan, inline)) - (perf_counter() - began)
    others = list(_others(plan, step))
    if left < START * len(others):
        _say(f"none: in one process the run takes about {_expected(plan, inline):.0f} s, too short to try processes")
        return _with(plan)
    for name, other in others:
        tried[name] = _speed(other, left / len(others)), other
    best = max(tried, key=lambda name: tried[name][0])
    if tried[best][0] < WORTH * inline:
        best = "one process"
    _say(f"{best}: " + ", ".join(f"{name} {speed:,.0f} steps/s" for name, (speed, _) in tried.items()))
    return tried[best][1]


def _others(plan: TrainPlan, step: StepTime) -> Iterator[tuple[str, TrainPlan]]:
    workers, _ = choose(step, plan.config.num_envs, fewest=1)
    yield f"workers={workers}", _with(plan, workers=workers)
    yield f"actors={workers}", _with(plan, actors=workers)


def _speed(plan: TrainPlan, seconds: float) -> float:
    """Steps per second of a training, learning included, measured until so long after its processes were started."""
    until = perf_counter() + seconds
    own: Any = plan.algorithm_config
    if "learning_starts" in {field.name for field in fields(own)}:
        plan = replace(plan, algorithm_config=replace(own, learning_starts=1))
    with ExitStack() as stack, torch_threads(plan.config.threads), without_denormals():
        parts = build(plan, stack)
        warm_up(parts)
        parts.algorithm.prepare(parts.collector.rollout)
        parts.collector.warm_up()
        rows, updates, began = 0, 0, perf_counter()
        while not rows or perf_counter() < until:
            rollout = parts.collector.collect()
            parts.algorithm.update(rollout, 0.0)
            parts.collector.publish()
            rows, updates = rows + rollout.num_steps * rollout.num_envs, updates + 1
            if updates == 1 and 3 * (perf_counter() - began) < until - perf_counter():
                rows, began = 0, perf_counter()  # the first one is slower, and there is time for others
        return rows / (perf_counter() - began)


def _expected(plan: TrainPlan, speed: float) -> float:
    """Seconds that the run will take at most."""
    limits = [plan.config.max_seconds, plan.config.total_steps and plan.config.total_steps / speed]
    return min([limit for limit in limits if limit is not None], default=float("inf"))


def _with(plan: TrainPlan, actors: int | None = None, workers: int | None = None) -> TrainPlan:
    """The plan with these numbers of processes."""
    return replace(plan, config=replace(plan.config, actors=actors, workers=workers))


def _kind(step: StepTime) -> str:
    return "waiting" if step.waits else f"computing, and one of {cores()} cores is left to the learner"


def _say(text: str) -> None:
    tell(f"actors=auto: {text}")
