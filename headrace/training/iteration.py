"""The result of a training's iteration, which logs, progress displays and checkpoints read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class IterationResult:
    """The state of a training after an iteration. Two results are equal if all but their times is."""

    steps: int  # valid environment steps so far; gradient steps of algorithms that learn from recorded data alone
    iteration: int  # updates so far
    metrics: Mapping[str, float]  # of this iteration's update
    returns: Sequence[float]  # of the episodes that ended in this iteration
    lengths: Sequence[int]  # likewise, steps
    episodes: int  # ended so far
    window: int  # number of last episodes that mean_return and mean_length cover
    window_full: bool
    mean_return: float | None  # None before an episode has ended
    mean_length: float | None
    details: Mapping[str, float | None]  # other columns of metrics.jsonl: returns by group, lag ...
    seconds: float = field(compare=False)  # of training so far: set-up, evaluation and saving excluded
    steps_per_second: float = field(compare=False)  # since this process began
    seconds_left: float | None = field(compare=False)  # until the first limit that can be foreseen
    # of the time in env, inference, learning, other; "waiting for slots" is of the actors' time
    fractions: Mapping[str, float] = field(compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)  # lines for the user
    infos: Mapping[str, Sequence[float]] = field(default_factory=dict)  # numbers of log_info, of the ended episodes
    fragments: bytes = b""  # async: the fragments of the rollout, see runs.logs

    def row(self) -> dict[str, float | None]:
        """One row of metrics.jsonl."""
        return {
            "steps": self.steps,
            "seconds": round(self.seconds, 6),
            "iteration": self.iteration,
            "episodes": self.episodes,
            "steps_per_second": round(self.steps_per_second, 1),
            "return": self.mean_return,
            "length": self.mean_length,
            **self.details,
            **self.metrics,
        }
