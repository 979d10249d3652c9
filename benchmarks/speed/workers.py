"""Environments in processes: steps a second of ours, Gymnasium's, Stable-Baselines3's and TorchRL's, side by side.

The environments only take time (timed_env.py): 0 to 2000 microseconds a step, computing or sleeping, each
step alike or one in a hundred a hundred times longer. `of_ideal` is the share of what `cores` cores would step if
nothing was lost, for environments that compute; `times_sb3` compares with SubprocVecEnv. Then, with a policy that acts:
with sync, double-buffered and async collection. Every measurement has a process of its own.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks.common import Neighbours, Row, cores, finish, interpreter_with, parser, run_program, table

OURS = ("headrace", "collecting")
PEERS = {"gymnasium": "gymnasium", "sb3": "stable_baselines3", "torchrl": "torchrl"}  # and what to import of each
TIMES = (0, 20, 200, 2000)  # microseconds
SLOW = 1990  # microseconds in the mean: 99 % of the steps take 1 ms, 1 % take 100 ms


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--us", type=int, nargs="+", default=list(TIMES))
    flags.add_argument("--num-envs", type=int, default=8)
    flags.add_argument("--seconds", type=float, default=0.7, help="of one window, of three")
    flags.add_argument("--libraries", nargs="*", default=["headrace", *PEERS, "envpool"])
    flags.add_argument("--parts", nargs="+", default=["stepping", "cartpole", "collecting"])
    options = flags.parse_args()
    if options.quick:
        options.us, options.seconds = options.us[:1], 0.1
    neighbours, pythons = Neighbours(), found(options)
    rows: list[Row] = []
    if "stepping" in options.parts:
        rows += [row for task in kinds(options) for row in stepping(task, pythons, options)]
        columns = ("us", "steps", "library", "workers", "sps", "of_ideal", "times_sb3", "others_cpu")
        print(table([row for row in rows if row["library"] != "alone"], columns))
    if "cartpole" in options.parts:
        more = [measured(library, python, {"task": "CartPole-v1"}, options) for library, python in pythons.items()]
        compare(more)
        print(table(more, ("task", "library", "workers", "sps", "times_sb3", "others_cpu")))
        rows += more
    if "collecting" in options.parts:
        acting = collecting(options)
        columns = ("us", "steps", "workers", "num_steps", "collection", "drop_slowest", "sps", "times_together")
        print(table(acting, (*columns, "dead_share", "others_cpu")))
        rows += acting
    finish("workers", rows, options, neighbours)


def found(options: argparse.Namespace) -> dict[str, str]:
    """The Python of each library that is asked for and installed."""
    pythons = {}
    for library in options.libraries:
        module = {"headrace": "headrace", "envpool": "envpool", **PEERS}[library]
        python = sys.executable if library == "headrace" else interpreter_with(module, options.peers_home, "torch")
        if python is None:
            print(f"{library} left out: no Python with {module} here or in {options.peers_home}", file=sys.stderr)
        else:
            pythons[library] = python
    return pythons


def kinds(options: argparse.Namespace) -> list[Row]:
    """The environments of the comparison."""
    tasks = [
        {"us": us, "sleeping": sleeping, "heavy": heavy}
        for us in options.us
        for sleeping in (False, True)
        for heavy in (False, True)
        if us or not (sleeping or heavy)
    ]
    return tasks


def stepping(task: Row, pythons: dict[str, str], options: argparse.Namespace) -> list[Row]:
    """All libraries on one kind of environment, and an environment alone."""
    alone = measured("alone", sys.executable, task, options)
    rows = [measured(library, python, task, options) for library, python in pythons.items() if library != "envpool"]
    compare(rows)
    if not task["sleeping"]:
        for row in rows:
            row["of_ideal"] = row["sps"] / (cores() * alone["sps"])
    return [alone, *rows]


def compare(rows: list[Row]) -> None:
    """Note how each compares with SubprocVecEnv."""
    theirs = next((row["sps"] for row in rows if row["library"] == "sb3"), None)
    for row in rows:
        row["times_sb3"] = row["sps"] / theirs if theirs else None


def collecting(options: argparse.Namespace) -> list[Row]:
    """Cases with a policy: environments of equal steps on the cores' workers, and slow ones in a process each."""
    equal = [
        {"us": us, "workers": cores(), "num_steps": 64, "collection": mode}
        for us in options.us
        for mode in ("sync", "double_buffered", "async")
    ]
    slow = [
        {"us": SLOW, "heavy": True, "sleeping": True, "workers": options.num_envs, "num_steps": steps} | how
        for steps in ((32,) if options.quick else (32, 128))
        for how in (
            {"collection": "sync"},
            {"collection": "async"},
            {"collection": "async", "drop_slowest": 0.25},
        )
    ]
    rows = [measured("collecting", sys.executable, kind, options) for kind in equal + slow]
    together = None
    for row in rows:
        together = row["sps"] if row["collection"] == "sync" else together
        row["times_together"] = row["sps"] / together if together else None
    return rows


def measured(library: str, python: str, task: Row, options: argparse.Namespace) -> Row:
    """One measurement. Headrace has a worker per core if environments compute, one per environment if they sleep."""
    workers = task.get("workers") or (options.num_envs if task.get("sleeping") else None)
    words: list[Any] = ["--num-envs", options.num_envs] + (["--workers", workers] if workers else [])
    # a rollout with slow steps takes longer than a window
    words += ["--seconds", 3 * options.seconds if task.get("heavy") else options.seconds]
    for name, value in task.items():
        if name != "workers":
            words += [f"--{name.replace('_', '-')}"] * (value is True)
            words += [] if isinstance(value, bool) else [f"--{name.replace('_', '-')}", value]
    neighbours = Neighbours()
    row = run_program(python, "speed/workers_one.py", library, *words, timeout=120)
    tail = "heavy-tailed" if task.get("heavy") else "equal"
    about = {"library": library, "task": "timed", **task, "num_envs": options.num_envs}
    about["steps"] = f"{'sleeping' if task.get('sleeping') else 'computing'}, {tail}"
    row["workers"] = row["workers"] or workers if library in OURS else options.num_envs
    return {**about, **row, "others_cpu": neighbours.busy()}


if __name__ == "__main__":
    main()
