"""Test of the choice of `headrace tune`: 20 random cases, its choice compared with the best of a grid.

    python -m benchmarks.speed.tuning --only 0        # one case, some minutes; appended to results/tuning.jsonl
    python -m benchmarks.speed.tuning                 # all cases that have no row there yet
    python -m benchmarks.speed.tuning --report        # the table of docs/tuning.md

A case is a cost of a step, its spread, whether it computes (a fixed count of operations) or sleeps, and a size of the
network. tune() has 30 s. A grid of at most 60 cells is then measured for 0.6 s a cell, its best six for 3 s, and the
best two of these and the choice again in turns of 3 s: the best of many noisy cells is luck in part. The ratio is the
median over the turns of the choice's speed to a cell's, the lower of two. Returns of these environments do not change,
so steps/s decide. A case takes about 3.5 minutes.
"""

from __future__ import annotations

import random
import statistics
import sys
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, last_rows, parser, table
from benchmarks.speed.counted_env import CountedEnv, calibrated
from benchmarks.speed.timed_env import RARE, TIMES
from headrace.core.cores import cores
from headrace.training.plan import TrainPlan, settle
from headrace.training.trainer import Trainer
from headrace.tuning.candidates import Candidate, Task, even
from headrace.tuning.measure import Pools, Speedometer
from headrace.tuning.measure import Row as Measured

CASES, CELLS = 20, 60
NUM_STEPS = 16
BRIEF, NEXT = 0.2, 6  # share of a cell's time for the first measurement; cells that are then measured for all of it
TURNS, BEST = 4, 2  # of the last measurement: turns, and cells of the grid in them
WITHIN = 0.9  # of the best speed
COLUMNS = ("case", "step", "hidden", "choice", "sps", "best of the grid", "best_sps", "ratio", "within")


class Case(NamedTuple):
    """Environment and network that are trained."""

    number: int
    milliseconds: float  # of a step, in the mean
    sleeps: bool
    heavy: bool  # one step in a hundred takes a hundred times as long; of those that sleep
    hidden: tuple[int, int]

    @property
    def step(self) -> str:
        kind = "sleeps" if self.sleeps else "computes"
        return f"{kind} {self.milliseconds:.3g} ms{', spread' if self.heavy else ''}"

    def env(self) -> partial[CountedEnv]:
        """Function that makes an environment."""
        seconds = self.milliseconds / 1e3
        if not self.sleeps:
            return partial(CountedEnv, calibrated(seconds))
        usual = seconds / (1 + RARE * (TIMES - 1)) if self.heavy else seconds
        return partial(CountedEnv, 0, usual, self.heavy)

    def options(self) -> Row:
        """Settings of its training."""
        return {"num_steps": NUM_STEPS, "hidden": self.hidden, "progress": "none", "total_steps": 10**9}


def cases() -> list[Case]:
    """Drawn once for all: costs are uniform in their logarithm."""
    draw = random.Random(18)
    found = []
    for number in range(CASES):
        sleeps = number % 2 == 1
        low, high = (0.2, 10.0) if sleeps else (0.01, 1.0)
        milliseconds = low * (high / low) ** draw.random()
        width = draw.choice((16, 64, 256))
        heavy = sleeps and draw.random() < 0.5
        found.append(Case(number, round(milliseconds, 4), sleeps, heavy, (width, width)))
    return found


