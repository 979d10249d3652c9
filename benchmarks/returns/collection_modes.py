"""Comparison of learning between modes of collection: steps and seconds to the solving return in each.

    python -m benchmarks.returns.collection_modes                        # hours; go on where it was stopped
    python -m benchmarks.returns.collection_modes --only dqn --seeds 3   # a part of it
    python -m benchmarks.returns.collection_modes --table                # of the rows so far, without training

A training is one row in results/modes.jsonl, in a process of its own; one that is there already is not run again.
Solved: the mean return of deterministic episodes is at the threshold, checked at intervals of steps; seconds are those
of training alone. `relative`: median steps compared with those of the same algorithm in one process ("inline"). Every
mode has the settings that are registered for one process, or what follows from these where the policy lags; APPO has
PPO's. "slow": the environments of one actor take ten times as long; "learners": the number is that of learners, which
collect themselves.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import Neighbours, Row, machine, parser, read_rows, run_program, table

FILE = "modes.jsonl"
COLUMNS = ("algorithm", "env", "mode", "actors", "seeds", "solved", "steps", "relative", "seconds", "lag", "lag_max")


class Case(NamedTuple):
    """A mode of collection of one task."""

    algorithm: str
    env: str
    mode: str
    actors: int
    inline: str = ""  # the algorithm to compare with, where it is another one


def _cases() -> list[Case]:
    modes = ("sync", "overlapped", "async")
    found = []
    for algorithm, env in (("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")):
        found += [Case(algorithm, env, "inline", 0), *(Case(algorithm, env, mode, 2) for mode in modes)]
    found.append(Case("a2c", "CartPole-v1", "inline", 0))
    found += [
        Case("a2c", "CartPole-v1", f"gradients {mode}", actors) for mode in ("sync", "async") for actors in (2, 4)
    ]
    lander = "LunarLander-v3"
    found += [Case("ppo", lander, "inline", 0), *(Case("ppo", lander, mode, 2) for mode in ("sync", "overlapped"))]
    return [*found, Case("appo", lander, "async slow", 2, inline="ppo"), Case("ppo", lander, "learners", 2)]


CASES = _cases()


def main() -> None:
    flags = parser((__doc__ or "").splitlines()[0])
    flags.add_argument("--only", default="", help="algorithms, separated by commas; all of them where empty")
    flags.add_argument("--mode", default="", help="likewise modes")
    flags.add_argument("--seeds", type=int, default=10)
    flags.add_argument("--until", type=float, default=math.inf, help="begin no training after so many seconds")
    flags.add_argument("--table", action="store_true", help="print the rows so far, and train nothing")
    options = flags.parse_args()
    chosen = [
        case
        for case in CASES
        if (not options.only or case.algorithm in options.only.split(","))
        and (not options.mode or case.mode in options.mode.split(","))
    ]
    file = options.results / FILE
    if not options.table:
        train(chosen, file, options)
    rows = summary([row for row in read_rows(file) if row["quick"] == options.quick], chosen)
    print(table(rows, COLUMNS))
    print(json.dumps({"benchmark": "modes", "quick": options.quick, "rows": rows}))


def train(cases: list[Case], file: Path, options: Any) -> None:
    """All that is not among the known rows, seed by seed, so that a part of them compares all modes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    about, began = machine(), time.monotonic()
    known = {(*(row[name] for name in Case._fields[:4]), row["seed"]) for row in read_rows(file) if not options.quick}
    for seed in range(1 if options.quick else options.seeds):
        for case in cases:
            if (*case[:4], seed) in known or time.monotonic() - began > options.until:
                continue
            neighbours = Neighbours()
            arguments = [*case[:4], "--seed", seed, *(["--quick"] if options.quick else [])]
            try:
                found = run_program(sys.executable, "returns/collection_modes_one.py", *arguments, timeout=7200)
            except RuntimeError as error:
                print(*case[:4], f"failed: {error}", file=sys.stderr, flush=True)
                continue
            row = {**case._asdict(), "seed": seed, **found, "quick": options.quick, "others_cpu": neighbours.busy()}
            with open(file, "a") as lines:
                lines.write(json.dumps({**row, "machine": about}) + "\n")
            print(*case[:4], f"seed {seed}: {found['steps']} steps, solved: {found['solved']}", flush=True)


def summary(rows: list[Row], cases: list[Case]) -> list[Row]:
    """A row for each case that has trainings."""
    found, inline = [], {}
    for case in cases:
        same = [row for row in rows if tuple(row[name] for name in Case._fields[:4]) == case[:4]]
        if not same:
            continue
        steps = _median(same, "steps")
        inline.setdefault((case.algorithm, case.env), steps if case.mode == "inline" else None)
        base = inline.get((case.inline or case.algorithm, case.env))
        found.append(
            {
                **case._asdict(),
                "seeds": len(same),
                "solved": sum(row["solved"] for row in same),
                "steps": steps,
                "relative": steps / base if steps and base else None,
                "seconds": _median(same, "seconds"),
                "lag": statistics.mean(row["lag"] for row in same),
                "lag_max": max(row["lag_max"] for row in same),
                "others_cpu": max(row["others_cpu"] or 0.0 for row in same),
            }
        )
    return found


def _median(rows: list[Row], name: str) -> float | None:
    """Median over all seeds; those that did not solve it come last. None where the median seed did not."""
    found = statistics.median_high(row[name] if row["solved"] else math.inf for row in rows)
    return None if math.isinf(found) else float(found)


if __name__ == "__main__":
    main()
