"""Compare wall times to the same return, by trainings of the fastest candidates that learn in different ways.

Steps per second alone are misleading: with more environments, or older experience, more steps may be needed to the same
return.
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
ROUNDS = 5  # largest number of trainings of each, with different seeds
FIRST = 1 / 3  # largest share of all time for the first training
RISE = 0.8  # fraction of the first training's rise in return that defines the common return
CLEAR = 4.0  # least rise of a return, in standard errors of a mean
PATIENCE = 2.0  # multiple of the best time after which a training is given up


@dataclass
class Trace:
    """The mean return of the last episodes in the course of a training."""

    points: list[tuple[float, float]] = field(default_factory=list)  # s of training, return; once the window is full
    last: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # returns

    def seconds_to(self, target: float) -> float | None:
        """Seconds until the mean return was reached; None if it was not."""
        return next((seconds for seconds, mean in self.points if mean >= target), None)

    def risen_to(self) -> float | None:
        """A return that the training has risen to; None if the return has not clearly risen."""
        if len(self.points) < 2:
            return None
        first, highest = self.points[0][1], max(mean for _, mean in self.points)
        noise = pstdev(self.last) / len(self.last) ** 0.5
        return first + RISE * (highest - first) if highest - first > CLEAR * noise else None


class Race:
    """Trainings to a common return, within a time.

    target: the return; None for one that the first training rises to. seed: of each candidate's first training.
    """

    def __init__(
        self, speeds: Speedometer, seconds: float, target: float | None, seed: int, say: Callable[[str], None]
    ) -> None:
        self.speeds, self.seconds, self.target, self.seed, self.say = speeds, seconds, target, seed, say
        self.began = perf_counter()

    def run(self, rows: list[Row]) -> Row | None:
        """Return the row that reached the return first, by the median over seeds; None if that cannot be decided.

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
        """Remaining time, s."""
        return self.seconds - (perf_counter() - self.began)

    def _patience(self, rows: list[Row]) -> float:
        return PATIENCE * min(median(row.seconds_to_return) for row in rows if row.seconds_to_return)

    def _first(self, row: Row) -> bool:
        """Train the fastest candidate. False if there is no return for comparisons."""
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
        """Call train(). If it fails, returns None and stores the reason in the row."""
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
    """The fastest candidate of each way of learning, at most MOST, including the way of `base`, one process with the
    given settings."""
    ways: dict[tuple[object, ...], Row] = {}
    for row in ranked:
        ways.setdefault(row.candidate.learns_as, row)
    chosen = list(ways.values())[:MOST]
    usual = ways.get(base.learns_as)
    if usual is not None and usual not in chosen:
        chosen[-1] = usual
    return chosen


def fastest(rows: list[Row]) -> Row | None:
    """The row that reached the return in the shortest time; None if only one was tried."""
    tried = [row for row in rows if row.seconds_to_return or row.behind]
    reached = [row for row in tried if row.seconds_to_return]
    if len(tried) < 2 or not reached:
        return None
    return min(reached, key=lambda row: median(row.seconds_to_return))
