"""Gradient steps per second of SAC, TD3, DDPG, TQC, CrossQ and DQN, and the time to solve Pendulum, compared with SB3
(with its contrib) and SBX.

Every measurement has a process of its own; libraries take turns, so that a machine that slows down slows all alike.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.common import Neighbours, Row, core_latency, finish, interpreter_with, parser, run_program, table
from benchmarks.speed.off_policy_one import WORKS

LIBRARIES = {"headrace": "torch", "sb3": "sb3_contrib", "sbx": "sbx"}  # name -> what its interpreter can import


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--only", default=",".join(WORKS), help="algorithms, separated by commas")
    flags.add_argument(
        "--libraries", default=",".join(LIBRARIES), help="separated by commas; those not found are left out"
    )
    flags.add_argument("--rounds", type=int, default=3, help="of gradient steps a second; the median counts")
    flags.add_argument("--solve", default="sac", help="algorithms to train on the pendulum until solved; '' for none")
    flags.add_argument("--seeds", type=int, default=3, help="of these trainings")
    options = flags.parse_args()
    neighbours = Neighbours()
    found = interpreters(options.libraries.split(","), options.peers_home, LIBRARIES)
    rounds, seconds = (1, 0.2) if options.quick else (options.rounds, 2.0)
    rows = rates(options.only.split(","), found, rounds, seconds)
    print(
        table(rows, ("algorithm", "library", "per_second", "per_second_min", "per_second_max", "times_sb3", "core_ns"))
    )
    solved: list[Row] = []
    for name in filter(None, options.solve.split(",") if not options.quick else ()):
        solved += solving(name, found, range(options.seeds))
    if solved:
        print(
            table(
                solved, ("algorithm", "library", "seed", "steps", "train_s", "held_steps", "held_train_s", "eval_mean")
            )
        )
    finish("off_policy", rows + solved, options, neighbours)


def interpreters(libraries: Iterable[str], home: Path, modules: dict[str, str]) -> dict[str, str]:
    """A Python for each library that is to be had. modules: what it must be able to import."""
    found = {}
    for name in libraries:
        python = sys.executable if "headrace" in (name, modules[name]) else interpreter_with(modules[name], home)
        if python is None:
            print(f"{name} left out: no Python with {modules[name]} here or in {home}", file=sys.stderr)
        else:
            found[name] = python
    return found


def rates(algorithms: list[str], found: dict[str, str], rounds: int, seconds: float) -> list[Row]:
    """Gradient steps a second: medians over rounds of windows' medians."""
    measured: dict[tuple[str, str], list[float]] = {}
    apart: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name in algorithms:
            for library, python in found.items():
                if (library, name) == ("sbx", "ddpg"):  # SBX's train() of DDPG is TD3's
                    continue
                apart.setdefault((name, library), []).append(core_latency() or 0.0)
                row = run_program(python, "speed/off_policy_one.py", library, name, "--seconds", seconds, timeout=300)
                measured.setdefault((name, library), []).append(row["sps"])
    medians = {key: statistics.median(values) for key, values in measured.items()}
    return [
        {
            "algorithm": name,
            "library": library,
            **WORKS[name]._asdict(),
            "per_second": medians[name, library],
            "per_second_min": min(values),
            "per_second_max": max(values),
            "core_ns": statistics.median(apart[name, library]),
            "times_sb3": medians[name, library] / medians[name, "sb3"] if (name, "sb3") in medians else None,
        }
        for (name, library), values in measured.items()
    ]


def solving(name: str, found: dict[str, str], seeds: range) -> list[Row]:
    """Trainings until 100 deterministic episodes of the original environment reach the threshold."""
    return [
        run_program(python, "speed/off_policy_one.py", library, name, "--seed", seed, timeout=600)
        for seed in seeds
        for library, python in found.items()
    ]


if __name__ == "__main__":
    main()
