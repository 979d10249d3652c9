"""How fast the actors of a training are, those of all learners: said once, after some updates."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

from torch import Tensor

from headrace.algorithms.reduce import gathered
from headrace.parallel.actors import RECENT, Actors

LEAST, MOST = 0.5, 3.0  # s of training between which it is said, once there have been RECENT updates


class ActorSpeed:
    """What is known of it until then. wanted: whether it is still to be said; rank 0 says it to the other ranks.

    ranks: training.ranks.Ranks of several learners; None for one.
    """

    def __init__(self, collector: Any, ranks: Any) -> None:
        self.wanted = isinstance(collector, Actors)
        self._collector, self._ranks = collector, ranks
        self._timed: list[tuple[float, float]] = []  # s of learning, and from an update to the next
        self._spent: Tensor | None = None  # Actors.spent() of all ranks

    def gather(self) -> None:
        """With several learners: ask for the seconds of all ranks' actors. All ranks call this at the same point."""
        if self.wanted and self._ranks is not None:
            self._spent = gathered(self._collector.spent(), self._ranks.sum)

    def forecast(self, learn: float, update: float, seconds: float) -> tuple[str, ...]:
        """The line, once it can be said; else nothing. learn: s of learning from the last rollout. update: s from the
        update before to the last. seconds: of training so far."""
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
