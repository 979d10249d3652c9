"""Report the speed of all learners' actors, once, after some updates."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

from torch import Tensor

from headrace.algorithms.reduce import gathered
from headrace.parallel.actors import RECENT, Actors

LEAST, MOST = 0.5, 3.0  # s of training: the report comes after RECENT updates, but within these limits


class ActorSpeed:
    """Collects timings until the report. wanted: whether the report is still to come; rank 0 sends this to the other
    ranks.

    ranks: training.ranks.Ranks of several learners; None for one.
    """

    def __init__(self, collector: Any, ranks: Any) -> None:
        self.wanted = isinstance(collector, Actors)
        self._collector, self._ranks = collector, ranks
        self._timed: list[tuple[float, float]] = []  # s of learning, and s from one update to the next
        self._spent: Tensor | None = None  # Actors.spent() of all ranks

    def gather(self) -> None:
        """Gather the timings of all ranks' actors, if there are several. All ranks call this at the same point."""
        if self.wanted and self._ranks is not None:
            self._spent = gathered(self._collector.spent(), self._ranks.sum)

    def forecast(self, learn: float, update: float, seconds: float) -> tuple[str, ...]:
        """Return the report when it is due, else nothing. learn: s of learning from the last rollout. update: s between
        the last two updates. seconds: of training so far."""
        self._timed.append((learn, update))
        if seconds < LEAST or (len(self._timed) < RECENT and seconds < MOST):
            return ()
        self.wanted = False
        recent = self._timed[-max(RECENT, len(self._timed) // 2) :]  # the first ones take longer
        found = self._collector.forecast(*map(fmean, zip(*recent, strict=True)), self._spent)
        if self._ranks is not None:
            part = self._ranks.part
            found = replace(found, rows=found.rows * part.total // part.size, learners=self._ranks.size)
        return (str(found),)
