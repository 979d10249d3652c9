"""Check N environments in one rollout, as in training: whether columns are valid, and reproducible by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from functools import reduce
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Space
from torch import Tensor

from headrace.checks import turns
from headrace.checks.finding import OTHER_SEEDS, Finding, another_seed, findings_of
from headrace.checks.random_rollout import StepTimes, same
from headrace.data.rollout import Column, Group, Rollout, Value
from headrace.data.spaces import drawable, leaves
from headrace.envs.base import Env
from headrace.envs.gym.unread import collected

ROWS = 8


class Recorded(NamedTuple):
    """Copies of the columns of one rollout."""

    observation: list[np.ndarray]  # [T + 1, N, ...] of each leaf of the observation space
    valid: np.ndarray  # [T + 1, N]
    reward: np.ndarray  # [T, N], as the following ones
    terminated: np.ndarray
    truncated: np.ndarray

    @classmethod
    def of(cls, rollout: Rollout, space: Space) -> Recorded:
        """Copy the present columns of a rollout."""
        observation = [reduce(getattr, map(str, keys), rollout.observation) for keys, _ in leaves(space)]
        columns = (rollout.valid, rollout.reward, rollout.terminated, rollout.truncated)
        return cls(list(map(_copied, observation)), *map(_copied, columns))


def check(build: Callable[[], Env], steps: int, seconds: float, seed: int) -> tuple[list[Finding], StepTimes]:
    """Findings of the environments that build() makes, and the time of a step of one of them.

    The check ends after `steps` steps of each environment or `seconds` for all, whichever is reached first.
    """
    with collected() as unread, closing(build()) as env:
        if env.backend != "inline":
            recorded(env, 1, 0.0, seed)  # compiles now, so that neither the reset's time nor `seconds` includes it
        seen, spent = recorded(env, steps, seconds, seed)
        again, _ = recorded(env, len(seen) * ROWS, float("inf"), seed)
        others = (recorded(env, len(seen) * ROWS, float("inf"), seed + k, action_seed=seed)[0] for k in OTHER_SEEDS)
        findings = [*_values(env.observation_space, seen), _endings(seen, env), *_seeding(seen, again, others)]
        findings += [Finding("info", "note", *one) for one in unread]
        if env.takes_turns and not env.nested:
            findings.append(_turns(env, len(seen) * ROWS, seed))
        return findings, StepTimes.of([second / env.num_envs for second in spent[1:]], spent[:1])


def _turns(env: Env, steps: int, seed: int) -> Finding:
    """Findings of turns.check(), with the actions of recorded() and with different ones."""
    actions, others = (env.rollout(ROWS, env.columns()).action for _ in range(2))
    for column, own in ((actions, seed), (others, seed + 1)):
        fill(env.action_space, column, own)
    return turns.check(env, lambda before: recorded(env, steps, float("inf"), seed, before=before)[0], actions, others)


def recorded(
    env: Env,
    steps: int,
    seconds: float,
    seed: int,
    action_seed: int | None = None,
    before: Callable[[Rollout, int], None] = lambda rollout, t: None,
) -> tuple[list[Recorded], list[float]]:
    """Record rollouts with random actions: the columns of each, seconds of the reset, and seconds of each step. before:
    called with a rollout and t before step t."""
    rollout = env.rollout(ROWS, {**env.columns(), "value": Column()})  # as in a training, so that infos are read
    fill(env.action_space, rollout.action, seed if action_seed is None else action_seed)
    began = perf_counter()
    env.reset(rollout, seed)
    seen: list[Recorded] = []
    spent = [perf_counter() - began]
    while len(seen) * ROWS < steps and (perf_counter() - began < seconds or not seen):
        if seen:
            rollout.continue_from(rollout)
        for t in range(ROWS):
            before(rollout, t)
            started = perf_counter()
            env.step(rollout, t)
            spent.append(perf_counter() - started)
        seen.append(Recorded.of(rollout, env.observation_space))
    return seen, spent


def _copied(column: Tensor) -> np.ndarray:
    return column.cpu().numpy().copy()


def fill(space: Space, actions: Value, seed: int) -> None:
    """Fill an action column [T, N, ...] with random actions of its space, each group of agents with its own."""
    if isinstance(actions, Group):
        assert isinstance(space, Dict)
        for name, member in actions:
            fill(space[name], member, seed)
        return
    space = drawable(space)
    space.seed(seed)
    sampled = np.stack([np.asarray(space.sample()) for _ in range(actions.shape[0] * actions.shape[1])])
    actions.copy_(torch.from_numpy(sampled).to(actions.dtype).reshape(actions.shape))


def _values(space: Space, seen: list[Recorded]) -> list[Finding]:
    """Check that observations are in their space, and that rewards are finite."""
    errors: dict[str, str] = {}
    for number, columns in enumerate(seen):
        for (keys, leaf), column in zip(leaves(space), columns.observation, strict=True):
            name = f"observation{''.join(f'[{key!r}]' for key in keys)}"
            _note(errors, "observations", name, column, _outside(leaf, column), number)
        _note(errors, "rewards", "the reward", columns.reward, ~np.isfinite(columns.reward), number)
    return findings_of(errors, {"observations": "all in the space", "rewards": "finite numbers"})


def _note(errors: dict[str, str], check: str, name: str, column: np.ndarray, wrong: np.ndarray, number: int) -> None:
    """Record the first wrong number. number: the rollout's."""
    if check not in errors and wrong.any():
        row, env, *inside = place = tuple(np.argwhere(wrong)[0].tolist())
        at = f", at {inside}" if inside else ""
        errors[check] = f"{name} is {column[place]:.7g} (row {number * ROWS + row}, column {env}{at})"


