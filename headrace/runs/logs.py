"""The growing files of a run: monitor.csv, metrics.jsonl, TensorBoard's events, and with collection="async"
fragments.bin. That has 16 bytes for each fragment in the order in which they were learned, as many per update as there
are actors."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from headrace.core.types import Json, Settings
from headrace.core.writing import sync, writing
from headrace.parallel.schedule import LOG as FRAGMENTS
from headrace.runs.events import EventFile

# Names of Stable-Baselines3, so that existing dashboards work.
TENSORBOARD = {
    "return": "rollout/ep_rew_mean",
    "length": "rollout/ep_len_mean",
    "exploration_rate": "rollout/exploration_rate",
    "success_rate": "rollout/success_rate",
    "eval_return": "eval/mean_reward",
    "eval_length": "eval/mean_ep_length",
    "eval_success_rate": "eval/success_rate",
    "steps_per_second": "time/fps",
}
COUNTERS = ("steps", "seconds", "iteration", "episodes")
MONITOR, METRICS = "monitor.csv", "metrics.jsonl"
LEAST_INTERVAL = 0.1  # least s of training between two rows of metrics
GROWTH = 0.01  # or, if larger, this share of the training so far: a long run has some thousand rows, not millions
EVENTS_AFTER = 1.0  # s: a shorter run loads tensorboardX, which takes a quarter of a second, after its training


class TakesRows(Protocol):
    """A tracker, see runs.trackers."""

    def row(self, steps: int, scalars: Mapping[str, float]) -> None:
        """Take the scalars of an environment step."""


class Logs:
    """Appends to a run's files; rows are buffered until flush(). infos: additional columns of monitor.csv. settings:
    hyperparameters for TensorBoard. tracker: also receives each row of metrics."""

    def __init__(
        self,
        folder: Path,
        env: str,
        infos: Sequence[str] = (),
        settings: Settings | None = None,
        tracker: TakesRows | None = None,
    ) -> None:
        self.folder, self._tracker = folder, tracker
        self._waiting: dict[str, list[bytes]] = {MONITOR: [], METRICS: [], FRAGMENTS: []}
        self._scalars: list[tuple[float, int, dict[str, float]]] = []
        self._events = EventFile(folder, settings=settings)
        self._started, self._next_row = time.monotonic(), 0.0
        if not (folder / MONITOR).exists():
            head = f"#{json.dumps({'t_start': time.time(), 'env_id': env})}\n{','.join(('r', 'l', 't', *infos))}\n"
            self._waiting[MONITOR].append(head.encode())

    def episodes(
        self,
        returns: Sequence[float],
        lengths: Sequence[int],
        seconds: float,
        infos: Mapping[str, Sequence[float]] = MappingProxyType({}),
    ) -> None:
        """Log finished episodes in Stable-Baselines3's columns: return, length and seconds of training, then infos,
        empty if an episode did not report one."""
        t = round(seconds, 6)
        for total, length, *others in zip(returns, lengths, *infos.values(), strict=True):
            row = (round(total, 6), length, t, *("" if isnan(x) else round(x, 6) for x in others))
            self._waiting[MONITOR].append((",".join(map(str, row)) + "\n").encode())

    def fragments(self, records: bytes) -> None:
        """Log the fragments of a rollout; see parallel.schedule."""
        if records:
            self._waiting[FRAGMENTS].append(records)

    def due(self, seconds: float) -> bool:
        """Tell whether another row of metrics is due."""
        return seconds >= self._next_row

    def row(self, row: Json, more: Mapping[str, float] | None = None) -> None:
        """Log one row of metrics, which may be of an earlier step than the last, and write the buffer. more: scalars
        only for TensorBoard and the tracker, by tag."""
        self._next_row = max(self._next_row, row["seconds"] + max(LEAST_INTERVAL, GROWTH * row["seconds"]))
        self._waiting[METRICS].append(json.dumps(row).encode() + b"\n")
        tags = tensorboard_tags(row) | dict(more or {})
        self._scalars.append((time.time(), row["steps"], tags))
        if self._tracker is not None:
            self._tracker.row(row["steps"], tags)
        self.flush()

    def flush(self) -> None:
        """Write the buffered rows. Raises OSError, naming the file."""
        for name, lines in self._waiting.items():
            if lines:
                with writing(self.folder / name), open(self.folder / name, "ab") as file:
                    file.write(b"".join(lines))
                lines.clear()
        if self._events.begun or time.monotonic() - self._started > EVENTS_AFTER:
            self._write_events()

    def _write_events(self) -> None:
        if self._scalars:
            with writing(self.folder, "TensorBoard's events"):
                self._events.write(self._scalars)
            self._scalars.clear()

    def close(self) -> None:
        """Write the remaining rows. Raises OSError."""
        self.flush()
        self._write_events()
        self._events.close()

    def positions(self) -> dict[str, int]:
        """The length of each file with all rows written, for checkpoints, after sync()."""
        self.flush()
        self._write_events()
        return {path.name: path.stat().st_size for path in self._files()}

    def sync(self) -> None:
        """Sync the files to the disk. Raises OSError, naming the file."""
        for path in self._files():
            with writing(path), open(path, "a") as file:
                sync(file.fileno())

    def _files(self) -> list[Path]:
        return [path for path in (self.folder / name for name in self._waiting) if path.exists()]

    def rewind(self, positions: Mapping[str, int], steps: int) -> Json:
        """Remove rows written after a checkpoint, which the resumed run writes again. Returns the metrics of the last
        remaining step.

        TensorBoard ignores rows of `steps` and later, and may then show an evaluation of an earlier step twice.
        """
        for name, size in positions.items():
            path = self.folder / name
            held = path.stat().st_size if path.exists() else 0
            if held < size:
                lost = f"{path} has {held:,} of the {size:,} bytes that it had when the checkpoint was saved"
                warnings.warn(f"{lost}: rows are missing", stacklevel=3)
            elif held > size:
                with writing(path):
                    os.truncate(path, size)
            if held and name != FRAGMENTS and not _ends_a_line(path):  # an incomplete row
                with writing(path):
                    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self._events = EventFile(self.folder, purge=steps)
        return last_metrics(self.folder / METRICS)


def _ends_a_line(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def last_metrics(path: Path) -> Json:
    """The metrics of the last step in a file, merged from all of its rows that can be read; empty without rows."""
    last: Json = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError, TypeError, KeyError):
            row = json.loads(line)
            later = row["steps"] - last.get("steps", -1)
            last = last | row if later == 0 else row if later > 0 else last
    return last


def tensorboard_tags(row: Json) -> dict[str, float]:
    """The TensorBoard scalars of one row of metrics, by tag."""
    shown = {name: float(value) for name, value in row.items() if value is not None and name not in COUNTERS}
    return {_tag(name): value for name, value in shown.items()}


def _tag(name: str) -> str:
    """The tag of a column. A name with a slash is its own tag, except for returns of groups of agents."""
    if name.startswith("info/"):
        return f"rollout/{name.removeprefix('info/')}"
    own = "/" in name and not name.startswith("return/")
    return name if own else TENSORBOARD.get(name, f"train/{name}")
