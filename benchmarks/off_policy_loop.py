"""Gradient steps per second of whole trainings: SAC and TD3 with one environment and one update a step, compared.

Acting, the environment (Pendulum-v1), the replay buffer and learning all count, as in `train()`; evaluation and logs do
not. `kernel` is Headrace with its compiled Pendulum; the others step Gymnasium's. Libraries take turns; medians over
rounds.
"""

from __future__ import annotations

import statistics

from common import Neighbours, Row, finish, parser, run_program, table
from off_policy import interpreters
from off_policy_loop_one import LIBRARIES, SIZES

COLUMNS = ("algorithm", "size", "library", "per_second", "per_second_min", "per_second_max", "kernel_ratio")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--algorithms", nargs="+", default=["sac", "td3"])
    flags.add_argument("--sizes", nargs="+", default=[*SIZES], choices=[*SIZES])
    flags.add_argument("--libraries", nargs="+", default=[*LIBRARIES], choices=[*LIBRARIES])
    flags.add_argument("--rounds", type=int, default=3)
    options = flags.parse_args()
    neighbours = Neighbours()
    found = interpreters(options.libraries, options.peers_home, LIBRARIES)
    rounds, seconds = (1, 0.2) if options.quick else (options.rounds, 2.0)
    measured: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(rounds):
        for size in options.sizes:
            for name in options.algorithms:
                for library, python in found.items():
                    arguments = (library, name, size, "--seconds", seconds)
                    row = run_program(python, "off_policy_loop_one.py", *arguments, timeout=600)
                    measured.setdefault((name, size, library), []).append(row["sps"])
    rows = summaries(measured)
    print(table(rows, COLUMNS))
    finish("off_policy_loop", rows, options, neighbours)


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
