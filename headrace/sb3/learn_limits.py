"""The limit of one call of learn()."""

from __future__ import annotations

from headrace.training.episodes import Episodes
from headrace.training.limits import Limits
from headrace.training.trainer import Trainer


class LearnLimits(Limits):
    """Ends a training after `more` further steps. num_timesteps: the model's count of steps so far, which begins again
    with each learn() unless that is to go on; the trainer's own never does."""

    def __init__(self, trainer: Trainer, num_timesteps: int, more: int) -> None:
        super().__init__(trainer.config)
        self._difference = trainer.steps - num_timesteps
        self.total = num_timesteps + more

    def counted(self, steps: int) -> int:
        """The model's count of steps, by the trainer's."""
        return steps - self._difference

    def remaining(self, num_timesteps: int) -> float:
        """The fraction of the training that remains, for schedules: 1 .. 0."""
        return 1.0 - num_timesteps / self.total

    def progress(self, steps: int, episodes: int, seconds: float) -> float:
        """Fraction of the training done, 0 .. 1."""
        return min(self.counted(steps) / self.total, 1.0)

    def reached(self, steps: int, episodes: Episodes, seconds: float) -> str:
        """The name of the limit where it is reached."""
        return "total_steps" if self.counted(steps) >= self.total else ""
