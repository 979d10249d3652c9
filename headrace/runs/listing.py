"""List the runs in a folder: settings, steps, returns, and whether they have ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core.terminal import tell
from headrace.core.text import shortened
from headrace.core.types import Json
from headrace.core.writing import check_file
from headrace.runs import checkpoint
from headrace.runs.run import BEST, COMMANDS, ended_by, lock
from headrace.training.config import read_toml

OTHERS = ("study.jsonl", "population.jsonl")  # files of sweeps and populations, whose folders are locked as runs are
TAIL = 2**16  # bytes at the end of a log that contain its last whole row


@dataclass(frozen=True)
class RunSummary:
    """A run's folder, read without its policy."""

    path: Path
    settings: Json  # of its config.toml
    steps: int
    seconds: float  # of training
    mean_return: float | None  # of the last `window` training episodes; None before one has ended
    best: float | None  # the score of best/
    success_rate: float | None  # of the same episodes, if log_info has is_success
    state: str  # "running", the reason for its end ("target_return"), or "interrupted"

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return str(self.settings.get("algorithm", ""))

    @property
    def env(self) -> str:
        """The name of its environment, taken from the folder's name if the environment was made in Python."""
        known = self.settings.get("env", "none")
        return self.path.name.rpartition("_")[0] if known == "none" else str(known)


def runs(folder: str | Path) -> Iterator[RunSummary]:
    """The runs in a folder, at any depth, sorted by the time of their beginning.

    Runs that cannot be read are left out, and lines on stderr say why.

    Raises FileNotFoundError where there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: runs are written to runs/, or to --log-folder")
    found = {path.parent for path in folder.rglob(COMMANDS) if not any((path.parent / x).exists() for x in OTHERS)}
    for path in sorted(found, key=lambda path: (_began(path), path.name)):
        try:
            about = summary(path)
        except Exception as error:  # an error in one run does not hide the others
            tell(f"left out: {path} ({shortened(str(error))})")
            continue
        yield about


def _began(path: Path) -> float:
    try:
        return (path / COMMANDS).stat().st_ctime
    except OSError:  # a link to nowhere, or removed since
        return 0.0


def summary(path: Path) -> RunSummary:
    """Read a run's folder. Raises OSError, ValueError if it cannot be read."""
    settings = read_toml(path / "config.toml")
    row = _last_row(path / "metrics.jsonl")
    best, mean_return = _number(_manifest(path / BEST).get("score")), _number(row.get("return"))
    steps, seconds = int(_number(row.get("steps")) or 0), _number(row.get("seconds")) or 0.0
    success_rate = _number(row.get("success_rate"))
    state = "running" if _is_written(path) else ended_by(path) or "interrupted"
    return RunSummary(path, settings, steps, seconds, mean_return, best, success_rate, state)


def _number(value: object) -> float | None:
    """A number in a file; None for anything else there."""
    return float(value) if isinstance(value, int | float) else None


def _last_row(path: Path) -> Json:
    """The last whole row of metrics.jsonl; empty where there is none."""
    with suppress(OSError), open(check_file(path), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        for line in reversed(file.read().split(b"\n")[:-1]):
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and "return" in row:
                    return row
    return {}


def _manifest(folder: Path) -> Json:
    try:
        return checkpoint.read_manifest(folder)
    except (OSError, ValueError, checkpoint.DamagedCheckpoint):  # there is none, or it cannot be read
        return {}


def _is_written(path: Path) -> bool:
    """Tell whether a training is writing to a run's folder."""
    try:
        lock(path, holder=False).close()
    except (RuntimeError, OSError) as error:
        return isinstance(error, RuntimeError)
    return False
