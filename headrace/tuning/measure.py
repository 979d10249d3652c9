"""Measure steps per second of trainings: whole iterations, within windows of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Any, NoReturn, Protocol

from headrace.core.stopping import Stopped
from headrace.core.text import shortened
from headrace.core.types import Settings
from headrace.envs.workers.process import Workers
from headrace.training.iteration import IterationResult
from headrace.training.plan import TrainPlan
from headrace.tuning.candidates import Candidate

WINDOWS = 3  # windows of a measurement, if iterations are short enough
AHEAD = {"overlapped": 1, "async": 2}  # rollouts that actors collect before the first update
REASON = 90  # largest number of characters of a reason


class Stepped(Protocol):
    """The part of Trainer's interface that is used here."""

    steps: int

    def iterate(self, stop: Callable[[], bool] | None = None) -> IterationResult: ...

    def close(self) -> None: ...


Make = Callable[[TrainPlan], Stepped]


class Interrupted(Exception):
    """The user has asked to end."""


@dataclass
class Row:
    """A candidate and its results."""

    candidate: Candidate
    rates: list[float] = field(default_factory=list)  # steps/s, of each window
    fractions: Mapping[str, float] = field(default_factory=dict)  # of the time, by part, in the last window
    reason: str = ""  # why there are no rates
    untried: bool = False  # whether there was no time to try it
    starting: float = 0.0  # s of the last start: processes and compiling
    error: Exception | None = None  # the exception, if it failed
    seconds_to_return: list[float] = field(default_factory=list)  # of each run that reached the common return
    behind: str = ""  # why it did not reach the return, if it was tried

    @property
    def ratio(self) -> float | None:
        """R, seconds of collecting per second of learning; None if the two are not separate."""
        learn = self.fractions.get("learning", 0.0)
        return sum(self.fractions.get(part, 0.0) for part in ("env", "inference")) / learn if learn else None

    @property
    def computing(self) -> float:
        """Share of the time in which this process learned and chose actions."""
        return self.fractions.get("learning", 0.0) + self.fractions.get("inference", 0.0)

    @property
    def rate(self) -> float:
        """Median of steps per second; 0 if it failed."""
        return median(self.rates) if self.rates else 0.0


class Pools:
    """Processes that are started once for all candidates with the same number."""

    def __init__(self) -> None:
        self._pools: dict[int, Workers] = {}

    def of(self, candidate: Candidate) -> Settings:
        """The processes of a candidate, as settings of train(); empty if it needs none."""
        number = candidate.processes
        if not number:
            return {}
        if number not in self._pools:
            self._pools[number] = Workers(number)
        return {"actors" if candidate["actors"] else "workers": self._pools[number]}

    def drop(self, candidate: Candidate) -> None:
        """End the processes of a candidate that has failed."""
        pool = self._pools.pop(candidate.processes, None)
        if pool is not None:
            pool.close()

    def __enter__(self) -> Pools:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._pools.values():
            pool.close()


class Speedometer:
    """Measures candidates, and keeps their processes.

    settled: makes a plan of settings. make: makes the Trainer of a plan. stop: whether the user has asked to end. seed:
    of a candidate's first measurement. Further ones have other seeds, since the cost of a step may depend on the seed.
    """

    def __init__(
        self,
        settled: Callable[[Settings], TrainPlan],
        make: Make,
        pools: Pools,
        stop: Callable[[], bool],
        seed: int = 0,
    ) -> None:
        self.settled, self.make, self.pools, self.stop, self.seed = settled, make, pools, stop, seed

    def plan(self, row: Row) -> TrainPlan:
        """The plan of a candidate, which learns from the first rollout on. Raises ValueError for settings that do not
        go together."""
        seed = self.seed + len(row.rates)
        plan = self.settled({**row.candidate.settings, **self.pools.of(row.candidate), "seed": seed})
        own: Any = plan.algorithm_config
        if own is not None and "learning_starts" in {setting.name for setting in fields(own)}:
            plan = replace(plan, algorithm_config=replace(own, learning_starts=1))
        return plan

    def measure(self, row: Row, seconds: float, limit: float) -> None:
        """Add windows of `seconds` in total to a row, or the reason why there are none.

        limit: s after which an iteration is given up. Raises Interrupted.
        """
        trainer, began = None, perf_counter()
        try:
            trainer = self.make(self.plan(row))
            row.starting = perf_counter() - began
            row.rates += self._windows(trainer, row, seconds, limit)
        except Stopped:
            if not self.stop():
                row.reason = f"an iteration takes more than {limit:.2g} s"
        except Exception as error:
            row.error, row.reason = error, reason_of(error)
        finally:
            if trainer is not None:
                with suppress(Exception):  # it may have failed already
                    trainer.close()
        if row.error is not None:
            self.pools.drop(row.candidate)
        if self.stop():
            raise Interrupted

    def _windows(self, trainer: Stepped, row: Row, seconds: float, limit: float) -> list[float]:
        """Steps per second of each window. Iterations before the first one do not count, unless they take too long."""
        rates: list[float] = []
        ahead = AHEAD.get(row.candidate["collection"], 0) if row.candidate["actors"] else 0
        for number in range(2 if ahead else 1):
            before, since = trainer.steps, perf_counter()
            row.fractions = trainer.iterate(self._stopping(limit)).fractions
            if perf_counter() - since > seconds and number >= ahead:
                return [(trainer.steps - before) / (perf_counter() - since)]
        began = since = perf_counter()
        before = trainer.steps
        while True:
            row.fractions = trainer.iterate(self._stopping(limit)).fractions
            now = perf_counter()
            if now - since >= seconds / WINDOWS:
                rates.append((trainer.steps - before) / (now - since))
                before, since = trainer.steps, now
            if now - began >= seconds:
                return rates

    def _stopping(self, limit: float) -> Callable[[], bool]:
        until = perf_counter() + limit
        return lambda: perf_counter() > until or self.stop()


def reason_of(error: Exception) -> str:
    """Describe an error in one short line."""
    return shortened(f"{type(error).__name__}: {error}", REASON)


def raise_first(rows: list[Row]) -> NoReturn:
    """Raise the error of the first row that has one, or RuntimeError with the rows' reasons."""
    for row in rows:
        if row.error is not None:
            raise row.error
    reasons = "; ".join(f"{row.candidate}: {row.reason}" for row in rows)
    raise RuntimeError(f"nothing could be measured: {reasons}: give more seconds, or fewer num_steps or environments")
