"""How many worker processes to use, by trying one environment: what a step of it takes, and whether it computes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any, NamedTuple

from headrace.core.cores import cores

TRIED = 0.3  # s of steps, at most
FEWEST, MOST = 5, 200  # steps tried
AWAKE, ASLEEP = 15e-6, 80e-6  # s a row costs with workers that wait awake or asleep: benchmarks/worker_sync.py
EACH = 15e-6  # s a row costs more with each worker
WORTH = 1.1  # so many times faster must a row be for more workers: fewer leave cores to the learner
WAITS = 0.5  # share of steps that go to sleep, or of a core's time, from which worlds count as waiting for others


class StepTime(NamedTuple):
    """What a step of one environment takes."""

    seconds: float  # in the mean, resets included
    busy: float  # share of it during which a core was busy


def step_time(factory: Callable[[], Any], seed: int = 0) -> StepTime:
    """Try an environment with random actions, in this process. Several agents act by a dict, as in PettingZoo."""
    world = factory()
    try:
        actions = _actions(world)
        world.reset(seed=seed)
        actions_drawn = [actions() for _ in range(MOST)]
        steps, began, used, slept = 0, perf_counter(), process_time(), _sleeps()
        while steps < FEWEST or (steps < MOST and perf_counter() - began < TRIED):
            terminated, truncated = world.step(actions_drawn[steps])[2:4]
            steps += 1
            if _ended(terminated) or _ended(truncated):
                world.reset()
        seconds, used, slept = perf_counter() - began, max(process_time() - used, 1e-9), _sleeps() - slept
        # one that never sleeps and yet had not the whole core was kept from it by other programs
        if slept < steps * WAITS:
            return StepTime(used / steps, 1.0)
        return StepTime(seconds / steps, min(1.0, used / seconds))
    finally:
        world.close()


def _sleeps() -> int:
    """How often this process has given up its core of itself."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _actions(world: Any) -> Callable[[], Any]:
    """A function that draws an action."""
    if not hasattr(world, "possible_agents"):
        world.action_space.seed(0)
        sample: Callable[[], Any] = world.action_space.sample
        return sample
    spaces = {agent: world.action_space(agent) for agent in world.possible_agents}
    return lambda: {agent: space.sample() for agent, space in spaces.items()}


def _ended(flag: Any) -> bool:
    return all(flag.values()) if isinstance(flag, dict) else bool(flag)


def row_seconds(workers: int, num_envs: int, step: StepTime) -> float:
    """Seconds of one step of all environments; workers: 0 for none, one after another in the learner's process."""
    if workers == 0:
        return num_envs * step.seconds
    crowding = max(1.0, step.busy * workers / cores())
    waiting = AWAKE if workers < cores() else ASLEEP
    return -(-num_envs // workers) * step.seconds * crowding + waiting + EACH * workers


def choose(step: StepTime, num_envs: int, fewest: int = 0) -> tuple[int, str]:
    """The number of workers, and why, in words: the fewest with which a row takes hardly longer than with the best.

    What the policy takes is the same for all, since it and the workers take turns. fewest: 0 where none will do.
    """
    most = num_envs if step.busy < WAITS else min(num_envs, cores())
    times = {workers: row_seconds(workers, num_envs, step) for workers in range(fewest, max(most, fewest) + 1)}
    best = min(times.values())
    chosen = next(workers for workers, seconds in times.items() if seconds <= WORTH * best)
    others = {0, 1, most} & times.keys() - {chosen}
    beside = ", ".join(f"{times[other] * 1e3:.3g} ms with {_named(other)}" for other in sorted(others))
    kind = "waiting" if step.busy < WAITS else "computing"
    words = f"{_named(chosen)}: a step of one world takes {step.seconds * 1e3:.3g} ms, {kind}; "
    words += f"one of all {num_envs} is to take {times[chosen] * 1e3:.3g} ms" + (f", and {beside}" if beside else "")
    return chosen, words


def tried(factory: Callable[[], Any], num_envs: int, fewest: int = 0) -> int:
    """choose() after trying one environment here; a word on stderr tells why."""
    chosen, words = choose(step_time(factory), num_envs, fewest)
    print(words, file=sys.stderr, flush=True)
    return chosen


def _named(workers: int) -> str:
    return {0: "no workers", 1: "1 worker"}.get(workers, f"{workers} workers")
