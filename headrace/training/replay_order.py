"""Giving an asynchronous run again: the settings that have to be the same, and the log of what it learned from."""

from __future__ import annotations

import tomllib
from pathlib import Path

from headrace.core.types import Json
from headrace.parallel.schedule import LOG, ReplayOrder
from headrace.training.config import read_toml, to_toml

LIMITS = ("total_steps", "max_episodes", "max_seconds", "target_return")
FREE = (  # settings that change no weights
    *("replay_order", "log_folder", "progress", "save_freq", "window", "step_timeout"),
    *("eval_freq", "eval_episodes", "eval_device", "parallel_evaluation"),
)


def replay_order(run: str, settings: Json) -> ReplayOrder:
    """The order of fragments of another run. settings: those of this one, by name.

    Raises FileNotFoundError where the run has no such log; ValueError for other settings, which would give others bits.
    """
    folder = Path(run).expanduser()
    log, config = folder / LOG, folder / "config.toml"
    for path in (log, config):
        if not path.exists():
            raise FileNotFoundError(
                f"replay_order={run!r}: there is no {path}. Give the folder of a run with collection='async'"
            )
    before, now = read_toml(config), tomllib.loads(to_toml(**settings))
    free = FREE if _follows_progress(now) else (*FREE, *LIMITS)
    for name in sorted({*before, *now} - set(free)):
        if before.get(name) != now.get(name):
            raise ValueError(
                f"{name} is {before.get(name)!r} in {folder} and {now.get(name)!r} here: replay_order gives the same "
                "bits with the same settings alone"
            )
    return ReplayOrder(log, settings["actors"])


def _follows_progress(settings: Json) -> bool:
    """Whether learning depends on how much of the training is done."""
    return settings.get("schedule") == "linear" or any(
        name in settings for name in ("exploration_fraction", "priority_beta")
    )
