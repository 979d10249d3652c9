"""A training that shares its process with others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.runs.task_threads import check_together
from headrace.training.loop import Training
from headrace.training.trainer import Trainer


class Agent(Training):
    """A training in a thread, at the same time as others. Its beginning raises NotTogether if it cannot share the
    process.

    own_folder: its run's folder; None before it is made.
    """

    def __init__(self, *names: Any, **options: Any) -> None:
        super().__init__(*names, **options)
        self.own_folder: Path | None = None

    def _new_folder(self, trainer: Trainer) -> Path:
        check_together(trainer)
        self.own_folder = super()._new_folder(trainer)
        return self.own_folder
