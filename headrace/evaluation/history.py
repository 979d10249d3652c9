"""The episodes of a run, read from its monitor.csv and metrics.jsonl."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.core.text import did_you_mean, printable
from headrace.core.types import Json, Settings
from headrace.core.writing import check_file

PREFIX = "return/"  # of the columns of agents in metrics.jsonl
RATED = "self_play/rating"  # the column of Elo ratings: more informative than returns against improving opponents
RATING = "Elo rating"
Array = NDArray[np.float64]
Row = TypeVar("Row")
EVALUATION = ("eval_freq", "eval_episodes", "eval_envs", "eval_device", "parallel_evaluation")
WRITTEN = ("save_freq", "log_folder", "progress", "track")
LENGTH = ("total_steps", "max_seconds", "max_episodes", "target_return", "window")
# settings of a run's length, its output and its machine: runs that differ only in these are treated as seeds
NOT_OF_LEARNING = (*LENGTH, *EVALUATION, *WRITTEN, "seed", "replay_order")


@dataclass(frozen=True)
class History:
    """The training episodes of one run, in the order in which they ended: arrays of the same length [E]."""

    algorithm: str
    env: str
    episode_return: Array
    steps: Array  # of all environments together, when the episode ended
    seconds: Array  # of wall time since training began
    settings: Json = field(default_factory=dict)  # of its config.toml
    # mean returns of each agent or group of agents, float64 [rows, 3]: steps, seconds, return; with self-play only
    # RATING; empty for one agent
    by_agent: Mapping[str, Array] = field(default_factory=dict)
    library: str = ""  # the library that wrote it; empty: Headrace
    averaged: bool = False  # returns are means over episodes already
    metric: str = ""  # the column that is in the place of returns

    @property
    def name(self) -> str:
        """The algorithm's name in a plot, with the library."""
        return f"{self.algorithm} ({self.library})" if self.library else self.algorithm.upper()

    def axis(self, name: str) -> Array:
        """The x value of each episode. axis: "steps" or "seconds"."""
        return self.steps if name == "steps" else self.seconds


def read(path: str | Path, metric: str = "") -> History:
    """Read the history in a run's folder. Damaged rows are left out, with a warning that names the line.

    metric: a column to take in place of returns: of monitor.csv, such as a name of log_info, or of metrics.jsonl.
    Raises FileNotFoundError if it is not a run, ValueError without episodes or without this column, or if monitor.csv
    has no header.
    """
    folder = Path(path)
    if not (folder / "monitor.csv").is_file():
        raise FileNotFoundError(f"{folder} is not a run: it has no monitor.csv (runs are in runs/ALGORITHM/ENV_N)")
    of_episodes = metric in _columns(folder / "monitor.csv")
    header, episodes = read_monitor(folder / "monitor.csv", metric if of_episodes else "r")
    settings = tomllib.loads(check_file(folder / "config.toml").read_text())
    about = str(settings.get("algorithm", "")), str(header.get("env_id", ""))
    if metric and not of_episodes:
        return History(*about, *_column(folder / "metrics.jsonl", metric), settings, averaged=True, metric=metric)
    if not episodes:
        raise ValueError(f"{folder} has nothing to plot yet: no episode has ended")
    episode_return, length, seconds = np.array(episodes).T
    seconds = _spread(seconds)
    steps = _steps_at(folder / "metrics.jsonl", seconds, length)
    if metric:
        had = ~np.isnan(episode_return)
        return History(*about, episode_return[had], steps[had], seconds[had], settings, metric=metric)
    by_agent = _returns_by_agent(folder / "metrics.jsonl")
    return History(*about, episode_return, steps, seconds, settings, by_agent)


def differing(runs: Sequence[Settings]) -> list[str]:
    """Names of settings of learning that differ between these runs, in alphabetical order."""
    names = {name for settings in runs for name in settings} - {"algorithm", "env", *NOT_OF_LEARNING}
    return sorted(name for name in names if len({repr(settings.get(name)) for settings in runs}) > 1)