def grid(case: Case, base: Candidate) -> list[Candidate]:
    """Cells of each placement, mode and number of environments."""
    numbers = (8, 32) if case.sleeps else tuple(dict.fromkeys((max(1, cores() // 2), cores())))
    cells = [base]
    for number in numbers:
        cells.append(base.but(actors=number, collection="overlapped"))
        if number == 1:
            continue
        cells += [base.but(workers=number), base.but(actors=number), base.but(workers=number, collection="async")]
        actors = even(number, base["num_envs"])
        cells.append(base.but(actors=actors, collection="async", max_policy_lag=1))
    sizes = (64, 256, 1024) if case.sleeps else (16, 64, 256, 1024)
    found = [cell.but(num_envs=size) for size in sizes for cell in cells]
    found += [
        cell.but(threads=cores()) for cell in found if cell["workers"] in (None, numbers[-1]) and not cell["actors"]
    ]
    return list(dict.fromkeys(found))[:CELLS]


def fastest(rows: list[Measured], number: int) -> list[Measured]:
    """Rows of the highest speeds, the best first; no row that failed."""
    return sorted((row for row in rows if row.rates), key=lambda row: -row.rate)[:number]


def in_turn(speeds: Speedometer, rows: tuple[Measured, ...], reverse: bool, seconds: float) -> list[float]:
    """Steps per second of each row, measured one right after the other: the machine's speed changes with time."""
    found = {}
    for row in reversed(rows) if reverse else rows:
        before = len(row.rates)
        speeds.measure(row, seconds, 4 * seconds)
        found[row.candidate] = statistics.median(row.rates[before:])
    return [found[row.candidate] for row in rows]


def measured(case: Case, seconds: float, cell_seconds: float) -> Row:
    """tune()'s choice and the best of the grid, timed again in turns."""
    env, options = case.env(), case.options()
    found = hr.tune("ppo", env, seconds=seconds, by="steps", **options)

    print(f"case {case.number}, {case.step}, hidden {case.hidden[0]}: {found.reason}", file=sys.stderr, flush=True)

    def settled(settings: Any) -> TrainPlan:
        return settle("ppo", env, None, None, {**options, **settings})

    with Pools() as pools:
        speeds = Speedometer(settled, Trainer.of, pools, lambda: False)
        choice = Measured(found.chosen.candidate)
        base = Candidate.of(settled({}).config).but(device="cpu")
        rows = [Measured(cell) for cell in grid(case, base)]
        task, limit = Task.of(settled({}), frozenset()), 2 * cell_seconds  # of an iteration
        for row in rows:
            if task.seconds(row.candidate) > limit:
                row.reason = "left out: one iteration would take too long"
            else:
                speeds.measure(row, BRIEF * cell_seconds, 2 * limit)
            print(f"  {row.candidate}: {f'{row.rate:,.0f}' if row.rates else row.reason}", file=sys.stderr, flush=True)
        finalists = [Measured(row.candidate) for row in fastest(rows, NEXT)]
        for row in finalists:
            speeds.measure(row, cell_seconds, 2 * limit)
        best = fastest(finalists, BEST)
        again = [Measured(row.candidate) for row in best if row.candidate != choice.candidate]
        turns = [in_turn(speeds, (choice, *again), turn % 2 == 1, cell_seconds) for turn in range(TURNS)]
    ratios = {n: statistics.median(rates[0] / rates[n] for rates in turns) for n in range(1, 1 + len(again))}
    ratio, rival = min(((ratio, again[n - 1]) for n, ratio in ratios.items()), default=(1.0, choice), key=itemgetter(0))
    return {
        "case": case.number,
        "step": case.step,
        "hidden": case.hidden[0],
        "choice": str(choice.candidate),
        "sps": choice.rate,
        "best of the grid": str(rival.candidate),
        "best_sps": rival.rate,
        "ratio": ratio,
        "within": ratio >= WITHIN,
        "cells": sum(bool(row.rates) for row in rows),
        "turns": {str(row.candidate): [rates[n] for rates in turns] for n, row in enumerate((choice, *again))},
        "tried": len(found.rows),
    }


def report(rows: dict[int, Row]) -> None:
    """All cases in one table, and how many choices were near the best."""
    ordered = [rows[number] for number in sorted(rows)]
    print(table(ordered, COLUMNS))
    if ordered:
        within = sum(row["within"] for row in ordered)
        middle = statistics.median(row["ratio"] for row in ordered)
        print(f"within 10 % of the best of the grid: {within} of {len(ordered)} cases; median ratio {middle:.3f}")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--only", type=int, nargs="+", choices=range(CASES), metavar="N", help="cases, 0 to 19")
    flags.add_argument("--seconds", type=float, default=30.0, help="of tune()")
    flags.add_argument("--cell", type=float, default=3.0, help="seconds of a cell of the grid")
    flags.add_argument("--report", action="store_true", help="print what was measured, and measure nothing")
    options = flags.parse_args()
    done = last_rows(options.results / "tuning.jsonl", "case")
    if options.report:
        report(done)
        return
    if options.quick:
        options.seconds, options.cell = 5.0, 0.1
    numbers = options.only or [number for number in range(1 if options.quick else CASES) if number not in done]
    for number in numbers:
        neighbours = Neighbours()
        rows = [measured(cases()[number], options.seconds, options.cell)]
        print(table(rows, COLUMNS))
        finish("tuning", rows, options, neighbours, seconds=options.seconds, cell=options.cell)


if __name__ == "__main__":
    main()
