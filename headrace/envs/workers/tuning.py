"""Choose the number of worker processes by measuring one environment: the time of a step, and its computing share."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from time import perf_counter, process_time
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from headrace.core.cores import cores
from headrace.core.stopping import close
from headrace.core.terminal import tell
from headrace.data.spaces import Sample, drawable
from headrace.envs.base import MultiAgentEnv
from headrace.envs.gym.columns import as_flag

TRIED = 0.3  # s of steps to measure, at most
FEWEST, MOST = 5, 200  # steps measured
AWAKE, ASLEEP = 15e-6, 80e-6  # s per row with workers that poll or sleep: benchmarks/speed/worker_sync.py
EACH = 15e-6  # s per row and worker
WORTH = 1.1  # speed-up that more workers must give: fewer leave cores to the learner
WAITS = 0.5  # fraction of sleeping steps, or of a core's time, from which an environment counts as waiting


class StepTime(NamedTuple):
    """The time of a step of one environment."""

    seconds: float  # mean, resets included
    busy: float  # fraction of it during which a core was busy

    @property
    def waits(self) -> bool:
        """True if the environment spends most of a step waiting."""
        return self.busy < WAITS


def step_time(factory: Callable[[], gymnasium.Env], seed: int = 0) -> StepTime:
    """Measure an environment with random actions, in this process. Several agents act by a dict, as in PettingZoo.

    Python's and NumPy's global generators, which it may draw from, are as before afterwards."""
    generators = random.getstate(), np.random.get_state()
    try:
        return _step_time(factory, seed)
    finally:
        random.setstate(generators[0])
        np.random.set_state(generators[1])


def _step_time(factory: Callable[[], gymnasium.Env], seed: int) -> StepTime:
    env = factory()
    try:
        actions = _actions(env)
        env.reset(seed=seed)
        actions_drawn = [actions() for _ in range(MOST)]
        steps, began, used, slept = 0, perf_counter(), process_time(), _sleeps()
        while steps < FEWEST or (steps < MOST and perf_counter() - began < TRIED):
            terminated, truncated = env.step(actions_drawn[steps])[2:4]
            steps += 1
            if _ended(terminated) or _ended(truncated):
                env.reset()
        seconds, used, slept = perf_counter() - began, max(process_time() - used, 1e-9), _sleeps() - slept
        # an environment that never sleeps but did not have the whole core was delayed by other programs
        if slept < steps * WAITS:
            return StepTime(used / steps, 1.0)
        return StepTime(seconds / steps, min(1.0, used / seconds))
    finally:
        close(env, "the environment that was measured")


def _sleeps() -> int:
    """Number of times that this process has given up its core voluntarily."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _actions(env: gymnasium.Env | MultiAgentEnv) -> Callable[[], Sample]:
    """A function that draws an action."""
    if isinstance(env, gymnasium.Env):
        env.action_space.seed(0)
        return drawable(env.action_space).sample
    spaces = {agent: env.action_space(agent) for agent in env.possible_agents}
    return lambda: {agent: space.sample() for agent, space in spaces.items()}


def _ended(flag: Any) -> bool:
    if isinstance(flag, Mapping):
        return all(as_flag(value, f"ending of {agent}") for agent, value in flag.items())
    return as_flag(flag, "terminated or truncated")


def row_seconds(workers: int, num_envs: int, step: StepTime) -> float:
    """Seconds of one step of all environments; workers: 0 for none: one after another in the learner's process."""
    if workers == 0:
        return num_envs * step.seconds
    oversubscription = max(1.0, step.busy * workers / cores())
    waiting = AWAKE if workers < cores() else ASLEEP
    return -(-num_envs // workers) * step.seconds * oversubscription + waiting + EACH * workers


def choose(step: StepTime, num_envs: int, fewest: int = 0) -> tuple[int, str]:
    """The number of workers, and an explanation: the fewest with which a row takes at most WORTH times the best time.

    The time of the policy is the same for all, since it and the workers alternate. fewest: 0 where none is allowed.
    """
    most = num_envs if step.waits else min(num_envs, cores())
    times = {workers: row_seconds(workers, num_envs, step) for workers in range(fewest, max(most, fewest) + 1)}
    best = min(times.values())
    chosen = next(workers for workers, seconds in times.items() if seconds <= WORTH * best)
    others = {0, 1, most} & times.keys() - {chosen}
    compared = ", ".join(f"{times[other] * 1e3:.3g} ms with {_named(other)}" for other in sorted(others))
    kind = "waiting" if step.waits else "computing"
    text = f"{_named(chosen)}: a step of one environment takes {step.seconds * 1e3:.3g} ms, {kind}; "
    text += f"one of all {num_envs} is expected to take {times[chosen] * 1e3:.3g} ms" + (
        f", and {compared}" if compared else ""
    )
    return chosen, text


def tried(factory: Callable[[], gymnasium.Env], num_envs: int, fewest: int = 0) -> int:
    """choose() after measuring one environment here; prints the explanation on stderr."""
    chosen, text = choose(step_time(factory), num_envs, fewest)
    tell(text)
    return chosen


def _named(workers: int) -> str:
    return {0: "no workers", 1: "1 worker"}.get(workers, f"{workers} workers")
