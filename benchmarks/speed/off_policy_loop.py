"""Gradient steps per second of whole trainings with one environment and one update a step, compared: SAC and TD3, and
(`--algorithms`) DDPG, TQC, CrossQ and DQN with each of its options.

Acting, the environment (Pendulum-v1, of DQN CartPole-v1), the replay buffer and learning all count, as in `train()`;
evaluation and logs do not. `kernel` is Headrace with its compiled environment, `plain` the same without kernels for
policies and learning; the others step Gymnasium's. Libraries take turns; medians over rounds. Each measurement is
appended to results/off_policy_loop.jsonl when it is made, and the medians at the end; `--resume` leaves out what a
former call with the same `--label` measured, and counts it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import NamedTuple

from benchmarks.common import Neighbours, Row, finish, machine, parser, read_rows, run_program, table
from benchmarks.speed.off_policy import interpreters
from benchmarks.speed.off_policy_loop_one import LIBRARIES, SIZES, WORKS

BENCHMARK = "off_policy_loop"
COLUMNS = ("algorithm", "size", "library", "per_second", "per_second_min", "per_second_max", "kernel_ratio")


class Case(NamedTuple):
    """One measurement. number: of the round."""

    number: int
    size: str
    algorithm: str
    library: str


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--algorithms", nargs="+", default=["sac", "td3"], choices=[*WORKS])
    flags.add_argument("--sizes", nargs="+", default=[*SIZES], choices=[*SIZES])
    flags.add_argument("--libraries", nargs="+", default=[x for x in LIBRARIES if x != "plain"], choices=[*LIBRARIES])
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--label", default="", help="stored with the rows")
    flags.add_argument("--resume", action="store_true", help="leave out what a call with this label measured before")
    options = flags.parse_args()
    neighbours, described = Neighbours(), machine()
    found = interpreters(options.libraries, options.peers_home, LIBRARIES)
    rounds, seconds = (1, 0.2) if options.quick else (options.rounds, 2.0)
    done = before(options) if options.resume else {}
    rates: dict[tuple[str, str, str], list[float]] = {}
    for number in range(rounds):
        for size in options.sizes:
            for name in options.algorithms:
                for library, python in found.items():
                    if library not in WORKS[name].libraries:
                        continue
                    case = Case(number, size, name, library)
                    if case not in done:
                        arguments = (library, name, size, "--seconds", seconds)
                        beside = Neighbours()
                        row = run_program(python, "speed/off_policy_loop_one.py", *arguments, timeout=600)
                        done[case] = row["sps"]
                        append(case, {**row, "others_cpu": beside.busy(), "machine": described}, options)
                    rates.setdefault((name, size, library), []).append(done[case])
    rows = summaries(rates)
    print(table(rows, COLUMNS))
    finish(BENCHMARK, rows, options, neighbours, label=options.label)


def append(case: Case, row: Row, options: argparse.Namespace) -> None:
    """Keep a measurement at once: whatever ends this program loses at most one."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kept = {"benchmark": BENCHMARK, "when": when, "label": options.label, "quick": options.quick}
    options.results.mkdir(parents=True, exist_ok=True)
    with open(options.results / f"{BENCHMARK}.jsonl", "a") as file:
        file.write(json.dumps(kept | row | {"case": case._asdict()}) + "\n")


def before(options: argparse.Namespace) -> dict[Case, float]:
    """Rates that calls with this label have measured."""
    rows = [row for row in read_rows(options.results / f"{BENCHMARK}.jsonl") if "case" in row]
    asked = (options.label, options.quick)
    return {Case(**row["case"]): row["sps"] for row in rows if (row["label"], row["quick"]) == asked}


def summaries(measured: dict[tuple[str, str, str], list[float]]) -> list[Row]:
    """Medians; kernel_ratio: how many times as fast `kernel` is."""
    medians = {key: statistics.median(rates) for key, rates in measured.items()}
    return [
        {
            **{"algorithm": name, "size": size, "library": library, "per_second": medians[name, size, library]},
            **{"per_second_min": min(rates), "per_second_max": max(rates)},
            "kernel_ratio": medians.get((name, size, "kernel"), float("nan")) / medians[name, size, library],
        }
        for (name, size, library), rates in measured.items()
    ]


if __name__ == "__main__":
    main()
