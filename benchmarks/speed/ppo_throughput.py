"""Environment steps per second of PPO, the whole training loop: Headrace compared with other libraries.

The configurations are `large` and `zoo` of peers/__init__.py: the same networks, hyperparameters, epochs and
minibatches for all. Each library first tries its numbers of threads and keeps the best. Then libraries take turns, a
fresh process each time (ppo_one.py); imports, compiling and warming up are not counted. A run during which other
programs kept more than 0.1 cores busy is run again. A ratio is printed only where both did the same work, by their own
account.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from benchmarks.common import (
    Neighbours,
    Row,
    core_latency,
    cores,
    finish,
    interpreter_with,
    machine,
    parser,
    run_program,
)
from benchmarks.peers import PEERS, WORKS

QUIET = 0.1  # cores of other programs up to which a run counts


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--libraries", nargs="+", default=list(PEERS), choices=PEERS)
    flags.add_argument("--config", nargs="+", default=list(WORKS), choices=WORKS)
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--seconds", type=float, default=4.0, help="measured in each run")
    flags.add_argument("--warm", type=float, default=1.5, help="seconds of training before that")
    flags.add_argument("--threads", nargs="+", type=int, default=sorted({1, cores()}), help="to be tried")
    flags.add_argument("--retries", type=int, default=2, help="of a run that other programs disturbed")
    options = flags.parse_args()
    if options.quick:
        options.repeats, options.seconds, options.warm, options.retries = 1, 0.2, 0.1, 0
        options.threads = options.threads[:1]
    neighbours, pythons = Neighbours(), found(options)
    rows = [row for config in options.config for row in compare(config, pythons, options)]
    show(rows)
    finish("ppo_throughput", rows, options, neighbours)


def found(options: argparse.Namespace) -> dict[str, str]:
    """The Python of each library that is asked for and installed."""
    pythons = {}
    for library in options.libraries:
        python = interpreter_with(PEERS[library].module, options.peers_home, PEERS[library].home)
        if python is None:
            print(f"{library} is not installed, here or in {options.peers_home}: left out (peers/setup.sh installs it)")
        else:
            pythons[library] = python
    return pythons


def compare(config: str, pythons: dict[str, str], options: argparse.Namespace) -> list[Row]:
    """A row for each library on one configuration."""
    tried = {library: best_threads(library, python, config, options) for library, python in pythons.items()}
    runs: dict[str, list[Row]] = {library: [] for library in pythons}
    for seed in range(options.repeats):
        for library, python in pythons.items():  # in turns, so that slow changes of the machine meet all alike
            runs[library].append(quiet_run(library, python, config, seed, tried[library][0], options))
    rows = [summary(config, runs[library], tried[library][1]) for library in pythons]
    ours = next((row for row in rows if row["library"] == "headrace"), None)
    for row in rows:
        if ours is not None and row is not ours and row["work"] == ours["work"]:
            row["headrace_ratio"] = ours["sps"] / row["sps"]
    return rows


def best_threads(library: str, python: str, config: str, options: argparse.Namespace) -> tuple[int, Row]:
    """The number of threads at which a library is fastest, and the steps a second of each."""
    if len(options.threads) == 1:
        return options.threads[0], {}
    tried = {n: quiet_run(library, python, config, 1000, n, options)["sps"] for n in options.threads}
    return max(tried, key=lambda n: tried[n]), {str(n): sps for n, sps in tried.items()}


def quiet_run(library: str, python: str, config: str, seed: int, threads: int, options: argparse.Namespace) -> Row:
    """An undisturbed run, or else the least disturbed of those allowed."""
    flags = ["--config", config, "--seed", seed, "--threads", threads]
    flags += ["--warm", options.warm, "--seconds", options.seconds]
    env = {"OMP_NUM_THREADS": str(threads), "HEADRACE_THREADS": str(threads)}
    runs: list[Row] = []
    for _ in range(1 + options.retries):
        apart = core_latency()
        runs.append(
            run_program(python, "speed/ppo_one.py", library, *flags, timeout=300 + 4 * options.seconds, env=env)
        )
        row = runs[-1]
        row["core_ns"] = apart
        said = (
            f"{row['sps']:,.0f} steps/s, others kept {row['others_cpu']} cores busy, {apart or 0:.0f} ns between cores"
        )
        print(f"{config} {library}, {threads} threads, seed {seed}: {said}", flush=True)
        if (row["others_cpu"] or 0.0) <= QUIET:
            break
    return min(runs, key=lambda row: row["others_cpu"] or 0.0) | {"tries": len(runs)}


def summary(config: str, runs: list[Row], tried: Row) -> Row:
    """Median and spread over the runs of one library."""
    rates = [run["sps"] for run in runs]
    first = runs[0]
    return {
        "library": first["library"],
        "config": config,
        "threads": first["threads"],
        "sps": statistics.median(rates),
        "sps_min": min(rates),
        "sps_max": max(rates),
        "repeats": len(runs),
        "first_iteration_s": statistics.median(run["first_iteration_s"] for run in runs),
        "others_cpu": max((run["others_cpu"] or 0.0) for run in runs),
        "core_ns": [run["core_ns"] for run in runs],
        "tries": sum(run["tries"] for run in runs),
        "threads_tried": tried,
        "work": first["work"],
        "versions": first["versions"],
        "cpu": machine()["cpu"],
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def show(rows: list[Row]) -> None:
    """The table for users."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    for config in dict.fromkeys(row["config"] for row in rows):
        work = WORKS[config]
        table = Table(
            title=f"PPO on CartPole-v1, {config}: {work.num_envs} x {work.num_steps} steps, minibatches of "
            f"{work.minibatch_size}, {work.epochs} epochs",
            caption="median of fresh processes, compiling excluded",
            box=box.SIMPLE_HEAD,
        )
        heads = ("library", "threads", "steps/s", "min .. max", "Headrace is", "others, cores", "runs")
        for index, head in enumerate(heads):
            table.add_column(head, justify="right" if index else "left", no_wrap=True)
        for row in sorted((row for row in rows if row["config"] == config), key=lambda row: -row["sps"]):
            table.add_row(*cells(row))
        Console(width=120, highlight=False).print(table)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    ratio = row.get("headrace_ratio")
    ratio_text = f"{ratio:.2f} x" if ratio else "" if row["library"] == "headrace" else "other work"
    spread = f"{row['sps_min']:,.0f} .. {row['sps_max']:,.0f}"
    others = f"{row['others_cpu']:.2f}" + (" !" if row["others_cpu"] > QUIET else "")
    runs = f"{row['repeats']} of {row['tries']}"
    return PEERS[row["library"]].label, str(row["threads"]), f"{row['sps']:,.0f}", spread, ratio_text, others, runs


if __name__ == "__main__":
    main()
