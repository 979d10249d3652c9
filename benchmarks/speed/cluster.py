"""Cost of actors on a Ray cluster, compared with local actors and with RLlib in the same run: start-up, memory, calls,
fragments, weights, sums of learners, steps per second.

    python -m benchmarks.speed.cluster    # 12 minutes; with RLlib where peers/setup.sh rllib has installed it
    python -m benchmarks.speed.cluster --table   # the last whole run, into docs/cluster.md

Trainings are PPO with environments that sleep 10 ms a step (one for each actor), or compute for 1 ms in two actors.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from statistics import median
from typing import Any

from benchmarks import common
from benchmarks.speed import learners
from benchmarks.speed.counted_env import calibrated
from benchmarks.tables import replace_table

PAGE = common.ROOT / "docs" / "cluster.md"
COLUMNS = ("library", "environments", "actors", "start", "megabytes", "sps", "sps_min", "sps_max", "of_local", "floor")
HEADRACE = {"local actors": None, "cluster": "local"}
TURNS = 3  # in which local actors and those of a cluster are measured, one after the other
FLOORS = {"asleep 10 ms": 0.9, "computing 1 ms": 0.85}  # of the steps per second of local actors
# Headrace's settings, as in cluster_rllib.LEARNING
LEARNING = {"num_envs": 32, "num_steps": 64, "minibatch_size": 256, "epochs": 4, "scale": False, "progress": "none"}
PARTS = {  # what each figure is, and how many digits it is shown with
    "cluster_s": ("start of Ray, s", 1),
    "four_actors_s": ("start of four actors, s", 1),
    "actor_MB": ("memory of an actor, MB", 0),
    "ray_MB": ("memory of Ray's own processes, MB", 0),
    "call_ms": ("a call, ms", 2),
    "fragment_20_kB_ms": ("20 kB to the learner, ms", 2),
    "fragment_1_MB_ms": ("1 MB to the learner, ms", 2),
    "fragment_10_MB_ms": ("10 MB to the learner, ms", 1),
    "weights_20_k_ms": ("20,000 weights to four actors, ms", 2),
    "weights_1_M_ms": ("1,000,000 weights to four actors, ms", 1),
}


def steps(options: Namespace, rllib: str | None, name: str, flags: list[object]) -> list[common.Row]:
    """Local actors, those of a cluster, and RLlib's EnvRunners, with the same environments. Ratios are medians over
    turns: what a machine is able to do changes from minute to minute."""
    rows: list[common.Row] = []
    flags = [*flags, "--epochs", 1, "--seconds", 0.5 if options.quick else 4]
    actors = int(str(flags[1]))
    turns = [
        {
            where: run(
                "speed/actors_one.py", "headrace", *flags, "--settings", json.dumps({"actors": actors, "cluster": at})
            )
            for where, at in HEADRACE.items()
        }
        for _ in range(1 if options.quick else TURNS)
    ]
    for where in HEADRACE:
        speeds = [turn[where]["sps"] for turn in turns]
        ends = {"sps": median(speeds), "sps_min": min(speeds), "sps_max": max(speeds), "turns": speeds}
        rows.append({"library": f"headrace, {where}", **turns[-1][where], **ends})
    share = rows[1]["of_local"] = median(b / a for a, b in zip(rows[0]["turns"], rows[1]["turns"], strict=True))
    rows[1]["floor"] = f"{FLOORS[name]}: {'met' if share >= FLOORS[name] else 'not met'}"
    if rllib:
        rows.append({"library": "rllib", **run("speed/actors_one.py", "rllib", *flags, python=rllib)})
    for row in rows:
        row |= {"environments": name, "actors": actors}
        print(common.table([row], COLUMNS), flush=True)
    return rows


def run(program: str, *flags: object, python: str = sys.executable) -> common.Row:
    """Run a program, and return the row that it prints."""
    return common.run_program(python, program, *flags, timeout=400)


def all_parts(options: Namespace, rllib: str | None) -> dict[str, common.Row]:
    """Measure the cost of each library's parts."""
    repeats = 3 if options.quick else 100
    found = {"headrace": run("speed/cluster_one.py", "--repeats", repeats)}
    if rllib:
        flags = ("speed/cluster_rllib.py", "parts", "--repeats", repeats, "--floats")
        found["rllib"] = run(*flags, "1_M", python=rllib) | run(*flags, "20_k", python=rllib)
    for name in PARTS:
        print(name.ljust(20), *(f"{library} {row[name]:.3g}" for library, row in found.items()), flush=True)
    return found