def _outside(space: Space, column: np.ndarray) -> np.ndarray:
    """Mark numbers of a column that are outside an observation space."""
    if not isinstance(space, Box):
        return np.zeros(column.shape, bool)
    values = column.astype(np.float64)
    slack = 1e-6 * np.maximum(1, np.abs(values))  # columns are float32
    return ~np.isfinite(values) | (values < space.low - slack) | (values > space.high + slack)


def _endings(seen: list[Recorded], env: Env) -> Finding:
    """Check that a masked step follows each ending, and a new episode each masked step."""
    terminations = truncations = 0
    for number, (_, valid, reward, terminated, truncated) in enumerate(seen):
        ended = terminated | truncated
        for wrong, text in (
            (ended & ~valid[:-1], "an episode ends in a masked step"),
            (ended & valid[1:], "an episode continues after its end"),
            (valid[:-1] & ~ended & ~valid[1:], "a masked step follows a step that did not end the episode"),
            ((reward != 0) & ~valid[:-1], "a masked step has a reward"),
        ):
            if wrong.any():
                row, env = np.argwhere(wrong)[0]
                found = f"{text} (row {number * ROWS + row}, column {env})"
                return Finding("endings", "wrong", found, "report this as a bug of the adapter")
        terminations += int(terminated.sum())
        truncations += int((truncated & ~terminated).sum())
    if not terminations + truncations:
        found = f"no episode ended in {len(seen) * ROWS:,} steps of each environment"
        if env.max_steps is None:
            return Finding("endings", "note", found, "add a time limit")
        return Finding("endings", "ok", f"{found}: its time limit is {env.max_steps:,}")
    return Finding("endings", "ok", f"{terminations} terminated, {truncations} truncated")


def _seeding(seen: list[Recorded], again: list[Recorded], others: Iterable[list[Recorded]]) -> list[Finding]:
    steps = len(seen) * ROWS
    reproducible = Finding("seeding", "ok", f"the same seed gives the same {steps:,} steps")
    if not same(seen, again):
        advice = "draw all random numbers from the generator that reset(seed) seeds"
        reproducible = Finding("seeding", "wrong", "reset to the same seed, the environments differ", advice)
    return [reproducible, another_seed((same(seen, other) for other in others), steps)]
