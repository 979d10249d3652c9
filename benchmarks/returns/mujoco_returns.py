"""MuJoCo and Box2D tasks to equal steps: Headrace with registered settings and without any, and Stable-Baselines3.

    python -m benchmarks.returns.mujoco_returns                                  # days; goes on where it was stopped
    python -m benchmarks.returns.mujoco_returns --only sac --tasks Hopper-v5 --library headrace sb3
    python -m benchmarks.returns.mujoco_returns --only sac --seeds 0 --steps 1000000   # once, and longer
    python -m benchmarks.returns.mujoco_returns --table                          # the rows so far, and train nothing

PPO on six MuJoCo tasks and three of Box2D, SAC and TD3 on four. `headrace` has the settings that are registered for a
task, `default` those of an environment that nobody registered; where none are registered they are the same, and only
`default` is run. `sb3` has those of its zoo (mujoco_tasks.py). Each training is a process of its own and one row of
results/mujoco_returns.jsonl; a training that has a row of the same settings is not run again. Policies are evaluated in
20 deterministic episodes at the marks, which all share; seconds, of wall time and of CPU time, leave these out.
Libraries are compared by CPU time: trainings may share the machine.

Deterministic returns of short trainings say little where actions are discrete: LunarLander's PPO (seed 0) that ended at
40,000 steps had a mean of 23 in 10 episodes with drawn actions, and of -1,381 with the likeliest ones. After 12,000
steps the likeliest action was the main engine in 88 % of states, though it was drawn hardly more often than others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import Row, machine, parser, read_rows, run_program, site_packages, table
from benchmarks.returns.mujoco_tasks import PLANS, ZOO

LIBRARIES = ("headrace", "default", "sb3")
QUICK = (512, 1024)  # marks
COLUMNS = ("algorithm", "env", "library", "steps", "seeds", "return", "lowest", "seconds", "cpu_s")
COMPARED = ("return_at", "sb3_return", "cpu_s_at", "sb3_cpu_s", "times_faster")


class Training(NamedTuple):
    """One training."""

    library: str
    algorithm: str
    env: str
    seed: int
    steps: int
    settings: str  # digest of the settings that were chosen for the task


def main() -> None:
    flags = parser((__doc__ or "").splitlines()[0])
    flags.add_argument("--only", nargs="+", default=list(PLANS), choices=PLANS, help="algorithms")
    flags.add_argument("--tasks", nargs="+", default=[], help="environments; all of them where empty")
    flags.add_argument("--library", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    flags.add_argument("--seeds", type=int, nargs="+", help="instead of those of mujoco_tasks.py")
    flags.add_argument("--steps", type=int, help="of a training, instead of those of mujoco_tasks.py")
    flags.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no training is begun")
    flags.add_argument("--table", action="store_true", help="print the rows so far, and train nothing")
    options = flags.parse_args()
    if options.steps is not None and options.steps < 1:
        flags.error(f"--steps is {options.steps}: give a positive number")
    known = {task for plan in PLANS.values() for task in plan.tasks}
    if unknown := set(options.tasks) - known:
        flags.error(f"--tasks has {', '.join(sorted(unknown))}: choose from {', '.join(sorted(known))}")
    file = options.results / "mujoco_returns.jsonl"
    if not options.table:
        _train(options, file)
    rows = [row for row in read_rows(file) if row["quick"] == options.quick]
    print(table(summary(rows), (*COLUMNS, *COMPARED)))
    print(verdict(summary(rows)))


def _train(options: argparse.Namespace, file: Path) -> None:
    packages = site_packages(options.peers_home) if "sb3" in options.library else None
    began, about = time.monotonic(), machine()
    done = {Training(*(row[name] for name in Training._fields)) for row in read_rows(file)}
    options.results.mkdir(parents=True, exist_ok=True)
    for training in wanted(options):
        if training in done or (training.library == "sb3" and packages is None):
            continue
        if time.monotonic() - began > options.limit:
            return
        marks = ",".join(map(str, marks_of(training)))
        arguments = (*training[:5], marks, *([packages] if training.library == "sb3" else []))
        row = run_program(sys.executable, "returns/mujoco_returns_one.py", *arguments, timeout=24 * 3600)
        row |= {"benchmark": "mujoco_returns", "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        row |= {"settings": training.settings, "reached": row["steps"], "steps": training.steps}
        with open(file, "a") as lines:
            lines.write(json.dumps({**row, "quick": options.quick, "machine": about}) + "\n")
        print(*training[:5], f"{row['return']:.1f} after {row['seconds']:.0f} s", flush=True)


def wanted(options: argparse.Namespace) -> Iterator[Training]:
    """The trainings that are asked for: first all tasks with the first seed."""
    for number in range(max(len(options.seeds or ()), *(plan.seeds for plan in PLANS.values()))):
        for algorithm in options.only:
            for env in PLANS[algorithm].tasks:
                if options.tasks and env not in options.tasks:
                    continue
                for library in options.library:
                    seeds, steps = _extent(library, algorithm, env, options)
                    if number < len(seeds):
                        chosen = digest(library, algorithm, env)
                        yield Training(library, algorithm, env, seeds[number], steps, chosen)


def _extent(library: str, algorithm: str, env: str, options: argparse.Namespace) -> tuple[list[int], int]:
    """Seeds, and steps of a training; no seeds where there is nothing to run."""
    plan = PLANS[algorithm]
    count, steps = plan.seeds, plan.marks[-1]
    if library == "sb3":
        count, steps = plan.sb3_seeds, plan.sb3_steps
        if env not in plan.sb3_tasks and env not in options.tasks:
            return [], 0
    if library == "headrace" and registered(algorithm, env) is None:
        return [], 0
    seeds = options.seeds or list(range(count))
    if options.quick:
        return seeds[:1], QUICK[-1]
    return seeds, options.steps or steps


def marks_of(training: Training) -> list[int]:
    """Steps at which the policy is evaluated, the end among them."""
    of_all = (*QUICK, *PLANS[training.algorithm].marks)
    least = min(PLANS[training.algorithm].marks[0], training.steps)
    return sorted({mark for mark in of_all if QUICK[-1] < mark < training.steps and mark >= least} | {training.steps})


def registered(algorithm: str, env: str) -> dict[str, Any] | None:
    """The settings that are registered for a task; None where none are."""
    import headrace  # noqa: F401  registers the environments
    from headrace.envs import registry

    return registry.spec(env).defaults.get(algorithm)


def digest(library: str, algorithm: str, env: str) -> str:
    """Digest of the settings that were chosen for a task: rows of other settings do not count."""
    from headrace.training.scaling import unregistered

    chosen = {
        "headrace": lambda: registered(algorithm, env),
        "default": lambda: unregistered(algorithm, {}),
        "sb3": lambda: ZOO[algorithm][env],
    }
    return hashlib.sha256(json.dumps(chosen[library](), sort_keys=True).encode()).hexdigest()[:12]


def summary(rows: list[Row]) -> list[Row]:
    """A line for each algorithm, task, library and number of steps: means over seeds. Where Stable-Baselines3 ran the
    task, too, and ours was for the plan's steps, with what both had at its last steps."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["settings"] == digest(row["library"], row["algorithm"], row["env"]):
            groups.setdefault((row["algorithm"], row["env"], row["library"], row["steps"]), []).append(row)
    lines = []
    for (algorithm, env, library, steps), group in sorted(groups.items(), key=lambda item: (*map(str, item[0]),)):
        returns = [row["return"] for row in group]
        line = {"algorithm": algorithm, "env": env, "library": library, "steps": steps, "seeds": len(group)}
        line |= {"return": statistics.mean(returns), "lowest": min(returns)}
        line |= {name: statistics.median(row[name] for row in group) for name in ("seconds", "cpu_s")}
        others = [row for row in rows if (row["algorithm"], row["env"], row["library"]) == (algorithm, env, "sb3")]
        counts = library != "sb3" and steps == PLANS[algorithm].marks[-1]  # longer trainings are not counted once more
        lines.append(line | (_compared(group, others) if others and counts else {}))
    return lines


