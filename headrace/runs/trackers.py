"""Experiment trackers, which receive each row of metrics under TensorBoard's tags."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from headrace.core.packages import require
from headrace.core.types import Settings

PROJECT = "headrace"  # unless WANDB_PROJECT names another one


class Tracker(Protocol):
    """The interface of a tracker to a run's logs."""

    def row(self, steps: int, scalars: Mapping[str, float]) -> None:
        """Log the scalars of environment step `steps`, which may be earlier than the last."""

    def close(self) -> None:
        """Send the remaining rows."""


class WeightsAndBiases:
    """A run of wandb with this run's settings. A resumed run continues it. Its own files are in FOLDER/wandb/.

    wandb reads its settings from environment variables: with WANDB_MODE=offline it only writes files, for `wandb sync`.
    Raises ImportError without wandb, and what wandb.init() raises, such as without a login.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        require("wandb", "--track wandb needs wandb: pip install 'headrace[wandb]'")
        import wandb

        known = folder / "wandb_id.txt"
        if not known.exists():
            known.write_text(secrets.token_hex(4))
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=f"{folder.parent.name}/{folder.name}",
            id=known.read_text().strip(),
            dir=str(folder),
            config=dict(settings),
            resume="allow",
        )
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def row(self, steps: int, scalars: Mapping[str, float]) -> None:
        """Log a row, with environment steps as x."""
        self._run.log({**scalars, "global_step": steps})

    def close(self) -> None:
        """End the run of wandb."""
        self._run.finish()


def tracker(name: str | None, folder: Path, settings: Settings) -> Tracker | None:
    """Make the tracker of this name."""
    return WeightsAndBiases(folder, settings) if name == "wandb" else None
