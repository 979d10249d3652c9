"""The table of feature_returns.py: rows of its trainings, of zoo_returns.py, and those that were measured before."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.common import ROOT, Row, read_rows
from benchmarks.returns.feature_rows import LIBRARIES, MEASURED, NETWORKS, PARTS, ROWS, Asked, Measured
from benchmarks.tables import replace_table

PAGE = ROOT / "docs" / "from_sb3.md"
HEAD = "| | `headrace ...` | task, steps | returns | other library | its returns | CPU s | its CPU s | |"
OF_ZOO = {"MountainCarContinuous-v0:a2c": "gSDE, an entry of rl_zoo3", "Pendulum-v1:ppo": "gSDE, an entry of rl_zoo3"}


def rows_of(file: Path) -> list[Row]:
    """The rows of all calls that were not quick, each with its date."""
    runs = (run for run in read_rows(file) if not run["quick"])
    return [{**row, "date": run["when"][:10]} for run in runs for row in run["rows"]]


def write(results: Path) -> None:
    """Put the table into the page."""
    replace_table("returns/feature_returns", "\n".join(table(results)), PAGE)


def table(results: Path) -> list[str]:
    """The lines of the table, by parts."""
    found = [*trained(rows_of(results / "asked_for.jsonl")), *of_zoo(rows_of(results / "zoo_returns.jsonl")), *MEASURED]
    lines = [HEAD, "|---|---|---|---|---|---|--:|--:|---|"]
    for part in PARTS:
        rows = [row for row in found if row.part == part]
        lines += [f"| **{part}** | | | | | | | | |"] * bool(rows) + [line(row) for row in rows]
    return lines


def line(row: Measured) -> str:
    """A row in Markdown."""
    link = f"[{row.date}]({row.page})" if row.page else row.date
    seconds = [f"{one:.0f}" if one >= 10 else f"{one:.1f}" if one else "" for one in (row.seconds, row.seconds_of_peer)]
    cells = (
        row.what,
        f"`{row.command}`",
        f"{row.task}, {row.steps:,}",
        shown(row.returns),
        row.peer or "none here",
        shown(row.of_peer),
        *seconds,
        link,
    )
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def shown(returns: Sequence[float]) -> str:
    """Returns of the seeds, with two decimals where they are small."""
    small = max(map(abs, returns), default=0) < 30
    return ", ".join(f"{one:.2f}" if small else f"{one:.0f}" for one in returns)


def trained(rows: Iterable[Row]) -> list[Measured]:
    """The rows that both libraries have trained, or Headrace alone where the other has none."""
    found = []
    for asked in ROWS:
        own = [row for row in rows if row["what"] == asked.what]
        found += joined(asked.part, asked.what, command(asked), asked.env, own, asked.peer)
    return found


def of_zoo(rows: Iterable[Row]) -> list[Measured]:
    """The entries of rl_zoo3 with state-dependent exploration."""
    found = []
    for task, what in OF_ZOO.items():
        env, _, algorithm = task.partition(":")
        text = f"train {algorithm} {env} --zoo {algorithm}.yml"
        found += joined(NETWORKS, what, text, env, [row for row in rows if row["task"] == task], algorithm.upper())
    return found


def joined(part: str, what: str, text: str, env: str, rows: Sequence[Row], peer: str) -> list[Measured]:
    """One row of those of each seed and library; none before Headrace's are there."""
    by_library = [sorted((row for row in rows if row["library"] == one), key=_seed) for one in LIBRARIES]
    if not by_library[0]:
        return []
    (own, seconds), (of_peer, seconds_of_peer) = (
        (tuple(row["return"] for row in one), statistics.median([row["cpu_seconds"] for row in one] or [0]))
        for one in by_library
    )
    steps, date = by_library[0][0]["steps"], max(row["date"] for row in rows)
    return [Measured(part, what, text, env, steps, own, seconds, date, "", peer, of_peer, seconds_of_peer)]


def _seed(row: Row) -> int:
    seed: int = row["seed"]
    return seed


def command(asked: Asked) -> str:
    """Command for a row: `compare sb3` with the arguments of ROWS, or `train` with settings."""
    start = f"compare sb3 {asked.algorithm} {asked.env}" if asked.peer else f"train {asked.algorithm} {asked.env}"
    if asked.masked:
        start = f"train {asked.algorithm} {asked.env} --info-mask"
    flags = [] if asked.peer else [flag(*item) for item in asked.given.items()]
    if asked.resumed:
        flags.append(f"; train --resume RUN --num-envs {2 * asked.given['num_envs']}")
    return " ".join((start, *flags))


def flag(name: str, value: object) -> str:
    """A setting as it is typed."""
    words = value if isinstance(value, tuple) else (value,)
    if isinstance(value, dict):
        words = tuple(f"{key}={one}" for key, one in value.items())
    return " ".join((f"--{name.replace('_', '-')}", *map(str, words)))