def _compared(group: list[Row], others: list[Row]) -> Row:
    """Mean returns and median CPU seconds at the steps that Stable-Baselines3 trained for; empty where fewer were."""
    last = max(row["steps"] for row in others)
    points = [next((point for point in row["points"] if point["steps"] >= last), None) for row in group]
    ends = [row for row in others if row["steps"] == last]
    if None in points:
        return {}
    seconds, theirs = (statistics.median(x["cpu_s"] for x in some) for some in (points, ends))  # type: ignore
    return {
        "return_at": statistics.mean(point["return"] for point in points),  # type: ignore[index]
        "sb3_return": statistics.mean(row["return"] for row in ends),
        **{"cpu_s_at": seconds, "sb3_cpu_s": theirs, "times_faster": theirs / seconds},
    }


def verdict(lines: list[Row]) -> str:
    """Count the tasks of both libraries in which Headrace's return is at or above; and the median of times faster."""
    both = [line for line in lines if "sb3_return" in line]
    if not both:
        return "no task that both libraries ran"
    above = sum(line["return_at"] >= line["sb3_return"] for line in both)
    faster = statistics.median(line["times_faster"] for line in both)
    return f"return at or above Stable-Baselines3's in {above} of {len(both)}; {faster:.1f} times faster (median)"


if __name__ == "__main__":
    main()
