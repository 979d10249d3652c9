"""Rows of recorded data: of episodes in Minari's format, or of the replay buffer that a run has saved.

Rows are in the order of a rollout: the rows of an episode, then a masked row with its final observation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor

from headrace.core.text import shown
from headrace.data.flat_action import FlatAction, FlatBox, flat_action
from headrace.data.flat_dict import FlatDict, joinable
from headrace.data.replay import spread
from headrace.data.rollout import Columns, Rollout, named_tensors
from headrace.data.spaces import alike, from_json, leaves
from headrace.evaluation.recording import METADATA, Episode, read_episodes, recorded_spaces
from headrace.runs import checkpoint

Recorded = dict[str, Tensor]  # [R, ...] by the path of a column, such as "observation.position"
FLAGS = ("valid", "terminated", "truncated")


def recorded_rows(
    path: str | Path,
    columns: Columns,
    spaces: tuple[Space, Space],
    reward_scale: float = 1.0,
    newest: int | None = None,
) -> Recorded:
    """Read the rows of a folder of episodes, or of a run or checkpoint with a replay buffer.

    columns: the columns to read, as a replay buffer has them. spaces: the environment's observation and action space,
    which must be like those of the data. reward_scale: factor of rewards. newest: largest number of a run's rows; the
    oldest ones are left out. Raises FileNotFoundError if there are no rows, ValueError for other spaces and for rows
    that do not fit.
    """
    path = Path(path)
    is_episodes = (path / METADATA).exists()
    found = _of_episodes(path, spaces) if is_episodes else _of_run(path, spaces, reward_scale, newest)
    if is_episodes:
        found["reward"] = found["reward"] * reward_scale
    rows = {}
    like = Rollout(1, 1, columns)
    for name, column in named_tensors({name: getattr(like, name) for name in columns}):
        if name not in found:
            raise ValueError(f"{path} has no {name}: it has {', '.join(found)}")
        if found[name].shape[1:] != column.shape[2:]:
            shapes = f"{list(found[name].shape[1:])}, and {list(column.shape[2:])} is needed"
            raise ValueError(f"{path} has {name} of the shape {shapes}: record it with the same wrappers")
        rows[name] = found[name].to(column.dtype)
    _check_values(path, rows, spaces[1])
    return rows


def _check_spaces(path: Path, spaces: tuple[Space, Space], recorded: tuple[Space, Space]) -> None:
    for what, wanted, given in zip(("observations", "actions"), spaces, recorded, strict=True):
        if not alike(wanted, given):
            raise ValueError(f"{path} has {what} of {shown(given)}, and those of the environment are {shown(wanted)}")


def _check_values(path: Path, rows: Recorded, action_space: Space) -> None:
    """Raise ValueError for numbers that are not finite, and for actions outside a Discrete space."""
    for name, column in rows.items():
        wrong = ~column.view(len(column), -1).isfinite().all(1)
        if wrong.any():
            raise ValueError(f"{path} has {name} {column[wrong][0].tolist()}, which is not finite")
    if isinstance(action_space, Discrete):
        action = rows["action"][rows["valid"]]
        wrong = (action < int(action_space.start)) | (action >= int(action_space.start + action_space.n))
        if wrong.any():
            raise ValueError(f"{path} has the action {int(action[wrong][0])}, which {action_space} does not have")


def _of_episodes(path: Path, spaces: tuple[Space, Space]) -> Recorded:
    seen, acted = recorded_spaces(path)
    if isinstance(spaces[0], FlatDict) and joinable(seen):
        seen = FlatDict(seen.spaces)  # type: ignore[attr-defined]
    _check_spaces(path, spaces, (seen, flat_action(acted)))
    parts: dict[str, list[np.ndarray]] = {}
    for number, episode in enumerate(read_episodes(path)):
        for name, column in _columns_of(episode, spaces, f"episode {number} of {path}"):
            parts.setdefault(name, []).append(column)
    if not parts:
        raise ValueError(f"{path} has no episodes: record some")
    return {name: torch.from_numpy(np.concatenate(each)) for name, each in parts.items()}


def _columns_of(episode: Episode, spaces: tuple[Space, Space], where: str) -> Iterator[tuple[str, np.ndarray]]:
    """Columns of an episode's rows, followed by the masked row."""
    steps = len(episode.rewards)
    truncated = episode.truncations.astype(bool)
    if steps:
        truncated[-1] |= not episode.terminations[-1]  # an episode that was cut short
    columns: dict[str, Any] = {"reward": episode.rewards, "terminated": episode.terminations, "truncated": truncated}
    acted = episode.actions
    if isinstance(spaces[1], FlatBox | FlatAction):
        acted = spaces[1].join_batch(acted)
    columns |= {"valid": np.ones(steps, bool), **dict(_leaves("action", spaces[1], acted))}
    for name, column in columns.items():
        if len(column) != steps:
            raise ValueError(f"{where} has {steps} rewards, and {len(column)} rows of {name}")
        after = np.zeros_like(column, shape=(1, *column.shape[1:]))
        if steps and name.startswith("action"):
            after = column[-1:]  # an action of the space: losses look up its value, which has weight 0
        yield name, np.concatenate((column, after))
    seen = episode.observations
    if isinstance(spaces[0], FlatDict) and isinstance(seen, dict):
        seen = spaces[0].join(seen)
    for name, column in _leaves("observation", spaces[0], seen):
        if len(column) != steps + 1:
            raise ValueError(f"{where} has {steps} rewards, and {len(column)} rows of {name}: one more is needed")
        yield name, column


