"""Limits of a training, and its progress."""

from __future__ import annotations

from headrace.training.config import TrainConfig
from headrace.training.episodes import Episodes


class Limits:
    """The limits of a TrainConfig. The first one reached ends the training."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.evaluated: float | None = None  # the last evaluation's mean return, if no episodes are collected

    def progress(self, steps: int, episodes: int, seconds: float) -> float:
        """Fraction of the training done, 0 .. 1, by the first given of total_steps, max_episodes and max_seconds."""
        config = self.config
        limits = ((steps, config.total_steps), (episodes, config.max_episodes), (seconds, config.max_seconds))
        return next((min(done / limit, 1.0) for done, limit in limits if limit is not None), 0.0)

    def reached(self, steps: int, episodes: Episodes, seconds: float) -> str:
        """The name of a limit that is reached; empty if none is."""
        config, mean = self.config, episodes.mean_return() if episodes.full else self.evaluated
        if config.target_return is not None and mean is not None and mean >= config.target_return:
            return "target_return"
        done = {
            "total_steps": (steps, config.total_steps),
            "max_seconds": (seconds, config.max_seconds),
            "max_episodes": (episodes.count, config.max_episodes),
        }
        return next((name for name, (now, limit) in done.items() if limit is not None and now >= limit), "")
