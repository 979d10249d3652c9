"""Search for the fastest settings within a time: each kind of change is tried briefly, then the best ones are compared.

The comparison is successive halving (Jamieson & Talwalkar 2016, arXiv:1502.07943). All remaining candidates are
measured in turns, the slower half is dropped, and the others are measured for twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from time import perf_counter

from headrace.tuning.candidates import WAITING_PROCESSES, Candidate, Task
from headrace.tuning.measure import Interrupted, Row, Speedometer

SHORTEST, LONGEST = 0.2, 2.0  # s of a first measurement
FIRST = 1 / 50  # share of all time for a first measurement
LIMIT = 1 / 6  # largest share of all time for one iteration
EXPLORED = (0.4, 0.75, 0.8)  # share of the time used after placements; sizes and modes; refinements
HOPELESS = 0.4  # share of the best speed: a candidate whose step time, which is not exact, rules it out is not measured
NEAR = 0.65  # share of the best speed from which a candidate is measured again
FINALISTS = 6  # largest number of candidates measured again
SIMPLER = 0.97  # share of the best speed from which a candidate with fewer processes or changes is preferred
MOST_ENVS = 4096
GROWTH = 1.03  # least speed-up by more environments for which still more are tried
BRIEF = 2  # in first measurements: longest iteration of the first climb, before modes are tried
LITTLE = 0.05  # least share of the learner's computing time for which threads and precision are tried
TOO_LONG = "not tried: an iteration takes"


class Search:
    """Measures candidates until the time is over. `rows` has them in the order in which they were tried."""

    def __init__(self, task: Task, speeds: Speedometer, seconds: float, say: Callable[[str], None]) -> None:
        self.task, self.speeds, self.say = task, speeds, say
        self.seconds, self.began = seconds, perf_counter()
        self.rows: list[Row] = []
        self.window = min(max(FIRST * seconds, SHORTEST), LONGEST)
        self.interrupted = False
        self._started: set[tuple[object, ...]] = set()

    def run(self) -> None:
        """Try everything within the time. An interruption ends the search, and keeps its results so far."""
        try:
            self.explore()
            self.halve()
        except Interrupted:
            self.interrupted = True

    def explore(self) -> None:
        """Measure each kind of change for a short time: of placements, modes, sizes, threads and precision."""
        placements, sizes, refinements = EXPLORED
        self.try_all(self.task.placements(), placements)
        if self.best() is None:
            self._try_the_shortest()
        if (best := self.best()) is None:
            return
        climbs = "num_envs" not in self.task.given
        if climbs:
            self._climb(best, sizes, BRIEF * self.window)
        self.try_all(self._others(), sizes)
        if climbs:
            self._climb(self.ranked()[0], sizes)
        if self.task.waits:
            self._add_processes(self.ranked()[0], sizes)
        best = self._first()
        if best.computing > LITTLE:
            self.try_all(self.task.refinements(best.candidate), refinements)

    def _others(self) -> Iterator[Candidate]:
        """Placements and modes with the fastest number of environments: processes that do not pay for few environments
        may pay for many. Modes come first if the fastest candidate has processes already."""
        best = self._first().candidate
        task = self.task.with_envs(best["num_envs"])
        if best.processes:
            yield from task.modes(best)
        yield from task.placements()
        yield from task.modes(self._first().candidate)

    def _first(self) -> Row:
        """The result of best(), if anything was measured."""
        return simplest(self.ranked(), self.task.base)

    def try_all(self, candidates: Iterable[Candidate], share: float) -> None:
        """Measure candidates that were not measured before, until this share of the time is used."""
        for candidate in candidates:
            self.try_one(candidate, share)

    def try_one(self, candidate: Candidate, share: float) -> Row:
        """The row of a candidate. It is measured now, unless it was measured before or no time is left."""
        row = next((row for row in self.rows if row.candidate == candidate), None)
        if row is None:
            row = Row(candidate)
            self.rows.append(row)
        elif not row.untried:
            return row
        row.untried = self.left(share) <= 0
        row.reason = self._unaffordable(candidate) if row.untried else self._hopeless(candidate)
        if not row.reason:
            self.measure(row, self.window, LIMIT * self.seconds)
            self._give_back(row)
        return row

    def _unaffordable(self, candidate: Candidate) -> str:
        """Describe the time that a candidate would need, if none is left: at least one iteration, and a window."""
        return f"not tried: no time left, it needs about {max(self.window, self.task.seconds(candidate)):.2g} s more"

    def _hopeless(self, candidate: Candidate) -> str:
        """Reason why a candidate is not worth measuring, by the step time of its environments; "" if it may be."""
        seconds, ranked = self.task.seconds(candidate), self.ranked()
        if seconds > LIMIT * self.seconds:
            return f"{TOO_LONG} {seconds:.2g} s or more, for which {seconds / LIMIT:.2g} s of trials are needed"
        most = self.task.num_steps * candidate["num_envs"] / seconds if seconds else 0.0
        if seconds and ranked and most < HOPELESS * ranked[0].rate:
            return f"not tried: at most {most:,.0f} steps/s, by the time of a step"
        return ""

    def _give_back(self, row: Row) -> None:
        """Extend the search by the time in which kernels were compiled and processes started."""
        kind = (row.candidate["backend"], row.candidate["device"], row.candidate.processes)
        if kind not in self._started:
            self._started.add(kind)
            self.began += row.starting

    def measure(self, row: Row, seconds: float, limit: float) -> None:
        """Measure a candidate, and report its result."""
        self.speeds.measure(row, seconds, limit)
        if row.rates:
            self.task = self.task.as_fast_as(row.candidate, row.rate)
        self.say(f"{row.candidate}: {f'{row.rate:,.0f} steps/s' if row.rates else row.reason}")

    def _try_the_shortest(self) -> None:
        """Measure the candidate with the shortest iteration, if all were left out for iterations that take too long."""
        waiting = [row for row in self.rows if row.reason.startswith(TOO_LONG)]
        if waiting:
            row = min(waiting, key=lambda row: self.task.seconds(row.candidate))
            row.reason = ""
            self.measure(row, self.window, self.seconds)

    def _climb(self, start: Row, share: float, longest: float = inf) -> None:
        """Try more environments while that is faster, or else fewer: first in factors of four, then of two. longest:
        limit of an iteration, s, estimated from the speed so far."""
        best = start
        for factor in (4.0, 2.0):
            more = self._while_faster(best, factor, share, longest)
            best = self._while_faster(best, 1 / factor, share, longest) if more is best else more

    def _while_faster(self, best: Row, factor: float, share: float, longest: float) -> Row:
        """Multiply the number of environments by `factor` while that is faster. Returns the fastest row, or `best`."""
        while 1 <= (number := self._next(best.candidate, factor)) <= MOST_ENVS:
            if self.task.num_steps * number > longest * best.rate:
                break
            row = self.try_one(self.task.resized(best.candidate, number), share)
            if row.rate <= GROWTH * best.rate:
                break
            best = row
        return best

    def _add_processes(self, best: Row, share: float) -> None:
        """Double the number of processes while that is faster, for environments that wait: cores do not limit it."""
        while number := 2 * best.candidate.processes:
            sized = best.candidate
            if "num_envs" not in self.task.given:
                sized = sized.but(num_envs=min(max(sized["num_envs"], number), MOST_ENVS))
            row = self.try_one(self.task.spread(sized, number), share)
            if row is best or row.rate <= GROWTH * best.rate:
                return
            best = row

    def _next(self, candidate: Candidate, factor: float) -> int:
        """The number of environments to try next. For environments that wait at least WAITING_PROCESSES, so that each
        has a process."""
        number = int(candidate["num_envs"] * factor)
        return max(number, WAITING_PROCESSES) if self.task.waits and factor > 1 else number

    def halve(self, share: float = 1.0) -> None:
        """Measure candidates near the best in turns, and drop the slower half each time."""
        near = self.ranked()[: min(max(len(self.near()), 2), FINALISTS)]
        window = self.window
        while len(near) > 1 and self.left(share) > 0:
            window = min(2 * window, self.left(share) / (2 * len(near)))
            for row in near:
                if self.left(share) > 0:
                    self.measure(row, max(window, SHORTEST), LIMIT * self.seconds)
            near.sort(key=lambda row: row.rate, reverse=True)
            if len(near) > 2:
                near = near[: -(-len(near) // 2)]
            elif near[1].rate < SIMPLER**2 * near[0].rate:
                return

    def left(self, share: float = 1.0) -> float:
        """Remaining seconds of a share of the time."""
        return share * self.seconds - (perf_counter() - self.began)

    def ranked(self) -> list[Row]:
        """Measured rows, the fastest first."""
        return sorted((row for row in self.rows if row.rates), key=lambda row: row.rate, reverse=True)

    def near(self) -> list[Row]:
        """Rows that are not much slower than the fastest."""
        ranked = self.ranked()
        return [row for row in ranked if row.rate >= NEAR * ranked[0].rate]

    def best(self) -> Row | None:
        """The fastest row, or one with fewer processes and changes that is as fast within measuring errors."""
        return self._first() if self.ranked() else None


def simplest(ranked: list[Row], base: Candidate) -> Row:
    """The row with the fewest processes and changes to `base` among those about as fast as the first."""
    near = [row for row in ranked if row.rate >= SIMPLER * ranked[0].rate]
    return min(near, key=lambda row: (row.candidate.processes, row.candidate.changes(base)))