def several_learners(options: Namespace, rllib: str | None) -> list[common.Row]:
    """PPO on CartPole by one and two learners, of both libraries."""
    window = 0.2 if options.quick else 2.0
    work = {"CartPole": {"env": "CartPole-v1", **LEARNING}}
    rows = [{"library": "headrace", **row} for row in learners.trainings(window, work)]
    for number, name in ((0, "one learner"), (2, "2 learners")) if rllib else ():
        flags = ("--learners", number, "--seconds", window, "--repeats", 3 if options.quick else 100)
        row = run("speed/cluster_rllib.py", "learners", *flags, python=str(rllib))
        rows.append({"library": "rllib", "work": "CartPole", "learners": name, **row})
    print(common.table(rows, ("library", "learners", "sps", "sps_min", "sps_max")), flush=True)
    return rows


def main() -> None:
    """Measure, print tables, append to results/cluster.jsonl, and write the page's tables after a whole run."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--asleep", type=int, default=32, help="actors whose environments sleep")
    flags.add_argument("--table", action="store_true", help="write the tables of the last whole run, measure nothing")
    options = flags.parse_args()
    if not options.table:
        measure(options)
    if not options.quick:
        lines = (options.results / "cluster.jsonl").read_text().splitlines()
        last = [found for line in lines if not (found := json.loads(line))["quick"]][-1]
        replace_table("speed/cluster", markdown(last), PAGE)


def measure(options: Namespace) -> None:
    """Measure, print tables, and append to results/cluster.jsonl."""
    neighbours = common.Neighbours()
    rllib = common.interpreter_with("ray.rllib.algorithms", options.peers_home, "rllib")
    if rllib is None:
        print("rllib: not installed (benchmarks/peers/setup.sh rllib)")
    parts, sums = all_parts(options, rllib), learners.reductions()
    learning = several_learners(options, rllib)
    asleep = 2 if options.quick else options.asleep
    rows = steps(options, rllib, "asleep 10 ms", ["--processes", asleep, "--num-envs", asleep, "--sleep", 0.01])
    computing = ["--processes", 2, "--num-envs", 8, "--count", calibrated(0.001)]
    rows += steps(options, rllib, "computing 1 ms", computing)
    print(common.table(rows, COLUMNS))
    common.finish("cluster", rows, options, neighbours, parts=parts, sums=sums, learning=learning)


def markdown(result: common.Row) -> str:
    """The tables of docs/cluster.md."""
    ours, theirs = result["parts"]["headrace"], result["parts"].get("rllib", {})
    cells = [
        (what, shown(ours[name], digits), shown(theirs.get(name), digits)) for name, (what, digits) in PARTS.items()
    ]
    cells += summed(result)
    learning = {(row["library"], row["learners"]): row["sps"] for row in result["learning"]}
    for number in ("one learner", "2 learners"):
        rates = (shown(learning.get((library, number)), 0) for library in ("headrace", "rllib"))
        cells.append((f"PPO on CartPole, {number}, steps/s", *rates))
    lines = ["| | Headrace | RLlib |", "|---|--:|--:|", *(f"| {' | '.join(row)} |" for row in cells)]
    local = f"{ours['four_local_actors_s']:.1f} s, and take {ours['local_actor_MB']:.0f} MB each"
    lines += ["", f"Four local actors start in {local}.", ""]
    lines += ["| steps/s | local actors | cluster | of local | RLlib |", "|---|--:|--:|--:|--:|"]
    for name in FLOORS:
        rows = {row["library"]: row for row in result["rows"] if row["environments"] == name}
        local_row, row = rows["headrace, local actors"], rows["headrace, cluster"]
        rates = [shown(found and found["sps"], 0) for found in (local_row, row, rows.get("rllib"))]
        rates.insert(2, f"{row['of_local']:.2f} (floor {row['floor']})")
        lines.append(f"| {row['actors']} actors, {name} | {' | '.join(rates)} |")
    return "\n".join([*lines, "", about(result)])


def summed(result: common.Row) -> list[tuple[str, str, str]]:
    """Rows of the sums of two learners."""
    theirs: Any = next((row for row in result["learning"] if "sum_20_k_us" in row), {})
    cells = []
    for row, name in zip(result["sums"], ("20_k", "1_M"), strict=True):
        gloo, shared = shown(row["gloo_us"], 0), shown(row["shared_memory_us"], 0)
        what = f"sum of {row['floats']:,} floats over two learners, microseconds"
        cells.append((what, f"{shared} (by gloo {gloo})", shown(theirs.get(f"sum_{name}_us"), 0)))
    return cells


def shown(value: float | None, digits: int) -> str:
    """A number as the tables have it; a dash for none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def about(result: common.Row) -> str:
    """Describe where and when a run was made."""
    machine, day = result["machine"], result["when"][:10]
    return (
        f"{day}, {machine['cores']} cores of an {machine['cpu']}, Ray {machine['versions'].get('ray')}. Trainings are "
        "PPO with one epoch and 64 steps a rollout, those of learners with 4 epochs of minibatches of 256 rows. The "
        "start of RLlib's Ray includes importing it."
    )


if __name__ == "__main__":
    main()
