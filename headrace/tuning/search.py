"""The fastest settings within a time: each kind of change is tried briefly, then the best in turns by halves.

Successive halving: Jamieson & Talwalkar 2016, arXiv:1502.07943. All that remain are measured in turns, the slower half
is left out, and the others are measured for twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from time import perf_counter

from headrace.tuning.candidates import WAITING_PROCESSES, Candidate, Task
from headrace.tuning.measure import Interrupted, Row, Speedometer

SHORTEST, LONGEST = 0.2, 2.0  # s of a first measurement
FIRST = 1 / 50  # of the time in all that a first measurement takes
LIMIT = 1 / 6  # of the time in all that one iteration may take
EXPLORED = (0.4, 0.75, 0.8)  # of the time at the end of: placements; sizes and modes; refinements
HOPELESS = 0.4  # of the best speed: what cannot reach it by the time of a step, which is not exact, is not measured
NEAR = 0.65  # of the best speed, from which a candidate is measured again
FINALISTS = 6  # measured again, at most
SIMPLER = 0.97  # of the best speed, at which a candidate with fewer processes or changes is chosen instead
MOST_ENVS = 4096
GROWTH = 1.03  # by which more environments have to be faster for yet more to be tried
BRIEF = 2  # first measurements: of iterations longer than this, no modes were tried yet with fewer environments
LITTLE = 0.05  # share of the time in which the learner computes, below which threads and precision are not tried
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
        """Try everything, within the time. An interruption ends it, with what was found until then."""
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
        """Placements and modes with the number of environments that was fastest: a process that does not pay for few
        environments may pay for many. The modes first where the fastest has processes already."""
        best = self._first().candidate
        task = self.task.with_envs(best["num_envs"])
        if best.processes:
            yield from task.modes(best)
        yield from task.placements()
        yield from task.modes(self._first().candidate)

    def _first(self) -> Row:
        """best(), where anything was measured."""
        return simplest(self.ranked(), self.task.base)

    def try_all(self, candidates: Iterable[Candidate], share: float) -> None:
        """Measure those that were not measured before, until this share of the time is over."""
        for candidate in candidates:
            self.try_one(candidate, share)

    def try_one(self, candidate: Candidate, share: float) -> Row:
        """The row of a candidate, which is measured unless it was before or there is no time left."""
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
        """What a candidate would need for which no time is left: at least one iteration, and a window."""
        return f"not tried: no time left, it needs about {max(self.window, self.task.seconds(candidate)):.2g} s more"

    def _hopeless(self, candidate: Candidate) -> str:
        """Why a candidate is not worth its time, by the time of a step of its environments; "" where it may be."""
        seconds, ranked = self.task.seconds(candidate), self.ranked()
        if seconds > LIMIT * self.seconds:
            return f"{TOO_LONG} {seconds:.2g} s or more, for which {seconds / LIMIT:.2g} s of trials are needed"
        most = self.task.num_steps * candidate["num_envs"] / seconds if seconds else 0.0
        if seconds and ranked and most < HOPELESS * ranked[0].rate:
            return f"not tried: at most {most:,.0f} steps/s, by the time of a step"
        return ""

    def _give_back(self, row: Row) -> None:
        """Do not count the time in which kernels were compiled and processes were started."""
        kind = (row.candidate["backend"], row.candidate["device"], row.candidate.processes)
        if kind not in self._started:
            self._started.add(kind)
            self.began += row.starting

    def measure(self, row: Row, seconds: float, limit: float) -> None:
        """Measure a candidate, and say what came of it."""
        self.speeds.measure(row, seconds, limit)
        if row.rates:
            self.task = self.task.as_fast_as(row.candidate, row.rate)
        self.say(f"{row.candidate}: {f'{row.rate:,.0f} steps/s' if row.rates else row.reason}")

    def _try_the_shortest(self) -> None:
        """Measure the candidate with the shortest iteration after all, where each would take too long."""
        waiting = [row for row in self.rows if row.reason.startswith(TOO_LONG)]
        if waiting:
            row = min(waiting, key=lambda row: self.task.seconds(row.candidate))
            row.reason = ""
            self.measure(row, self.window, self.seconds)

    def _climb(self, start: Row, share: float, longest: float = inf) -> None:
        """Try more environments as long as that is faster, or else fewer: first four times as many, then twice.
        longest: s of an iteration, by the speed so far."""
        best = start
        for factor in (4.0, 2.0):
            more = self._while_faster(best, factor, share, longest)
            best = self._while_faster(best, 1 / factor, share, longest) if more is best else more

    def _while_faster(self, best: Row, factor: float, share: float, longest: float) -> Row:
        """The fastest of so many times as many environments, again and again; `best` where that is not faster."""
        while 1 <= (number := self._next(best.candidate, factor)) <= MOST_ENVS:
            if self.task.num_steps * number > longest * best.rate:
                break
            row = self.try_one(self.task.resized(best.candidate, number), share)
            if row.rate <= GROWTH * best.rate:
                break
            best = row
        return best

    def _add_processes(self, best: Row, share: float) -> None:
        """Try twice as many processes, of environments that wait, as long as that is faster: no core bounds them."""
        while number := 2 * best.candidate.processes:
            sized = best.candidate
            if "num_envs" not in self.task.given:
                sized = sized.but(num_envs=min(max(sized["num_envs"], number), MOST_ENVS))
            row = self.try_one(self.task.spread(sized, number), share)
            if row is best or row.rate <= GROWTH * best.rate:
                return
            best = row

    def _next(self, candidate: Candidate, factor: float) -> int:
        """The number of environments to try next. Those that wait: at once as many as have processes of their own."""
        number = int(candidate["num_envs"] * factor)
        return max(number, WAITING_PROCESSES) if self.task.waits and factor > 1 else number

    def halve(self, share: float = 1.0) -> None:
        """Measure those near the best in turns, and leave out the slower half each time."""
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
        """Seconds left of a share of the time."""
        return share * self.seconds - (perf_counter() - self.began)

    def ranked(self) -> list[Row]:
        """Those that were measured, the fastest first."""
        return sorted((row for row in self.rows if row.rates), key=lambda row: row.rate, reverse=True)

    def near(self) -> list[Row]:
        """Those that are not much slower than the fastest."""
        ranked = self.ranked()
        return [row for row in ranked if row.rate >= NEAR * ranked[0].rate]

    def best(self) -> Row | None:
        """The fastest, or one with fewer processes and changes that is as fast within what can be measured."""
        return self._first() if self.ranked() else None


def simplest(ranked: list[Row], base: Candidate) -> Row:
    """Of rows that are about as fast as the first, the one with the fewest processes and changes to `base`."""
    near = [row for row in ranked if row.rate >= SIMPLER * ranked[0].rate]
    return min(near, key=lambda row: (row.candidate.processes, row.candidate.changes(base)))
