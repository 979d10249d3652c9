"""Wall time to the same return: trainings of the few candidates that are fastest and learn in different ways.

Steps per second alone mislead: more environments, or older experience, may need more steps to the same return.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median, pstdev
from time import perf_counter

from headrace.core.stopping import Stopped
from headrace.tuning.candidates import Candidate
from headrace.tuning.measure import Interrupted, Row, Speedometer, reason_of

MOST = 3  # trainings that are compared
ROUNDS = 5  # of them with other seeds, at most
FIRST = 1 / 3  # of the time in all that the first training may take
RISE = 0.8  # of the first training's rise in return, at which its time is taken
CLEAR = 4.0  # standard errors of a mean by which a return has to rise
PATIENCE = 2.0  # times the best time, after which a training is given up


@dataclass
class Trace:
    """The mean return of the last episodes of a training, as it went on."""

    points: list[tuple[float, float]] = field(default_factory=list)  # s of training, return; once the window is full
    last: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # returns

    def seconds_to(self, target: float) -> float | None:
        """Seconds until the mean return was there."""
        return next((seconds for seconds, mean in self.points if mean >= target), None)

    def risen_to(self) -> float | None:
        """A return that it has risen to from its beginning; None where it has not clearly risen."""
        if len(self.points) < 2:
            return None
        first, highest = self.points[0][1], max(mean for _, mean in self.points)
        noise = pstdev(self.last) / len(self.last) ** 0.5
        return first + RISE * (highest - first) if highest - first > CLEAR * noise else None


class Race:
    """Trainings to a common return, within a time.

    target: the return; None: one that the first training rises to. seed: of the first training of each.
    """

    def __init__(
        self, speeds: Speedometer, seconds: float, target: float | None, seed: int, say: Callable[[str], None]
    ) -> None:
        self.speeds, self.seconds, self.target, self.seed, self.say = speeds, seconds, target, seed, say
        self.began = perf_counter()

    def run(self, rows: list[Row]) -> Row | None:
        """The row that reached the return first, in the median over seeds; None where that cannot be said.

        Raises Interrupted.
        """
        if len(rows) < 2 or not self._first(rows[0]):
            return None
        for round_number in range(ROUNDS):
            for row in rows[1:] if round_number == 0 else rows:
                if round_number and not row.seconds_to_return:
                    continue
                limit = min(self._patience(rows), self.left())
                if limit <= (median(row.seconds_to_return) if row.seconds_to_return else 0.0):
                    continue
                self._another(row, limit, round_number)
        return fastest(rows)

    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - (perf_counter() - self.began)

    def _patience(self, rows: list[Row]) -> float:
        return PATIENCE * min(median(row.seconds_to_return) for row in rows if row.seconds_to_return)

    def _first(self, row: Row) -> bool:
        """Train by the fastest candidate; False where there is no return to compare by."""
        trace = self._trace(row, FIRST * self.seconds, 0)
        if trace is None:
            return False
        if self.target is None or trace.seconds_to(self.target) is None:
            self.target = trace.risen_to()
        if self.target is None:
            row.behind = "its return did not clearly rise"
            return False
        self._note(row, trace)
        return True

    def _another(self, row: Row, limit: float, seed: int) -> None:
        trace = self._trace(row, limit, seed)
        if trace is not None:
            self._note(row, trace, limit)

    def _trace(self, row: Row, limit: float, seed: int) -> Trace | None:
        """train(); None, with the reason in the row, where it fails."""
        try:
            return self.train(row.candidate, limit, self.target, seed)
        except Interrupted:
            raise
        except Exception as error:
            row.behind = reason_of(error)
            return None

    def _note(self, row: Row, trace: Trace, limit: float = 0.0) -> None:
        assert self.target is not None
        seconds = trace.seconds_to(self.target)
        if seconds is None:
            row.behind = row.behind or f"not at {self.target:.4g} after {limit:.2g} s"
        else:
            row.seconds_to_return.append(seconds)
        result = row.behind if seconds is None else f"a return of {self.target:.4g} after {seconds:.2f} s"
        self.say(f"{row.candidate}: {result}")

    def train(self, candidate: Candidate, limit: float, target: float | None, seed: int) -> Trace:
        """Train from the beginning, until the return is reached or the time is over."""
        trace = Trace()
        settings = {**candidate.settings, **self.speeds.pools.of(candidate), "seed": self.seed + seed}
        plan = self.speeds.settled(settings)
        trace.last = deque(maxlen=plan.config.window)
        trainer = self.speeds.make(plan)
        until = perf_counter() + limit
        try:
            while perf_counter() < until:
                result = trainer.iterate(lambda: perf_counter() > until or self.speeds.stop())
                trace.last.extend(result.returns)
                if result.window_full and result.mean_return is not None:
                    trace.points.append((result.seconds, result.mean_return))
                    if target is not None and result.mean_return >= target:
                        break
        except Stopped:
            pass
        finally:
            trainer.close()
        if self.speeds.stop():
            raise Interrupted
        return trace


def finalists(ranked: list[Row], base: Candidate) -> list[Row]:
    """The fastest of each way to learn, MOST of them; the way of `base`, one process as it was given, among them."""
    ways: dict[tuple[object, ...], Row] = {}
    for row in ranked:
        ways.setdefault(row.candidate.learns_as, row)
    chosen = list(ways.values())[:MOST]
    usual = ways.get(base.learns_as)
    if usual is not None and usual not in chosen:
        chosen[-1] = usual
    return chosen


def fastest(rows: list[Row]) -> Row | None:
    """The row that reached the return in the shortest time; None where only one was tried."""
    tried = [row for row in rows if row.seconds_to_return or row.behind]
    reached = [row for row in tried if row.seconds_to_return]
    if len(tried) < 2 or not reached:
        return None
    return min(reached, key=lambda row: median(row.seconds_to_return))
