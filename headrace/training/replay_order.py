"""Repeat an asynchronous run: the settings that have to be equal, and the log of the fragments that it learned from."""

from __future__ import annotations

import tomllib
from pathlib import Path

from headrace.core.types import Json
from headrace.evaluation.history import EVALUATION
from headrace.parallel.schedule import LOG, ReplayOrder
from headrace.setting_schedules import ADAPTIVE
from headrace.training.config import read_toml, to_toml

PROGRESS = ("total_steps", "max_episodes", "max_seconds")  # the first given one measures progress, see limits
# settings that change no weights
FREE = (*EVALUATION, "log_folder", "progress", "replay_order", "save_freq", "step_timeout", "target_return", "window")


def replay_order(run: str, settings: Json) -> ReplayOrder:
    """The order of fragments of another run. settings: this run's, by name.

    Raises FileNotFoundError if the run has no such log, ValueError for different settings, which would give other bits.
    """
    folder = Path(run)
    log, config = folder / LOG, folder / "config.toml"
    for path in (log, config):
        if not path.exists():
            raise FileNotFoundError(
                f"replay_order={run!r}: there is no {path}. Give the folder of a run with collection='async'"
            )
    before, now = read_toml(config), tomllib.loads(to_toml(**settings))
    for name in sorted({*before, *now} - {*FREE, *PROGRESS}) + _measure(now):
        if before.get(name) != now.get(name):
            raise ValueError(
                f"{name} is {before.get(name)!r} in {folder} and {now.get(name)!r} here: replay_order gives the same "
                f"bits with the same settings alone, so give {name}={before.get(name)!r}"
            )
    return ReplayOrder(log, settings["actors"], 1 if settings["exchange"] == "gradients" else None)


def _measure(settings: Json) -> list[str]:
    """The limit that drives the schedules; empty if no setting has a schedule."""
    constant = settings.get("schedule", "constant") in ("constant", ADAPTIVE) and not settings.get("schedules")
    if constant and not {"exploration_fraction", "priority_beta"} & {*settings}:
        return []
    measure = next((name for name in PROGRESS if settings[name] != "none"), None)
    if measure == "max_seconds":
        raise ValueError("replay_order needs total_steps: the schedules of this training follow its time, max_seconds")
    return [measure] if measure else []
