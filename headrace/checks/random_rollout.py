"""Step one gymnasium.Env with random actions: check outcomes and reproducibility by seed, and time the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from headrace.checks.finding import OTHER_SEEDS, Finding, another_seed, findings_of
from headrace.checks.space_mismatch import Sample, mismatch
from headrace.core.stopping import closed
from headrace.core.text import shown
from headrace.data.rollout import Column, Columns
from headrace.data.spaces import describe, drawable
from headrace.envs.gym.columns import as_number, copied
from headrace.envs.gym.unread import Unread, unread_end, unread_mask
from headrace.envs.gym.wrapping import time_limit_of

MIN_REPEATED, MAX_REPEATED = 5, 200  # number of steps of a repeated trajectory
REPEATED_SECONDS = 0.5  # s for each such trajectory


class StepTimes(NamedTuple):
    """Seconds of a step."""

    median: float
    p99: float
    slowest: float
    steps: int
    reset: float  # median of the resets

    @classmethod
    def of(cls, steps: list[float], resets: list[float]) -> StepTimes:
        """Compute from the measured seconds of steps and resets."""
        median, p99, slowest = np.percentile(steps, (50, 99, 100)).tolist()
        return cls(median, p99, slowest, len(steps), float(np.median(resets)))


@dataclass
class RandomRollout:
    """Observations of a random rollout."""

    steps: list[float] = field(default_factory=list)  # seconds of each step
    resets: list[float] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)  # "terminated", "truncated" of each episode
    errors: dict[str, str] = field(default_factory=dict)  # check -> the first error
    unread: dict[Unread, None] = field(default_factory=dict)  # entries of infos, until the first episode has ended
    remarks: dict[str, str] = field(default_factory=dict)  # check -> the first value that other libraries may refuse

    def read(self, check: str, what: str, value: Sample, usual: tuple[type, ...]) -> float:
        """Read a reward or a flag as one number, as a training does; 0 for an error, which is recorded.

        usual: the types that Gymnasium requires; a value of another type gets a remark.
        """
        try:
            number = as_number(value, what)
        except TypeError as error:
            self.note(check, str(error))
            return 0.0
        if not isinstance(value, usual) or (isinstance(value, bool) and bool not in usual):
            self.remarks.setdefault(check, f"{what} is {shown(value, 60)}, a {type(value).__name__}")
        return number

    def note(self, check: str, found: str) -> None:
        """Record the first error of a check. An empty text means no error."""
        if found and check not in self.errors:
            self.errors[check] = f"{found} (step {len(self.steps)}, episode {len(self.endings)})"

    def look(self, env: gymnasium.Env, info: Any, ended: Sequence[str] = ()) -> None:
        """Record entries of an info that nothing reads. ended: names of flags at the end of an episode."""
        if self.endings or not isinstance(info, dict):
            return
        found = unread_mask(info, env.observation_space, env.action_space)
        self.unread |= dict.fromkeys(found + (unread_end(info, "truncated" in ended) if ended else []))


def run(env: gymnasium.Env, steps: int, seconds: float, seed: int) -> RandomRollout:
    """Run for `steps` steps or `seconds`, whichever is reached first. An exception of the environment is re-raised with
    a note of the step at which it occurred."""
    seen, began = RandomRollout(), perf_counter()
    actions = drawable(env.action_space)
    actions.seed(seed)
    reset_seed: int | None = seed
    try:
        while len(seen.steps) < steps and (perf_counter() - began < seconds or not seen.steps):
            started = perf_counter()
            outcome = env.reset(seed=reset_seed)
            seen.resets.append(perf_counter() - started)
            if not (isinstance(outcome, tuple) and len(outcome) == 2):
                raise TypeError(f"reset() returned {shown(outcome)}: it must return (observation, info)")
            seen.note("reset()", _wrong_info(outcome[1]))
            seen.look(env, outcome[1])
            seen.note("observations", mismatch(env.observation_space, outcome[0], "the observation of reset()"))
            _episode(env, actions, seen, steps, began + seconds)
            reset_seed = None
    except Exception as error:
        place = f"after {len(seen.steps)} steps, in episode {len(seen.endings)} of a random rollout with seed {seed}"
        error.add_note(f"({place})")
        raise
    return seen


def _episode(env: gymnasium.Env, actions: Space, seen: RandomRollout, steps: int, until: float) -> None:
    while len(seen.steps) < steps and (perf_counter() < until or not seen.steps):
        action = actions.sample()
        started = perf_counter()
        outcome = env.step(action)
        seen.steps.append(perf_counter() - started)
        if not (isinstance(outcome, tuple) and len(outcome) == 5):
            wanted = "(observation, reward, terminated, truncated, info)"
            raise TypeError(f"step() returned {shown(outcome)}: it must return {wanted}")
        observation, reward, terminated, truncated, info = outcome
        seen.note("observations", mismatch(env.observation_space, observation, "the observation of step()"))
        number = seen.read("rewards", "reward", reward, (int, float, np.number))
        seen.note("rewards", "" if isfinite(number) else f"the reward is {number}")
        flags = {"terminated": terminated, "truncated": truncated}
        ended = [name for name, flag in flags.items() if seen.read("endings", name, flag, (bool, np.bool_))]
        seen.note("info", _wrong_info(info))
        seen.look(env, info, ended)
        if ended:
            seen.endings.append(ended[0])
            return


def _wrong_info(info: Sample) -> str:
    return "" if isinstance(info, dict) else f"info is {shown(info, 60)}, not a dict"


def findings(seen: RandomRollout, env: gymnasium.Env) -> list[Finding]:
    """The findings of a random rollout."""
    episodes = f"{len(seen.steps):,} steps, {len(seen.endings)} episodes"
    ended = f"{seen.endings.count('terminated')} terminated, {seen.endings.count('truncated')} truncated"
    texts = {"observations": "all in the space", "rewards": "finite numbers", "endings": ended}
    found = findings_of(seen.errors, {check: f"{text} ({episodes})" for check, text in texts.items()})
    for place, (check, *_) in enumerate(found):
        if check in seen.remarks and check not in seen.errors:
            advice = "Headrace reads the one number in it; other libraries may not: return a float, and flags as bools"
            found[place] = Finding(check, "note", f"{seen.remarks[check]} ({episodes})", advice)
    if not seen.endings and time_limit_of(env) is None and "endings" not in seen.errors:
        advice = "if episodes may never end, add a time limit: gymnasium.wrappers.TimeLimit, or max_episode_steps"
        found[2] = Finding("endings", "note", f"no episode ended in {len(seen.steps):,} steps", advice)
    return [*found, *(Finding("info", "note", *unread) for unread in seen.unread)]


def seeding(
    factory: Callable[[], gymnasium.Env],
    env: gymnasium.Env,
    seed: int,
    step_seconds: float,
    close: Callable[[], None] | None = None,
) -> list[Finding]:
    """Check that a seed gives the same episode in the same and in another environment, and that other seeds give
    another one.

    close: closes env before the other environment is made, since there may be room for only one.
    """
    steps = int(np.clip(REPEATED_SECONDS / max(step_seconds, 1e-9), MIN_REPEATED, MAX_REPEATED))
    first, again = trajectory(env, seed, steps), trajectory(env, seed, steps)
    if close is not None:
        close()
    with closed(factory(), "another environment") as other:
        elsewhere = trajectory(other, seed, steps)
        others = (trajectory(other, seed + k, steps, action_seed=seed) for k in OTHER_SEEDS)
        random = another_seed((same(first, different) for different in others), len(first))
    advice = "draw all random numbers from self.np_random, after super().reset(seed=seed)"
    found = []
    for check, second, what, remedy in (
        ("seeding", elsewhere, "another environment with the same seed", advice),
        ("reset", again, "the same environment, reset with the same seed,", f"{advice}; reset the whole state"),
    ):
        if same(first, second):
            found.append(Finding(check, "ok", f"{what} gives the same {len(first)} steps"))
            continue
        differ = next((k for k, (a, b) in enumerate(zip(first, second, strict=False)) if not same(a, b)), None)
        place = "its length" if differ is None else f"step {differ}" if differ else "its first observation"
        found.append(Finding(check, "wrong", f"{what} differs in {place}", remedy))
    return [*found, random]


def trajectory(env: gymnasium.Env, seed: int, steps: int, action_seed: int | None = None) -> list[Sample]:
    """First observation and (observation, reward, terminated, truncated) of each step of an episode, with random
    actions from the same seed or from `action_seed`."""
    actions = drawable(env.action_space)
    actions.seed(seed if action_seed is None else action_seed)
    outcomes: list[Sample] = [copied(env.reset(seed=seed)[0])]
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(actions.sample())
        outcomes.append(copied((observation, reward, terminated, truncated)))
        if terminated or truncated:
            break
    return outcomes


def same(one: Sample, other: Sample) -> bool:
    """Tell whether two (nested) samples are equal; NaN equals NaN."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same, one, other))
    a, b = np.asarray(one), np.asarray(other)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f")


def supported(space: Space, column: Callable[[Space], Column | Columns], name: str) -> Finding:
    """Check that policies can use a space."""
    try:
        column(space)
    except TypeError as error:
        return Finding(name, "wrong", str(error))
    return Finding(name, "ok", describe(space))
