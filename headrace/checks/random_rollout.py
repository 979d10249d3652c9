"""A walk through one gymnasium.Env by random actions: what it gives, whether its seed decides, how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from headrace.checks.finding import Finding
from headrace.checks.space_mismatch import misfit
from headrace.data.spaces import describe

FEWEST = 5  # steps of a trajectory that is repeated, however slow
MOST = 200
REPEATED = 0.5  # s to spend on each such trajectory
ADVICE = {
    "observations": "let observation_space say what step() and reset() give, or give what it says",
    "rewards": "give a finite number: a NaN or infinite reward ruins the weights of whoever learns from it",
    "endings": "give terminated and truncated as bools; on a time limit truncated=True, not terminated",
}


class Times(NamedTuple):
    """Seconds of a step."""

    median: float
    p99: float
    slowest: float
    steps: int
    reset: float  # median of the resets

    @classmethod
    def of(cls, steps: list[float], resets: list[float]) -> Times:
        """Of what was measured."""
        median, p99, slowest = np.percentile(steps, (50, 99, 100)).tolist()
        return cls(median, p99, slowest, len(steps), float(np.median(resets)))


@dataclass
class Walk:
    """What was seen on the way."""

    steps: list[float] = field(default_factory=list)  # seconds of each
    resets: list[float] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)  # "terminated", "truncated" of each episode
    wrong: dict[str, str] = field(default_factory=dict)  # check -> the first thing wrong

    def note(self, check: str, found: str) -> None:
        """Keep the first thing that is wrong."""
        if found and check not in self.wrong:
            self.wrong[check] = f"{found} (step {len(self.steps)}, episode {len(self.endings)})"


def walk(env: gymnasium.Env, steps: int, seconds: float, seed: int) -> Walk:
    """Walk for so many steps, or so long. What the environment raises goes up, with a note of where."""
    found, began = Walk(), perf_counter()
    env.action_space.seed(seed)
    begin: int | None = seed
    try:
        while len(found.steps) < steps and (perf_counter() - began < seconds or not found.steps):
            started = perf_counter()
            outcome: Any = env.reset(seed=begin)
            found.resets.append(perf_counter() - started)
            found.note("reset()", _wrong_pair(outcome))
            found.note("observations", misfit(env.observation_space, outcome[0], "the observation of reset()"))
            _episode(env, found, steps, began + seconds)
            begin = None
    except Exception as error:
        error.add_note(f"(after {len(found.steps)} steps, in episode {len(found.endings)} of a walk from seed {seed})")
        raise
    return found


def _episode(env: gymnasium.Env, found: Walk, steps: int, until: float) -> None:
    while len(found.steps) < steps and (perf_counter() < until or not found.steps):
        action = env.action_space.sample()
        started = perf_counter()
        outcome: Any = env.step(action)
        found.steps.append(perf_counter() - started)
        if not (isinstance(outcome, tuple) and len(outcome) == 5):
            raise TypeError(f"step() gave {outcome!r}: it must give (observation, reward, terminated, truncated, info)")
        observation, reward, terminated, truncated, info = outcome
        found.note("observations", misfit(env.observation_space, observation, "the observation of step()"))
        found.note("rewards", wrong_reward(reward))
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                found.note("endings", f"{name} is {flag!r}, a {type(flag).__name__}")
        if not isinstance(info, dict):
            found.note("info", f"info is {info!r}, not a dict")
        if terminated or truncated:
            found.endings.append("terminated" if terminated else "truncated")
            return


def _wrong_pair(outcome: Any) -> str:
    if isinstance(outcome, tuple) and len(outcome) == 2:
        return "" if isinstance(outcome[1], dict) else f"its info is {outcome[1]!r}, not a dict"
    raise TypeError(f"reset() gave {outcome!r}: it must give (observation, info)")


def wrong_reward(reward: Any) -> str:
    """What is wrong with a reward; empty where it is a finite number."""
    if isinstance(reward, bool | np.bool_) or not isinstance(reward, int | float | np.number):
        return f"the reward is {reward!r}, a {type(reward).__name__}"
    return "" if isfinite(float(reward)) else f"the reward is {reward}"


def findings(found: Walk, env: gymnasium.Env) -> list[Finding]:
    """A walk's findings in words."""
    episodes = f"{len(found.steps):,} steps, {len(found.endings)} episodes"
    said = []
    for check, right in (
        ("observations", "all in the space"),
        ("rewards", "finite numbers"),
        ("endings", f"{found.endings.count('terminated')} terminated, {found.endings.count('truncated')} truncated"),
    ):
        if check in found.wrong:
            said.append(Finding(check, "wrong", found.wrong[check], ADVICE[check]))
        else:
            said.append(Finding(check, "ok", f"{right} ({episodes})"))
    said += [Finding(check, "wrong", what) for check, what in found.wrong.items() if check not in ADVICE]
    limit = getattr(env.spec, "max_episode_steps", None)
    if not found.endings and limit is None and "endings" not in found.wrong:
        advice = "if it may go on for ever, give it a time limit: gymnasium.wrappers.TimeLimit, or max_episode_steps"
        said[2] = Finding("endings", "note", f"no episode ended in {len(found.steps):,} steps", advice)
    return said