def _leaves(name: str, space: Space, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    for keys, _ in leaves(space):
        leaf = value
        for key in keys:
            leaf = leaf[key]
        yield ".".join((name, *map(str, keys))), leaf


def _of_run(path: Path, spaces: tuple[Space, Space], reward_scale: float, newest: int | None) -> Recorded:
    try:
        folder, manifest, state = checkpoint.read(path, checkpoint.LAST, state="training")
    except FileNotFoundError as error:
        kinds = "a folder of `headrace record`, nor a run"
        raise FileNotFoundError(f"{error}: {path} is neither {kinds} with a replay buffer") from error
    config = manifest["policy"]["config"]
    algorithm = {} if state is None else state["learner"]["algorithm"]
    replay = algorithm.get("replay") if isinstance(algorithm, Mapping) else None
    if replay is None or "ranks" in state["learner"]:
        raise ValueError(
            f"{folder} has no replay buffer of one learner: give a run of dqn, sac or another that has one"
        )
    _check_spaces(path, spaces, (from_json(config["observation_space"]), from_json(config["action_space"])))
    rows = _in_order(list(replay["rows"]), newest)
    rows["reward"] = rows["reward"] * (reward_scale / manifest["settings"].get("reward_scale", 1.0))
    return rows


def _in_order(pieces: list[Recorded], newest: int | None) -> Recorded:
    """The rows of pieces, sorted by environment. The last row of each is a bootstrap row, which is masked. newest:
    largest number of rows; the last ones of each environment are kept."""
    times, envs = zip(*map(_places, pieces), strict=True)
    time, env = torch.cat(times), torch.cat(envs)
    order = torch.argsort(env * (int(time.max()) + 1) + time)
    if newest is not None and len(order) > newest:
        last_time = torch.zeros(int(env.max()) + 1, dtype=time.dtype).scatter_reduce_(0, env, time, "amax")
        order = order[(last_time[env] - time < newest // len(last_time))[order]]
    names = pieces[0].keys() - {"start", "stop"}
    rows = {name: torch.cat([piece[name] for piece in pieces])[order] for name in names}
    env = env[order]
    last = torch.cat((env[1:] != env[:-1], torch.ones(1, dtype=torch.bool)))
    return rows | cut_off(rows, last)


def cut_off(rows: Mapping[str, Tensor], last: Tensor) -> Recorded:
    """Mask rows [R, ...] where `last` [R] is true, and truncate an episode that continues there one row before. Returns
    the columns that change. Both may have a further dimension."""
    following = torch.cat((last[1:], torch.zeros_like(last[:1])))
    going_on = following & rows["valid"] & ~rows["terminated"]
    flags = {name: rows[name] & ~last for name in FLAGS}
    flags["truncated"] = flags["truncated"] | going_on & ~last
    return {**flags, "reward": rows["reward"].masked_fill(last, 0.0)}


def _places(piece: Recorded) -> tuple[Tensor, Tensor]:
    """The time and the environment of each row of a piece."""
    counts = piece["stop"] - piece["start"]
    step, env = spread(torch.arange(int(counts.sum())), counts)
    return piece["start"][env] + step, env
