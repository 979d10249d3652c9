"""Third-party environments, to the same return: Headrace compared with Stable-Baselines3 and the settings of its zoo.

LunarLander-v3 (Box2D) and HalfCheetah-v5 (MuJoCo): seconds of training until 100 deterministic episodes on Gymnasium's
environment have the return asked for. Atari Pong: training steps a second, since its return takes hours on a CPU
(--pong-return tries all the same). Each run is a fresh process (any_env_one.py); imports and evaluations are not
counted. A run of Stable-Baselines3 is given up after --patience times what Headrace took, and then counts with that.
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks.common import Neighbours, Row, finish, interpreter_with, parser, run_program, table
from benchmarks.returns.any_env_tasks import TASKS

COLUMNS = ("library", "env", "seeds", "reached", "train_s", "min_s", "max_s", "steps", "steps_per_s")
COLUMNS += ("others_cpu",)
LIBRARIES = {  # module, virtual environment, settings
    "headrace": ("headrace", "", []),
    "headrace float32": ("headrace", "", ["precision=float32"]),  # Atari's settings say bfloat16 where that is fast
    "sb3": ("stable_baselines3", "torch", []),
}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--env", nargs="+", default=list(TASKS), choices=TASKS)
    flags.add_argument("--library", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    flags.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    flags.add_argument("--patience", type=float, default=4.0, help="times Headrace's seconds")
    flags.add_argument("--most-seconds", type=float, default=900.0, help="of training, of any run")
    flags.add_argument("--seconds", type=float, default=30.0, help="over which throughput is measured")
    flags.add_argument("--pong-return", action="store_true", help="Pong to its return too, rather than its throughput")
    flags.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other settings for Headrace")
    options = flags.parse_args()
    if options.quick:
        options.seeds, options.most_seconds, options.seconds = options.seeds[:1], 1.0, 1.0
    neighbours, rows = Neighbours(), list[Row]()
    for env in options.env:
        for seed in options.seeds:
            rows += pair(env, seed, options)
    groups = dict.fromkeys((row["env"], row["library"]) for row in rows)
    print(table([summary(rows, *group) for group in groups], COLUMNS))
    print("medians over seeds; a run that did not get there counts with the seconds after which it was given up")
    finish("any_env", rows, options, neighbours, settings=options.set)


def pair(env: str, seed: int, options: argparse.Namespace) -> list[Row]:
    """A row for each library, Headrace's first: its time says when the other is given up."""
    rows, limit = [], options.most_seconds
    for library in (name for name in LIBRARIES if name in options.library):
        module, home, settings = LIBRARIES[library]
        if settings and not TASKS[env].throughput:
            continue
        python = interpreter_with(module, options.peers_home, home)
        if python is None:
            print(f"{library} is not installed, here or in {options.peers_home}: left out")
            continue
        throughput = TASKS[env].throughput and not options.pong_return
        flags = ["--env", env, "--seed", seed, "--seconds", options.seconds if throughput else limit]
        flags += ["--throughput"] if throughput else []
        flags += ["--set", *options.set, *settings] if module == "headrace" else []
        # over small networks torch's threads cost more than they bring
        alone = {} if TASKS[env].throughput else {"OMP_NUM_THREADS": "1"}
        neighbours = Neighbours()
        row = run_program(
            python, "returns/any_env_one.py", module, *flags, timeout=4 * options.most_seconds + 600, env=alone
        )
        rows.append({**row, "library": library, "others_cpu": neighbours.busy()})
        print(f"{library} {env} seed {seed}: {in_words(row)}", flush=True)
        if row["reached"]:
            limit = min(limit, options.patience * row["train_s"])
    return rows


def in_words(row: Row) -> str:
    if row["throughput"]:
        return f"{row['steps_per_s']:,.0f} steps/s over {row['train_s']:.0f} s"
    how = "reached" if row["reached"] else "given up at"
    return f"{how} {row['mean']:.1f} after {row['train_s']:.1f} s of training, {row['steps']:,} steps"


def summary(rows: list[Row], env: str, library: str) -> Row:
    """A line for one library in one environment."""
    group = [row for row in rows if (row["env"], row["library"]) == (env, library)]
    seconds = [row["train_s"] for row in group]
    middle = {name: statistics.median(row[name] for row in group) for name in ("train_s", "steps", "steps_per_s")}
    reached = None if group[0]["throughput"] else sum(row["reached"] for row in group)
    extremes = {
        "min_s": min(seconds),
        "max_s": max(seconds),
        "others_cpu": max(row["others_cpu"] or 0 for row in group),
    }
    return {"library": library, "env": env, "seeds": len(group), "reached": reached, **middle, **extremes}


if __name__ == "__main__":
    main()
