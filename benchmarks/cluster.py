"""What actors on a Ray cluster cost: start-up, memory, calls, fragments, weights; steps per second beside local actors.

    python benchmarks/cluster.py           # some minutes; RLlib beside them where peers/setup.sh rllib has installed it

Trainings are PPO with environments that sleep 10 ms a step (one for each actor), or compute 1 ms a step in two actors.
"""

from __future__ import annotations

import sys
from typing import Any

import common

COLUMNS = ("library", "environments", "actors", "start_s", "sps", "sps_min", "sps_max", "of_local")


def steps(options: Any, name: str, flags: list[object]) -> list[common.Row]:
    """Local actors and those of a cluster, with the same environments."""
    rows: list[common.Row] = []
    for library, where in (("headrace, local actors", []), ("headrace, cluster=local", ["--cluster"])):
        window = ["--window", 0.5, "--windows", 1] if options.quick else []
        row = common.run_program(sys.executable, "cluster_one.py", "steps", *flags, *where, *window, timeout=600)
        rows.append({"library": library, "environments": name, "actors": flags[1], **row})
        rows[-1]["of_local"] = row["sps"] / rows[0]["sps"]
        print(f"{library}, {name}: {row['sps']:,.0f} steps/s; started in {row['start_s']:.1f} s", flush=True)
    return rows


def rllib(options: Any, name: str, actors: int, sleep: float, count: int) -> list[common.Row]:
    """RLlib's PPO with as many env runners and environments, by actors_one.py."""
    python = common.interpreter_with("ray.rllib.algorithms", options.peers_home, "rllib")
    if python is None:
        print("rllib: not installed (benchmarks/peers/setup.sh rllib)")
        return []
    flags = ["--processes", actors, "--num-envs", actors, "--num-steps", 64, "--sleep", sleep, "--count", count]
    row = common.run_program(python, "actors_one.py", "rllib", *flags, timeout=900)
    return [{"library": "rllib", "environments": name, "actors": actors, "sps": row["sps"]}]


def main() -> None:
    """Measure, print tables, append to results/cluster.jsonl."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--asleep", type=int, default=32, help="actors whose environments sleep")
    options = flags.parse_args()
    neighbours = common.Neighbours()
    repeats = 3 if options.quick else 100
    parts = common.run_program(sys.executable, "cluster_one.py", "parts", "--repeats", repeats, timeout=300)
    for name, value in parts.items():
        print(f"{name:24} {value:10.3g}")
    asleep = 2 if options.quick else options.asleep
    sleeping = [
        *("--actors", asleep, "--num-envs", asleep, "--sleeping", "--seconds", 0.01),
        *("--num-steps", 8 if options.quick else 64),
    ]
    rows = steps(options, "asleep 10 ms", sleeping)
    rows += steps(options, "computing 1 ms", ["--actors", 2, "--num-envs", 8, "--seconds", 0.001])
    if not options.quick:
        rows += rllib(options, "asleep 10 ms", asleep, 0.01, 0)
    print(common.table(rows, COLUMNS))
    common.finish("cluster", rows, options, neighbours, parts=parts)


if __name__ == "__main__":
    main()
