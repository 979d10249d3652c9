"""Many worlds at once, as a training sees them: what they write into a rollout, and whether the seed decides it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Space
from torch import Tensor

from headrace.checks.finding import Finding
from headrace.checks.random_rollout import ADVICE, Times
from headrace.data.rollout import Group, Rollout, tree_map
from headrace.data.spaces import leaves
from headrace.envs.base import columns_of, rollout_for

ROWS = 8
SEEN = ("observation", "valid", "reward", "terminated", "truncated")


def check(build: Callable[[], Any], steps: int, seconds: float, seed: int) -> tuple[list[Finding], Times]:
    """Findings of the worlds that build() makes, and the time of a step of one of them.

    steps: of each world; seconds: for all of them, whichever is over first.
    """
    env = build()
    try:
        seen, spent = watched(env, steps, seconds, seed)
        again, _ = watched(env, len(seen) * ROWS, float("inf"), seed)
        other, _ = watched(env, len(seen) * ROWS, float("inf"), seed + 1, actions=seed)
        space, num_envs = env.observation_space, env.num_envs
    finally:
        env.close()
    return [*_written(space, seen), *_endings(seen), *_seeding(seen, again, other)], Times.of(
        [second / num_envs for second in spent[1:]], spent[:1]
    )


def watched(
    env: Any, steps: int, seconds: float, seed: int, actions: int | None = None
) -> tuple[list[dict[str, Any]], list[float]]:
    """Copies of the columns after each rollout by random actions; seconds of the reset, and of each step."""
    rollout = rollout_for(env, ROWS, columns_of(env))
    fill(env.action_space, rollout.action, seed if actions is None else actions)
    began = perf_counter()
    env.reset(rollout, seed)
    seen: list[dict[str, Any]] = []
    spent = [perf_counter() - began]
    while len(seen) * ROWS < steps and (perf_counter() - began < seconds or not seen):
        if seen:
            rollout.continue_from(rollout)
        for t in range(ROWS):
            started = perf_counter()
            env.step(rollout, t)
            spent.append(perf_counter() - started)
        seen.append(_copied(rollout))
    return seen, spent


def _copied(rollout: Rollout) -> dict[str, Any]:
    return {name: tree_map(lambda column: column.cpu().clone(), getattr(rollout, name)) for name in SEEN}


def fill(space: Space, actions: Any, seed: int) -> None:
    """Fill an action column [T, N, ...] with random actions of its space, member by member for groups of agents."""
    if isinstance(actions, Group):
        for name, member in actions:
            fill(space[name], member, seed)  # type: ignore[index]
        return
    space.seed(seed)
    sampled = np.stack([np.asarray(space.sample()) for _ in range(actions.shape[0] * actions.shape[1])])
    actions.copy_(torch.from_numpy(sampled).to(actions.dtype).reshape(actions.shape))


def _written(space: Space, seen: list[dict[str, Any]]) -> list[Finding]:
    """Whether observations are in their space, and rewards are finite numbers."""
    wrong: dict[str, str] = {}
    for number, columns in enumerate(seen):
        for keys, leaf in leaves(space):
            column = columns["observation"]
            for key in keys:
                column = getattr(column, str(key))
            place = _first(_strange(leaf, column))
            if place is not None and "observations" not in wrong:
                what = f"observation{''.join(f'[{key!r}]' for key in keys)}"
                wrong["observations"] = f"{what} is {_number(column, place)} {_where(number, place)}"
        place = _first(~columns["reward"].isfinite())
        if place is not None and "rewards" not in wrong:
            wrong["rewards"] = f"the reward is {_number(columns['reward'], place)} {_where(number, place)}"
    said = {"observations": "all in the space", "rewards": "finite numbers"}
    return [
        Finding(check, "wrong", wrong[check], ADVICE[check]) if check in wrong else Finding(check, "ok", right)
        for check, right in said.items()
    ]


def _strange(space: Space, column: Tensor) -> Tensor:
    """Which numbers of a column are not in the space of an observation."""
    if not isinstance(space, Box):
        return torch.zeros(column.shape, dtype=torch.bool)
    low, high = (torch.from_numpy(np.array(side, np.float64)) for side in (space.low, space.high))
    slack = 1e-6 * column.abs().double().clamp(min=1)  # columns are float32
    values = column.double()
    return ~values.isfinite() | (values < low - slack) | (values > high + slack)


def _first(wrong: Tensor) -> tuple[int, ...] | None:
    return tuple(wrong.nonzero()[0].tolist()) if wrong.any() else None


def _number(column: Tensor, place: tuple[int, ...]) -> str:
    return f"{column[place].item():.7g}"


def _where(rollout: int, place: tuple[int, ...]) -> str:
    row, world, *inside = place
    at = f", at {inside}" if inside else ""
    return f"(row {rollout * ROWS + row}, column {world}{at})"


def _endings(seen: list[dict[str, Any]]) -> list[Finding]:
    """Whether an ending is followed by a dead row, and a dead row by an episode."""
    count = {"terminated": 0, "truncated": 0}
    for columns in seen:
        valid, terminated, truncated = (columns[name] for name in ("valid", "terminated", "truncated"))
        ended = terminated | truncated
        for wrong, words in (
            (ended & ~valid[:-1], "an episode ends in a dead row"),
            (ended & valid[1:], "an episode goes on after its end"),
            (valid[:-1] & ~ended & ~valid[1:], "an episode is dead without an end"),
            (columns["reward"].ne(0) & ~valid[:-1], "a dead row has a reward"),
        ):
            if wrong.any():
                return [Finding("endings", "wrong", f"{words} {_where(0, _first(wrong) or (0, 0))}", "report this")]
        count["terminated"] += int(terminated.sum())
        count["truncated"] += int((truncated & ~terminated).sum())
    rows = len(seen) * ROWS
    if not any(count.values()):
        return [Finding("endings", "note", f"no episode ended in {rows:,} steps of each world", "give a time limit")]
    return [Finding("endings", "ok", f"{count['terminated']} terminated, {count['truncated']} truncated")]


def _seeding(seen: list[Any], again: list[Any], other: list[Any]) -> list[Finding]:
    advice = "draw all randomness from what reset(seed) has seeded"
    same = [
        Finding("seeding", "ok", f"the same seed gives the same {len(seen) * ROWS:,} steps")
        if _equal(seen, again)
        else Finding("seeding", "wrong", "reset to the same seed, the worlds differ", advice)
    ]
    if _equal(seen, other):
        return [*same, Finding("another seed", "note", "gives the same: nothing here is random")]
    return [*same, Finding("another seed", "ok", "gives other episodes")]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else torch.equal(one, other)
    if isinstance(one, Group):
        return all(_equal(member, getattr(other, name)) for name, member in one)
    if isinstance(one, dict):
        return all(_equal(one[name], other[name]) for name in one)
    return len(one) == len(other) and all(map(_equal, one, other))
