"""Comparison of the speed of two checkouts. Each benchmark runs in both by turns, every time in a fresh process.

    python -m benchmarks.speed.compare_checkouts OLD NEW                  # about 25 minutes
    python -m benchmarks.speed.compare_checkouts OLD NEW --only large sac

Prints, for each benchmark, the geometric mean of new / old with its 95 % interval; above 1 the new one is faster. Every
checkout runs its own benchmark programs, so that a change of their interface does not matter. Both have Python's
bytecode, as an installed package has: a first run of each is not counted.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Neighbours, Row, cores, finish, parser, table

T_95 = {3: 4.303, 5: 2.776, 7: 2.447, 9: 2.306, 11: 2.228, 15: 2.145, 21: 2.086}  # Student's t for n - 1
TRAIN = ("-m", "headrace", "train", "ppo", "CartPole-v1", "--total-steps", "2000", "--final-episodes", "0")
BYTECODE = {
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "headrace-bytecode"),
}
COLUMNS = ("benchmark", "ratio", "low", "high", "old", "new", "unit")


def programs(threads: int, seed: int) -> dict[str, tuple[list[str], str, bool]]:
    """Benchmark -> program and flags, the figure in its last line of JSON, and whether less of it is better."""
    clock = ["--warm", "0.5", "--seconds", "3"]
    ppo = ["ppo_one.py", "headrace", "--seed", str(seed), "--threads", str(threads), *clock]
    return {
        "large": ([*ppo, "--config", "large"], "sps", False),
        "zoo": ([*ppo, "--config", "zoo"], "sps", False),
        "solve": (["solve_one.py", "headrace", "--env", "CartPole-v1", "--seed", str(seed)], "held_train_s", True),
        "env": (
            [
                "env_steppers.py",
                "headrace",
                "threaded",
                "--env",
                "CartPole-v1",
                "--seconds",
                "0.5",
                "--num-envs",
                "16384",
            ],
            "sps",
            False,
        ),
        "sac": (["off_policy_one.py", "headrace", "sac", "--seconds", "2"], "sps", False),
        "dqn": (["off_policy_one.py", "headrace", "dqn", "--seconds", "2"], "sps", False),
    }


def run(checkout: Path, program: list[str], figure: str, threads: int) -> float:
    """The figure of one run."""
    file = next((checkout / "benchmarks").rglob(program[0]))  # the checkouts may have it in other folders
    last = json.loads(_output(checkout, [str(file), *program[1:]], threads).splitlines()[-1])
    row = last["rows"][-1] if figure not in last else last
    return float(row[figure])


def cold_start(checkout: Path, threads: int) -> float:
    """Seconds of a whole first training, with no compiled kernel on the machine."""
    with tempfile.TemporaryDirectory() as empty:
        began = time.perf_counter()
        _output(
            checkout, [*TRAIN, "--log-folder", empty, "--progress", "none"], threads, HEADRACE_CACHE=f"{empty}/cache"
        )
        return time.perf_counter() - began


def _output(checkout: Path, command: list[str], threads: int, **settings: str) -> str:
    limits = {"OMP_NUM_THREADS": str(threads), "HEADRACE_THREADS": str(threads)}
    environment = {**os.environ, "PYTHONPATH": str(checkout), **BYTECODE, **limits, **settings}
    environment["HEADRACE_BENCHMARK_START"] = repr(time.time())
    done = subprocess.run([sys.executable, *command], cwd=checkout, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed in {checkout}:\n{done.stderr[-2000:]}")
    return done.stdout.strip()


def summary(name: str, pairs: list[tuple[float, float]], less_is_better: bool, unit: str) -> Row:
    """The ratio new / old of speeds, and the medians of both."""
    logs = [math.log(old / new if less_is_better else new / old) for old, new in pairs]
    mean, count = statistics.fmean(logs), len(logs)
    reach = T_95.get(count, 2.0) * statistics.stdev(logs) / math.sqrt(count) if count > 1 else math.inf
    old, new = (statistics.median(side) for side in zip(*pairs, strict=True))
    low, high = math.exp(mean - reach), math.exp(mean + reach)
    return {"benchmark": name, "ratio": math.exp(mean), "low": low, "high": high, "old": old, "new": new, "unit": unit}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("checkouts", nargs=2, type=lambda path: Path(path).resolve(), help="two folders: old, new")
    flags.add_argument("--turns", type=int, default=11)
    flags.add_argument("--cold-turns", type=int, default=3, help="of the training without compiled kernels")
    flags.add_argument("--threads", type=int, default=cores())
    flags.add_argument("--only", nargs="*", help="benchmarks to run: large, zoo, solve, env, sac, dqn, cold")
    options = flags.parse_args()
    if options.quick:
        options.turns = options.cold_turns = 1
    neighbours, rows = Neighbours(), []
    for name, (_, _, less) in programs(options.threads, 0).items():
        if options.only and name not in options.only:
            continue
        pairs = _turns(
            options.checkouts,
            options.turns,
            lambda checkout, turn, name=name: run(
                checkout, *programs(options.threads, turn)[name][:2], options.threads
            ),
        )
        rows.append(summary(name, pairs, less, "s" if less else "1/s"))
        print(table(rows[-1:], COLUMNS), flush=True)
    if not options.only or "cold" in options.only:
        pairs = _turns(options.checkouts, options.cold_turns, lambda checkout, _: cold_start(checkout, options.threads))
        rows.append(summary("cold", pairs, True, "s"))
    print(table(rows, COLUMNS))
    finish("compare_checkouts", rows, options, neighbours, turns=options.turns)


def _turns(checkouts: list[Path], turns: int, measure: Any) -> list[tuple[float, float]]:
    """(old, new) of each turn; who goes first changes from turn to turn."""
    pairs = []
    for checkout in checkouts:
        measure(checkout, turns)  # not counted: it writes bytecode, and compiles what is not compiled yet
    for turn in range(turns):
        order = checkouts if turn % 2 == 0 else checkouts[::-1]
        found = {checkout: measure(checkout, turn) for checkout in order}
        pairs.append((found[checkouts[0]], found[checkouts[1]]))
    return pairs


if __name__ == "__main__":
    main()
