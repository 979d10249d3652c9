"""`--try`: runs a script again with remedies that need no edit, and measures the gain of each. A turn is one run of
every variant."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev

from headrace.core.cores import cores
from headrace.diagnose.profile.profile import Profile
from headrace.diagnose.record import guardian
from headrace.diagnose.record.processes import ProcessMonitor
from headrace.diagnose.record.run_script import sampled_environment
from headrace.diagnose.record.ticks import TickSender

SECONDS = 15.0  # of training in a run
TURNS, MOST_TURNS = 3, 6  # runs of each variant: further ones while an interval is not narrow
NARROW = 0.15  # half-width of an interval, as a share of the gain
START_UP = 120.0  # s until a run must have begun to train
PERIOD = 0.1  # s between samples: enough to notice that torch was imported
LARGEST = 2e9  # bytes of a folder that is copied
IGNORED = (".git", "__pycache__", ".venv", "venv", "node_modules", "runs", "wandb", "mlruns", "diagnosis", "logs")
UNCERTAIN = 0.03  # least relative uncertainty of a rate, however similar the turns: a machine's speed drifts
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015)  # 95 % quantiles of Student's t with 1, 2 ... degrees of freedom
WORTH = 1.03  # a lower end above this is a gain
CYCLE = 0.5  # a pause between optimizer steps longer than this share of the longest one is between updates
AS_IT_IS = ""  # the name of the run without a change


@dataclass(frozen=True)
class Trial:
    """The gain of a change of environment variables: steps per second with it, divided by those without."""

    change: str  # "OMP_NUM_THREADS=1"
    gain: float  # geometric mean over the turns
    low: float  # low .. high: 90 % prediction interval of the gain in another measurement of three turns
    high: float
    rates: list[float]  # optimizer steps per second, by turn

    @property
    def half_width(self) -> float:
        """Half-width of the interval, as a share of the gain."""
        return (self.high - self.low) / 2 / self.gain

    @property
    def pays(self) -> bool:
        """Tell whether the gain is above its uncertainty."""
        return self.low > WORTH


@dataclass(frozen=True)
class Trials:
    """The results of all changes that were tried."""

    found: list[Trial] = field(default_factory=list)  # the largest gain first
    notes: list[str] = field(default_factory=list)  # what was not tried, and why
    runs: int = 0

    @property
    def best(self) -> Trial | None:
        """The trial that gains most; None if none pays."""
        return next((trial for trial in self.found if trial.pays), None)


def changes(profile: Profile, source: str) -> tuple[list[str], list[str]]:
    """The changes to try for a script, and why others are not tried. source: the script's text, "" if unknown."""
    found, notes = [], []
    if "set_num_threads" in source:
        notes.append("OMP_NUM_THREADS was not tried: the script calls set_num_threads itself.")
    elif cores() > 1:
        found += [f"OMP_NUM_THREADS={number}" for number in sorted({1, cores() // 2} - {0, cores()})]
    if cores() > 1:
        found.append("OMP_WAIT_POLICY=passive")
    if profile.counters.get("cuda"):
        found.append("CUDA_VISIBLE_DEVICES=")
    found = [change for change in found if os.environ.get(change.partition("=")[0]) != change.partition("=")[2]]
    return found, notes


def run(
    command: list[str], tried: Sequence[str], *, seconds: float = SECONDS, turns: int = TURNS, most: int = MOST_TURNS
) -> Trials:
    """Run a command with and without each change, in turns, in a copy of the working folder.

    turns: number of turns for all changes. most: largest number of turns, for changes whose interval is not narrow
    after the first `turns`.

    Raises ValueError if the folder is too large to copy, or no run makes progress that can be counted.
    """
    rates: dict[str, list[float]] = {change: [] for change in (AS_IT_IS, *tried)}
    runs = 0
    with tempfile.TemporaryDirectory(prefix="headrace-try-") as made:
        copy = Path(made) / "folder"
        copy_folder(Path.cwd(), copy)
        here = [_within(copy, word) for word in command]
        for turn in range(max(turns, most)):
            wide = [change for change in tried if turn < turns or _is_wide(change, rates)]
            if not wide:
                break
            for change in (AS_IT_IS, *wide):
                if rates[change] or not turn:  # one that failed is not run again
                    rates[change] += _measured(here, change, copy, seconds)
                    runs += 1
            if not rates[AS_IT_IS]:
                raise ValueError(
                    "--try compares runs by the steps of torch's optimizers, and the script took too few of them "
                    f"within {START_UP:g} s to train and {seconds:g} s of training: leave --try out"
                )
    base = rates.pop(AS_IT_IS)
    found = [compare(change, base, measured) for change, measured in rates.items() if measured]
    notes = [f"With {change} the script did not train." for change, measured in rates.items() if not measured]
    return Trials(sorted(found, key=lambda trial: -trial.gain), notes, runs)


def _is_wide(change: str, rates: dict[str, list[float]]) -> bool:
    """Tell whether further turns would narrow the interval of a change."""
    return bool(rates[change]) and compare(change, rates[AS_IT_IS], rates[change]).half_width > NARROW


def compare(change: str, base: list[float], rates: list[float]) -> Trial:
    """The gain over the runs without a change, turn by turn. Its interval is a prediction interval: the difference
    between the mean of n turns and the mean of TURNS later ones has a variance of (1 / n + 1 / TURNS) times that of one
    turn."""
    logs = [math.log(rate / before) for before, rate in zip(base, rates, strict=False)]
    turns, half = len(logs), UNCERTAIN
    if turns > 1:
        half += STUDENT[min(turns - 1, len(STUDENT)) - 1] * stdev(logs) * math.sqrt(1 / turns + 1 / TURNS)
    gain = math.exp(fmean(logs))
    return Trial(change, gain, gain * math.exp(-half), gain * math.exp(half), rates)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a working folder without runs, logs and virtual environments. Raises ValueError if it is too large."""
    size = 0
    for folder, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name not in IGNORED]
        for name in files:
            with suppress(OSError):
                size += (Path(folder) / name).lstat().st_size
        if size > LARGEST:
            raise ValueError(
                f"--try runs in a copy of {source}, which has over {LARGEST / 1e9:g} GB: call it in a smaller folder"
            )
    shutil.copytree(
        source, target, symlinks=True, ignore=shutil.ignore_patterns(*IGNORED), ignore_dangling_symlinks=True
    )


def _within(copy: Path, word: str) -> str:
    """A path of the command, changed so that it is valid in the copy of the working folder. A script's path leads into
    the copy. The path of a file that is not copied, such as .venv/bin/python, leads to the original."""
    path = Path(word)
    if path.is_absolute() and path.is_relative_to(Path.cwd()) and path.suffix == ".py":
        return str(path.relative_to(Path.cwd()))
    return str(path.absolute()) if path.is_file() and not (copy / path).exists() else word


def _measured(command: list[str], change: str, folder: Path, seconds: float) -> list[float]:
    """Optimizer steps per second of one run; [] if it took too few."""
    with tempfile.TemporaryDirectory(prefix="headrace-diagnose-", ignore_cleanup_errors=True) as spool:
        environment = sampled_environment(Path(spool), PERIOD, 1e9, progress=True)
        if change:
            name, _, value = change.partition("=")
            environment[name] = value
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, env=environment, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet)
        monitor, ticks = ProcessMonitor(process.pid), TickSender(Path(spool))
        try:
            with guardian.guarded(process.pid):
                _watch(process, monitor, Path(spool), seconds)
        finally:
            ticks.stop()
            _end(process, monitor)
        found = rate(points(Path(spool)))
    return [found] if found else []


def _watch(process: subprocess.Popen[bytes], monitor: ProcessMonitor, spool: Path, seconds: float) -> None:
    """Wait until a script has trained for so long, or has ended."""
    end, training = time.monotonic() + START_UP, False
    while process.poll() is None and time.monotonic() < end:
        monitor.poll()
        if not training and points(spool):
            end, training = time.monotonic() + seconds, True
        time.sleep(0.2)
    if training:
        time.sleep(0.6)  # the last points are written


def _end(process: subprocess.Popen[bytes], monitor: ProcessMonitor) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(3.0)
    guardian.end(monitor)
    process.wait()


def points(spool: Path) -> list[tuple[float, int]]:
    """The progress of the process that made the most: (s, optimizer steps so far)."""
    best: list[tuple[float, int]] = []
    for path in spool.glob("*.jsonl"):
        found = []
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith('["progress"'):
                with suppress(json.JSONDecodeError):
                    found += [(moment, count) for moment, count in json.loads(line)[1]]
        if found and (not best or found[-1][1] > best[-1][1]):
            best = found
    return best


def rate(progress: Sequence[tuple[float, int]]) -> float | None:
    """Steps per second. If steps come in updates with pauses between them, only whole updates with their pauses count.

    None for fewer than three points.
    """
    if len(progress) < 3:
        return None
    pauses = [later[0] - before[0] for before, later in pairwise(progress)]
    starts = [point for pause, point in zip(pauses, progress[1:], strict=True) if pause > CYCLE * max(pauses)]
    even = max(pauses) < 4 * median(pauses)
    first, last = (progress[0], progress[-1]) if even or len(starts) < 2 else (starts[0], starts[-1])
    return (last[1] - first[1]) / max(last[0] - first[0], 1e-9)
