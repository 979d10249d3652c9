"""`headrace runs [FOLDER]`: lists runs with their settings, steps, returns and times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headrace.cli import pairs
from headrace.core.terminal import say
from headrace.core.text import did_you_mean, plain_table
from headrace.evaluation.history import differing
from headrace.runs.listing import RunSummary, runs

DESCRIPTION = """List runs: headrace runs runs/ppo

The columns are steps, mean return of the last training episodes, score of best/, training time, and the reason for the
end; and settings of learning that differ between runs of the same algorithm and environment."""
HEADINGS = ("run", "algorithm", "env", "seed", "steps", "return", "best", "seconds", "state")
SORTED = ("time", "return", "best", "steps")


@dataclass(frozen=True)
class Runs:
    """Choice of runs, and format of the output."""

    # the folder that holds them, at any depth
    folder: Annotated[Path, tyro.conf.Positional] = Path("runs")
    # settings to add as columns, such as learning_rate; without it, those that differ
    show: tuple[str, ...] | None = None
    sort: str = "time"  # time, return, best or steps
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # print a JSON object per run, with all settings


def main(arguments: list[str]) -> None:
    """Print a table or JSON."""
    options = pairs.cli(Runs, "runs", DESCRIPTION, args=arguments)
    if options.sort not in SORTED:
        raise ValueError(f"--sort must be one of {', '.join(SORTED)}, got {options.sort!r}")
    found = _sorted(list(runs(options.folder)), options.sort)
    if options.json:
        for run in found:
            say(json.dumps({**asdict(run), "path": str(run.path)}))
    elif found:
        say(plain_table(_table(found, options.show)))
    else:
        say(f"no runs in {options.folder}")


def _sorted(found: list[RunSummary], by: str) -> list[RunSummary]:
    """Sort runs by their beginning, or with the highest value first."""
    if by == "time":
        return found
    value = {"return": "mean_return"}.get(by, by)

    def height(run: RunSummary) -> float:
        number = getattr(run, value)
        return float("-inf") if number is None else number

    return sorted(found, key=height, reverse=True)


def _table(found: Sequence[RunSummary], show: Sequence[str] | None) -> list[Sequence[str]]:
    tasks: dict[tuple[str, str], list[RunSummary]] = {}
    for run in found:
        tasks.setdefault((run.algorithm, run.env), []).append(run)
    known = {name for run in found for name in run.settings}
    for name in show or ():
        if name not in known:
            raise ValueError(f"no run has a setting {name!r}{did_you_mean(name, known)}")
    names = dict.fromkeys(
        show or (name for same in tasks.values() for name in differing([run.settings for run in same]))
    )
    succeed = ["success rate"] if any(run.success_rate is not None for run in found) else []
    rows = [
        (*_cells(run), *(_success(run) for _ in succeed), *(str(run.settings.get(name, "")) for name in names))
        for run in found
    ]
    return [(*HEADINGS, *succeed, *names), *rows]


def _success(run: RunSummary) -> str:
    return "" if run.success_rate is None else f"{run.success_rate:.0%}"


def _cells(run: RunSummary) -> tuple[str, ...]:
    number = ["" if value is None else f"{value:.4g}" for value in (run.mean_return, run.best)]
    seed = str(run.settings.get("seed", ""))
    return str(run.path), run.algorithm, run.env, seed, f"{run.steps:,}", *number, f"{run.seconds:.1f}", run.state
