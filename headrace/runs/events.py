"""TensorBoard's event file, written in the caller's thread. tensorboardX's SummaryWriter uses its own thread, and waits
for ever if a full disk has ended that thread."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.types import Settings

if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter

COMPARED = ("rollout/ep_rew_mean", "eval/mean_reward")  # in the table of hyperparameters
Rows = Sequence[tuple[float, int, Mapping[str, float]]]  # seconds since 1970, environment steps, scalars by tag


class EventFile:
    """One file of scalars in a folder. purge: the step from which on TensorBoard ignores earlier files. settings:
    entries of TensorBoard's table of hyperparameters."""

    def __init__(self, folder: Path, purge: int | None = None, settings: Settings | None = None) -> None:
        self.folder, self._settings = folder, settings
        self._purge = purge
        self._writer: EventsWriter | None = None

    @property
    def begun(self) -> bool:
        """True if the file exists, and tensorboardX is loaded."""
        return self._writer is not None

    def write(self, rows: Rows) -> None:
        """Append rows. Raises OSError."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        if self._writer is None:
            self._writer = self._begin()
        for moment, step, tags in rows:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in tags.items()]
            self._writer.write_event(Event(wall_time=moment, step=step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file. Raises OSError."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _begin(self) -> EventsWriter:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        # the name has whole seconds: without a suffix a run that is resumed at once would write over its first file
        writer = EventsWriter(str(self.folder / "events"), f".{os.getpid()}.{time.time_ns()}")
        if self._purge is not None:
            start = SessionLog(status=SessionLog.START)
            writer.write_event(Event(wall_time=time.time(), step=self._purge, session_log=start))
        if self._settings is not None:
            from tensorboardX.summary import hparams

            plain = {name: x if _is_number(x) else str(x) for name, x in self._settings.items()}
            for summary in hparams(plain, dict.fromkeys(COMPARED)):
                writer.write_event(Event(wall_time=time.time(), summary=summary))
        return writer


def _is_number(value: object) -> bool:
    """True if tensorboardX can write a setting as a number. It warns about infinite ones, which are left out."""
    return isinstance(value, bool | int | float) and math.isfinite(value)