def read_monitor(path: Path, first: str = "r") -> tuple[Json, list[list[float]]]:
    """The header, and return, length and seconds of each episode, of a monitor.csv as Stable-Baselines3 writes it: a
    line `#{"t_start": 1.5e9, "env_id": "CartPole-v1"}`, the names of the columns, and a row an episode. first: a column
    to read in place of the return; NaN for an empty cell."""
    lines = _whole_lines(path)
    if not lines:  # a run that has just begun
        return {}, []
    try:
        header = json.loads(lines[0].removeprefix("#"))
        header["env_id"]
        columns = [lines[1].split(",").index(name) for name in (first, "l", "t")]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} does not begin with the lines '#{{...\"env_id\": ...}}' and 'r,l,t'") from error

    def parse(line: str) -> list[float]:
        values = line.split(",")
        if first != "r" and not values[columns[0]]:
            values[columns[0]] = "nan"
        return [float(values[column]) for column in columns]

    return header, _rows(path, lines, 2, parse)


def _columns(path: Path) -> list[str]:
    """Names of the columns of a monitor.csv; empty if it has none yet."""
    lines = _whole_lines(path)
    return lines[1].split(",") if len(lines) > 1 else []


def _column(path: Path, name: str) -> tuple[Array, Array, Array]:
    """Values of a column of metrics.jsonl, and the steps and seconds of their rows. Raises ValueError without any."""

    def parse(line: str) -> Json:
        row = json.loads(line)
        return {"steps": row["steps"], "seconds": row["seconds"]} | {k: x for k, x in row.items() if _is_number(x)}

    rows = _rows(path, _whole_lines(path), 0, parse) if path.is_file() else []
    found = sorted((row["steps"], row["seconds"], row[name]) for row in rows if name in row)
    if not found:
        known = sorted({key for row in rows for key in row} | {*_columns(path.with_name("monitor.csv"))})
        others = did_you_mean(name, known) or f"; it has {', '.join(known)}"
        raise ValueError(f"{path.parent} has logged no {name!r}{others}")
    steps, seconds, values = np.array(found, float).T
    return values, steps, seconds


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and np.isfinite(value)


def _steps_at(path: Path, seconds: Array, length: Array) -> Array:
    """Environment steps at these seconds, from the metrics; without metrics, the sum of episode lengths."""

    def parse(line: str) -> list[float]:
        row = json.loads(line)
        return [float(row[name]) for name in ("seconds", "steps")]

    rows = _rows(path, _whole_lines(path), 0, parse) if path.is_file() else []
    if not rows:
        return np.cumsum(length)
    # rows of evaluations are written when these are finished, after rows of later steps
    known = np.array([[0.0, 0.0], *sorted(rows)])
    return np.interp(seconds, known[:, 0], known[:, 1])


def _returns_by_agent(path: Path) -> dict[str, Array]:
    """The columns return/NAME and RATED of the metrics. Damaged rows are left out; _steps_at() warns about them."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for line in _whole_lines(path) if path.is_file() else ():
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            row = json.loads(line)
            for name, value in row.items():
                if name.startswith(PREFIX) or name == RATED:
                    rows = found.setdefault(RATING if name == RATED else name.removeprefix(PREFIX), [])
                    if value is not None:
                        rows.append((float(row["steps"]), float(row["seconds"]), float(value)))
    return {name: np.array(sorted(rows)) for name, rows in found.items() if rows}


def _rows(path: Path, lines: list[str], first: int, parse: Callable[[str], Row]) -> list[Row]:
    """The numbers of each line, starting at line `first`. Damaged lines are left out, with a warning."""
    rows = []
    for number, line in enumerate(lines[first:], first + 1):
        try:
            rows.append(parse(line))
        except (ValueError, LookupError, TypeError):
            what = f"{path}, line {number} is damaged, and left out: {line[:60]!r}"
            warnings.warn(printable(what), stacklevel=4)
    return rows


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file that may still be written to. An incomplete last line is left out."""
    return check_file(path).read_text(errors="replace").split("\n")[:-1]


def _spread(seconds: Array) -> Array:
    """End times of episodes, [E]. They are logged at the end of an iteration, and spread evenly over it here."""
    moments, first, count = np.unique(seconds, return_index=True, return_counts=True)
    before = np.concatenate([[0.0], moments[:-1]])
    rank = np.arange(len(seconds)) - np.repeat(first, count) + 1
    return np.repeat(before, count) + np.repeat((moments - before) / count, count) * rank