def seeding(factory: Callable[[], gymnasium.Env], env: gymnasium.Env, seed: int, step_seconds: float) -> list[Finding]:
    """Whether a seed decides an episode: in the same world, in another one, and whether another seed gives another."""
    steps = int(np.clip(REPEATED / max(step_seconds, 1e-9), FEWEST, MOST))
    first = trajectory(env, seed, steps)
    other = factory()
    try:
        again, elsewhere, differently = trajectory(env, seed, steps), trajectory(other, seed, steps), None
        differently = trajectory(other, seed + 1, steps, actions=seed)
    finally:
        other.close()
    said = []
    for check, second, what in (
        ("seeding", elsewhere, "another world of the same seed"),
        ("reset", again, "the same world, reset to the same seed,"),
    ):
        apart = next((k for k, (a, b) in enumerate(zip(first, second, strict=False)) if not same(a, b)), None)
        if apart is None and len(first) == len(second):
            said.append(Finding(check, "ok", f"{what} gives the same {len(first)} steps"))
            continue
        place = f"step {apart}" if apart else "its first observation" if apart == 0 else "its length"
        advice = "draw all randomness from self.np_random, after super().reset(seed=seed)" + (
            "" if check == "seeding" else "; keep nothing of the last episode"
        )
        said.append(Finding(check, "wrong", f"{what} differs in {place}", advice))
    if len(first) == len(differently) and all(map(same, first, differently)):
        said.append(Finding("another seed", "note", f"gives the same {len(first)} steps: nothing here is random"))
    else:
        said.append(Finding("another seed", "ok", "gives another episode"))
    return said


def trajectory(env: gymnasium.Env, seed: int, steps: int, actions: int | None = None) -> list[Any]:
    """Outcomes of an episode from a seed, by actions drawn from it or from another."""
    env.action_space.seed(seed if actions is None else actions)
    outcomes: list[Any] = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        outcomes.append((observation, reward, terminated, truncated))
        if terminated or truncated:
            break
    return outcomes


def same(one: Any, other: Any) -> bool:
    """Whether two outcomes are equal, part by part; NaN equals itself."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same, one, other))
    a, b = np.asarray(one), np.asarray(other)
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    return np.array_equal(a, b, equal_nan=b.dtype.kind == "f")


def supported(space: Space, column: Callable[[Space], Any], name: str) -> Finding:
    """Whether a space can be trained with."""
    try:
        column(space)
    except TypeError as error:
        return Finding(name, "wrong", str(error))
    return Finding(name, "ok", describe(space))


def said_by_gymnasium(env: gymnasium.Env) -> list[Finding]:
    """What Gymnasium's own checker says of the environment without its wrappers."""
    import warnings

    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env.unwrapped, skip_render_check=True)
        except Exception as error:
            return [Finding("Gymnasium's checker", "wrong", f"{type(error).__name__}: {error}")]
    said = {_plain(str(warning.message)) for warning in caught}
    if not said:
        return [Finding("Gymnasium's checker", "ok", "has nothing to say")]
    return [Finding("Gymnasium's checker", "note", text) for text in sorted(said)]


def _plain(text: str) -> str:
    """A warning without its colours and its head."""
    return text.replace("\x1b[33m", "").replace("\x1b[0m", "").removeprefix("WARN: ")
