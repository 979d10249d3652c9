"""Fill a replay buffer with recorded data before the first step."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.spaces import Space

from headrace.algorithms.base import is_offline
from headrace.algorithms.off_policy import OffPolicy
from headrace.core.terminal import tell
from headrace.data.replay import Replay, kept_columns
from headrace.data.rollout import Rollout, named_tensors
from headrace.training.from_data.recorded_rows import FLAGS, Recorded, cut_off, recorded_rows

STEPS = 1_024  # steps of each environment that are appended at once


def fill(
    algorithm: Any,
    path: str,
    spaces: tuple[Space, Space],
    reward_scale: float,
    like: Rollout,
    newest: int | None = None,
) -> None:
    """Fill an algorithm's replay buffer with recorded data. The arguments are those of recorded_rows().

    like: a rollout with the columns to be filled. Raises ValueError for data and algorithms that do not fit.
    """
    _check(algorithm, path)
    rows = recorded_rows(path, kept_columns(like.columns), spaces, reward_scale, newest)
    if is_offline(algorithm):
        if not rows["valid"].any():
            raise ValueError(f"{path} has no steps: record some")
        algorithm.hold(like, len(rows["valid"]))
    _append(algorithm, rows, path)


def _check(algorithm: Any, path: str) -> None:
    """Raise ValueError for an algorithm that cannot use recorded data."""
    if not isinstance(algorithm, OffPolicy):
        raise ValueError(
            f"replay={path!r} is for one algorithm with a replay buffer, not {algorithm.name}: leave it out"
        )
    settings = {"recurrent": algorithm.config.recurrent, "hindsight": algorithm.config.hindsight}
    given = [f"{name}={value!r}" for name, value in settings.items() if value not in ("none", 0)]
    given += ["several learners"] * (algorithm.part[1] > 0)
    if given:
        raise ValueError(f"replay={path!r} does not go with {' and '.join(given)}: leave one of them out")


def _append(algorithm: OffPolicy[Any], rows: Recorded, path: str) -> None:
    """Append rows [R, ...] in N parts of equal length, one for each environment, and update the normalisers with them.

    A part ends with a masked row, since the environment then begins another episode."""
    replay, number = algorithm.replay, len(rows["valid"])
    assert replay is not None
    length = -(-number // replay.num_envs)  # of a part; rows beyond the last are masked
    if length + 1 + replay.least > replay.length:
        least = (length + 1 + replay.least) * replay.num_envs
        raise ValueError(
            f"{path} has {number:,} rows, which the replay buffer has no room for: let buffer_size be {least}"
        )
    index = torch.arange(length + 1).unsqueeze(1) + length * torch.arange(replay.num_envs)
    for first in range(0, length + 1, STEPS):
        chunk = _rollout(replay, rows, index[first : first + STEPS + 1], length - first)
        replay.append(chunk)
        algorithm.policy.update_statistics(chunk, chunk.reward)
    learned_from = "learned from" if is_offline(algorithm) else "in the buffer before the first step"
    tell(f"replay: {int(rows['valid'].sum()):,} steps of {path} are {learned_from}")


def _rollout(replay: Replay, rows: Recorded, index: torch.Tensor, last: int) -> Rollout:
    """A rollout of rows `index` [T + 1, N]. last: number of the row that ends each part."""
    steps = min(STEPS, last + 1)
    beyond = index >= len(rows["valid"])
    at = index.clamp(max=len(rows["valid"]) - 1)
    ends = beyond | (torch.arange(len(index)) == last).unsqueeze(1)
    flags = cut_off({name: rows[name][at] for name in (*FLAGS, "reward")}, ends)
    chunk = Rollout(steps, replay.num_envs, replay.columns, replay.ring.device)
    for name, column in named_tensors({name: getattr(chunk, name) for name in replay.columns}):
        values = flags[name] if name in flags else rows[name][at]
        column.copy_(values[:steps])
    return chunk
