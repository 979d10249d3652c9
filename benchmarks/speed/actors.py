"""Actors beside workers, one process and other libraries: steps per second of whole trainings, lag, cores, memory.

    python -m benchmarks.speed.actors --cases asleep computing heavy equal nothing

Environments that sleep make 32 actors meaningful on any machine; environments that compute show what the cores can
give: `scaling` is how much more two independent processes do than one, in the same run, and floors are multiplied by
half of it. Cases are described in CASES. Every measurement has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import Neighbours, Row, environment, finish, interpreter_with, parser, run_program, table
from benchmarks.speed.counted_env import calibrated

PEERS = {
    "sb3": "stable_baselines3",
    "torchrl": "torchrl",
    "torchrl_async": "torchrl",
    "rllib": "ray.rllib.algorithms",  # Ray alone has the files of ray.rllib, but not what they import
    "rllib_async": "ray.rllib.algorithms",
}
PEERS |= dict.fromkeys(("sample_factory", "sample_factory_async"), "sample_factory")
STEP = 1e-4  # s of a step that computes
COLUMNS = (
    "case",
    "library",
    "settings",
    "sps",
    "floor",
    "met",
    "lag",
    "lag_max",
    "cores_busy",
    "megabytes",
    "forecast",
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    flags.add_argument("--libraries", nargs="*", default=["headrace", *PEERS])
    flags.add_argument("--seconds", type=float, default=3.0, help="of one window, of three")
    options = flags.parse_args()
    if options.quick:
        options.seconds = 0.3
    neighbours = Neighbours()
    options.count = calibrated(STEP)
    scaling = two_processes(options.count)
    print(f"a step of {options.count:,} operations; two processes do {scaling:.2f} times what one does")
    rows: list[Row] = []
    for case in options.cases:
        found = CASES[case](options)
        judge(case, found, scaling)
        rows += found
        print(table(found, COLUMNS))
    finish("actors", rows, options, neighbours, scaling=scaling, count=options.count)


def two_processes(count: int) -> float:
    """Factor by which two processes compute more than one in the same time: 2 on idle cores of equal speed."""
    program = "import time\nfrom benchmarks.speed.counted_env import compute\n"
    program += f"b = time.perf_counter()\nfor _ in range({int(1 / STEP)}): compute({count})\n"
    program += "print(time.perf_counter() - b)"

    def run(number: int) -> float:
        command, settings = [sys.executable, "-c", program], environment()
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, env=settings) for _ in range(number)]
        return max(float(process.communicate()[0]) for process in started)

    return 2 * run(1) / run(2)


def asleep(options: argparse.Namespace) -> list[Row]:
    """32 environments of 10 ms asleep: ideal 3,200 steps/s."""
    task = ["--sleep", 0.01, "--num-envs", 32, "--num-steps", 32]
    rows = [
        ours(options, task, settings) for settings in ({"workers": 32}, {"actors": 32}, OVERLAPPED | {"actors": 32})
    ]
    return rows + peers(options, task, 32)


def computing(options: argparse.Namespace) -> list[Row]:
    """16 environments that compute for 0.1 ms."""
    task = ["--count", options.count, "--num-envs", 16, "--num-steps", 64]
    rows = [ours(options, task, settings) for settings in ({}, {"workers": 2}, {"actors": 2})]
    rows.append(ours(options, task, OVERLAPPED | {"actors": 2}))
    return rows + peers(options, task, 2)


def heavy(options: argparse.Namespace) -> list[Row]:
    """32 environments of which a step in a hundred sleeps 100 ms, the others 1 ms; 32 steps a rollout."""
    task = ["--sleep", 0.001, "--heavy", "--num-envs", 32, "--num-steps", 32]
    rows = [ours(options, task, settings) for settings in ({"workers": 32}, {"workers": 32, "collection": "async"})]
    rows += [ours(options, task, settings) for settings in ({"actors": 32}, OVERLAPPED | {"actors": 32})]
    for lag in (1, 2):
        settings = {"actors": 32, "collection": "async", "max_policy_lag": lag}
        rows.append(ours(options, [*task, "--algorithm", "appo"], settings))
    return rows + peers(options, task, 32)


def equal(options: argparse.Namespace) -> list[Row]:
    """Collecting takes as long in one process as learning, both compute: one actor, and as many as cores."""
    task = ["--count", options.count, "--num-envs", 4, "--num-steps", 64, "--epochs"]
    epochs = TRIED_EPOCHS
    for _ in range(2):  # few epochs take longer each
        tried = ours(options, [*task, epochs], {})["fractions"]
        epochs = round(epochs * (tried["env"] + tried["inference"]) / tried["learning"])
    settings: list[Row] = [{}, OVERLAPPED | {"actors": 1}, OVERLAPPED | {"actors": 2}]
    return [{**ours(options, [*task, epochs], each), "epochs": epochs} for each in settings]


def nothing(options: argparse.Namespace) -> list[Row]:
    """Environments that do nothing, and compiled ones."""
    task = ["--num-envs", 16, "--num-steps", 64]
    rows = [ours(options, task, settings) for settings in ({}, {"workers": 2}, {"actors": 2}, {"actors": "auto"})]
    return rows + [
        ours(options, [*task, "--task", "CartPole-v1"], each) for each in ({}, {"actors": 1}, {"actors": "auto"})
    ]


OVERLAPPED: Row = {"collection": "overlapped"}
TRIED_EPOCHS = 200  # by which it is found how many take as long as collecting
CASES: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "asleep": asleep,
    "computing": computing,
    "heavy": heavy,
    "equal": equal,
    "nothing": nothing,
}


def ours(options: argparse.Namespace, task: list[Any], settings: Row) -> Row:
    """Headrace with these settings."""
    words = [*task, "--settings", json.dumps(settings)]
    row = measured(options, "headrace", sys.executable, words)
    expected = re.search(r"about ([\d,]+) steps/s", row.pop("forecast") or "")
    row["forecast"] = int(expected[1].replace(",", "")) / row["sps"] if expected else None
    return {**row, "settings": " ".join(f"{name}={value}" for name, value in settings.items()) or "one process"}


def peers(options: argparse.Namespace, task: list[Any], processes: int) -> list[Row]:
    """Other libraries that are installed."""
    rows = []
    for library, module in PEERS.items():
        python = interpreter_with(module, options.peers_home, "torch") if library in options.libraries else None
        if python is not None:
            try:
                row = measured(options, library, python, [*task, "--processes", processes])
            except RuntimeError as error:
                print(f"{library}: {str(error)[-500:]}", file=sys.stderr)
                row = {"library": library, "failed": str(error)[-500:], "sps": None}
            rows.append({**row, "settings": f"processes={processes}"})
    return rows


def measured(options: argparse.Namespace, library: str, python: str, words: list[Any]) -> Row:
    """One measurement, in a process of its own."""
    neighbours = Neighbours()
    row = run_program(python, "speed/actors_one.py", library, *words, "--seconds", options.seconds, timeout=240)
    return {"library": library, **row, "others_cpu": neighbours.busy()}


def judge(case: str, rows: list[Row], scaling: float) -> None:
    """Note the case, and the floor of each row that has one."""
    by = {(row["library"], row["settings"]): row["sps"] for row in rows}

    def mine(settings: str) -> float:
        return by["headrace", settings]

    floors: dict[str, float] = {}
    if case == "asleep":
        floors["actors=32"] = max(0.85 * 3200, mine("workers=32"))
    if case == "computing":
        floors["actors=2"] = max(1.3 * mine("workers=2"), 1.7 * mine("one process")) * scaling / 2
    if case == "heavy":
        floors = {"actors=32": 0.75 * 4600}
        for lag, speed in ((1, 7800), (2, 11500)):
            floors[f"actors=32 collection=async max_policy_lag={lag}"] = 0.75 * speed
    if case == "equal":
        floors["collection=overlapped actors=1"] = 1.6 * mine("one process") * scaling / 2
    for row in rows:
        row["case"], row["when"] = case, time.strftime("%H:%M:%S")
        row["floor"] = floors.get(row["settings"]) if row["library"] == "headrace" else None
        row["met"] = None if row["floor"] is None else row["sps"] >= row["floor"]


if __name__ == "__main__":
    main()
