"""Returns of entries of rl_zoo3's YAML files, five seeds each: Headrace, and Stable-Baselines3 with the same entry,
seeds and versions in the same run, beside the zoo's published figure.

    python -m benchmarks.returns.zoo_returns FOLDER [--only CartPole-v1:ppo ...] [--until 02:45] [--report]
    python -m benchmarks.returns.zoo_returns FOLDER --measure --only BipedalWalker-v3:ppo

FOLDER: that of the hyperparams of rl-baselines3-zoo. Each training is a process with one thread (zoo_returns_one.py).
Its row is appended to results/zoo_returns.jsonl when it has ended, and a further call goes on with those that are
missing. --measure trains 5,000 and 25,000 steps of each library, and says the hours of five seeds of both. Needs
Stable-Baselines3, PyYAML, and Box2D and MuJoCo for their tasks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from benchmarks.common import Neighbours, Row, finish, parser, read_rows, run_program, table

BENCHMARK = "zoo_returns"
LIBRARIES = ("headrace", "sb3")
MEASURED = 5_000, 25_000  # steps of --measure: start-up is in both
# mean and standard deviation of benchmark.md of rl-baselines3-zoo at 22e3ff2 (April 2026), each of one trained model;
# of LunarLander the tasks of version 2, of Hopper version 3, where the entries are of 3 and 4
PUBLISHED: dict[str, tuple[float, float]] = {
    "CartPole-v1:ppo": (500.0, 0.0),
    "CartPole-v1:dqn": (500.0, 0.0),
    "Pendulum-v1:ppo": (-172.2, 104.2),
    "MountainCarContinuous-v0:ppo": (88.3, 2.6),
    "MountainCarContinuous-v0:a2c": (91.2, 0.3),
    "Pendulum-v1:td3": (-151.9, 90.2),
    "Pendulum-v1:ddpg": (-152.1, 94.3),
    "Pendulum-v1:sac": (-157.0, 88.7),
    "CartPole-v1:a2c": (500.0, 0.0),
    "MountainCar-v0:dqn": (-100.8, 9.9),
    "Acrobot-v1:dqn": (-76.6, 11.8),
    "LunarLander-v3:a2c": (155.8, 80.4),
    "LunarLander-v3:dqn": (154.4, 79.2),
    "MountainCar-v0:ppo": (-110.4, 19.5),
    "MountainCar-v0:a2c": (-111.3, 24.1),
    "Acrobot-v1:a2c": (-83.4, 17.2),
    "Acrobot-v1:ppo": (-73.5, 18.2),
    "Pendulum-v1:a2c": (-163.0, 103.2),
    "LunarLander-v3:ppo": (242.1, 31.8),
    "LunarLanderContinuous-v3:ppo": (270.9, 32.1),
    "LunarLanderContinuous-v3:td3": (207.5, 67.6),
    "LunarLanderContinuous-v3:sac": (260.4, 65.5),
    "LunarLanderContinuous-v3:a2c": (84.2, 145.9),
    "BipedalWalker-v3:ppo": (287.9, 2.4),
    "BipedalWalker-v3:a2c": (299.8, 23.5),
    "BipedalWalker-v3:sac": (297.7, 33.1),
    "BipedalWalker-v3:td3": (306.0, 56.9),
    "Hopper-v4:ppo": (2410.4, 10.0),
    "Hopper-v4:a2c": (733.5, 376.6),
    "Hopper-v4:sac": (2325.5, 1129.7),
    "Hopper-v4:td3": (3606.4, 4.0),
}
COLUMNS = ("task", "library", "seed", "steps", "return", "std", "cpu_seconds", "wall")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument("folder", type=Path)
    flags.add_argument("--only", nargs="+", default=list(PUBLISHED), metavar="ENV:ALG", help="in this order")
    flags.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    flags.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    flags.add_argument("--until", metavar="HH:MM", help="begin no training from then on")
    flags.add_argument("--measure", action="store_true", help="the hours of five seeds, by few steps of each")
    flags.add_argument("--report", action="store_true", help="print the table of the rows that are there")
    options = flags.parse_args()
    if options.report:
        print(report(options.results / f"{BENCHMARK}.jsonl"))
    elif options.measure:
        measure(options)
    else:
        train_all(options)


def train_all(options: argparse.Namespace) -> None:
    """Train what has no row yet, and append a row for each."""
    there = {key(row) for row in rows_of(options.results / f"{BENCHMARK}.jsonl")}
    seeds = options.seeds[:1] if options.quick else options.seeds
    for task in options.only:
        for seed in seeds:
            for library in options.libraries:
                if options.until and time.strftime("%H:%M") >= options.until:
                    return
                neighbours, row = Neighbours(), {"task": task, "library": library, "seed": seed}
                if key(row) in there:
                    continue
                more = ("--steps", 1000, "--episodes", 2) if options.quick else ()
                row |= one(options.folder, task, library, seed, *more)
                print(table([row], COLUMNS), flush=True)
                finish(BENCHMARK, [row], options, neighbours)


def one(folder: Path, task: str, library: str, seed: int, *more: object) -> Row:
    """Train once, in a process of its own."""
    env, _, algorithm = task.partition(":")
    file = folder / f"{algorithm}.yml"
    return run_program(sys.executable, "returns/zoo_returns_one.py", library, file, env, seed, *more, timeout=86_400)


def key(row: Row) -> tuple[str, str, int]:
    """Key of a training: rows with the same key are of the same one."""
    return row["task"], row["library"], row["seed"]


def rows_of(file: Path) -> list[Row]:
    """The rows of all calls that were not quick."""
    return [row for run in read_rows(file) if not run["quick"] for row in run["rows"]]


def measure(options: argparse.Namespace) -> None:
    """Print the hours of five seeds of both libraries, by CPU seconds of few steps."""
    import yaml

    neighbours, rows = Neighbours(), list[Row]()
    for task in options.only:
        env, _, algorithm = task.partition(":")
        steps = float(yaml.safe_load((options.folder / f"{algorithm}.yml").read_text())[env]["n_timesteps"])
        for library in options.libraries:
            few = [n // 5 for n in MEASURED] if options.quick else MEASURED
            short, long = (one(options.folder, task, library, 0, "--steps", n, "--episodes", 1) for n in few)
            rate = (long["steps"] - short["steps"]) / (long["cpu_seconds"] - short["cpu_seconds"])
            rows.append({"task": task, "library": library, "steps": int(steps), "per_second": round(rate)})
            rows[-1]["hours_of_five"] = round(5 * steps / rate / 3600, 1)
            print(table(rows[-1:], list(rows[-1])), flush=True)
    finish(f"{BENCHMARK}_hours", rows, options, neighbours)


def report(file: Path) -> str:
    """A table in Markdown: one row for each task and library."""
    by_task: dict[str, dict[str, list[Row]]] = {}
    for row in rows_of(file):
        by_task.setdefault(row["task"], {}).setdefault(row["library"], []).append(row)
    lines = ["| task | library | steps | returns | mean | CPU s | published |", "|---|---|--:|---|--:|--:|--:|"]
    for task in sorted(by_task, key=[*PUBLISHED].index):
        for library, rows in sorted(by_task[task].items()):
            rows.sort(key=lambda row: row["seed"])
            returns = [row["return"] for row in rows]
            cells = (
                task.replace(":", ", ") if library == LIBRARIES[0] else "",
                library,
                f"{rows[0]['steps']:,}",
                ", ".join(f"{x:.0f}" for x in returns),
                f"{statistics.mean(returns):.0f}",
                f"{statistics.median(row['cpu_seconds'] for row in rows):.0f}",
                "{:.0f} ± {:.0f}".format(*PUBLISHED[task]) if library == LIBRARIES[0] else "",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
