"""Do the registered settings hold? Every algorithm on every environment it has settings for, at the registered number
of steps and at three times as many, on fresh seeds: the return at the *end*, not where it was solved first.

    python -m benchmarks.returns.registered_settings                             # hours; go on where it was stopped
    python -m benchmarks.returns.registered_settings --only ppo --env Pendulum-v1
    python -m benchmarks.returns.registered_settings --table   # the rows so far, into docs/reliability.md

A training is one row in results/registered_settings.jsonl; one that is there already for the same settings is not run
again. target_return is None; the return is the mean of 100 deterministic episodes of the last policy. 20 seeds where a
training takes up to 60 s of CPU time, 5 where it takes longer; 3, at the registered steps alone, on environments of
other packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import judge
from benchmarks.common import ROOT, Row, cores, machine, parser, read_rows, table
from benchmarks.returns import algorithms, any_env_tasks
from benchmarks.tables import replace_table

PAGE = ROOT / "docs" / "reliability.md"
OTHERS = {  # mean return of 100 episodes, where no other benchmark asks for one
    "GridWorld": 6.5,  # pills; an episode has about 8.75
    "ConnectFour": 0.9,  # 95 % of games won
    "BitFlip": -16.0,  # about 14 bits have to be flipped; -30 where the goal is not reached
    "Switchback": 0.9,  # of 1
    "Reach": -20.0,  # of -50 where the goal is never reached
    "Flock": 150.0,  # of 200
    "IonTrap": 400.0,  # of 500 steps
    "simple_spread_v3": -20.0,
    "FrozenLake-v1": 0.65,  # the best policy has 0.74
    "Taxi-v4": 5.0,  # the best policy has about 7.9; one that is stuck in 1 of 100 episodes, 5.8
    "LunarLanderContinuous-v3": 200.0,
    "BipedalWalker-v3": 200.0,  # it walks to the end; 300 for doing so without waste
    "Swimmer-v5": 100.0,  # of about 360
    "Ant-v5": 1000.0,  # what standing still until the time limit gives; walking gives more
}
# days; aliases; returns that cancel (three)
LEFT_OUT = ("ALE/", "envpool/", "ConnectFourPlayers", "Pursuit", "Tag", "Taxi-v3")
MUJOCO = ("Ant-v5", "HalfCheetah-v5", "InvertedDoublePendulum-v5", "Swimmer-v5")
BOX2D = ("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3")
FOREIGN = (*BOX2D, *MUJOCO, "simple_spread_v3", "FrozenLake-v1", "Taxi-v4")
MANY, FEW, FOREIGN_SEEDS = 20, 5, 3
LONG = 60.0  # CPU seconds of a training from which FEW seeds do
FIRST_SEED = 2_000  # settings were chosen on seeds from 1,000, and benchmarks report those from 0
EPISODES = 100
FILE = "registered_settings.jsonl"
COLUMNS = ("algorithm", "env", "times", "threshold", "mean", "lowest", "reached", "seeds", "steps", "seconds")


class Training(NamedTuple):
    """One training."""

    algorithm: str
    env: str
    times: int  # of the registered total_steps
    seed: int
    settings: str  # digest of the registered settings


def main() -> None:
    flags = parser((__doc__ or "").splitlines()[0])
    flags.add_argument("--only", default="", help="algorithms, separated by commas; all of them where empty")
    flags.add_argument("--env", default="", help="environments, separated by commas; all of them where empty")
    flags.add_argument("--seeds", type=int, help="instead of 20, 5 or 3")
    flags.add_argument("--times", type=int, nargs="+", default=[1, 3], help="of the registered steps")
    flags.add_argument("--jobs", type=int, default=cores(), help="trainings at once")
    flags.add_argument("--longest", type=float, default=float("inf"), help="leave out trainings of more seconds")
    flags.add_argument(
        "--table", action="store_true", help="write the rows so far into docs/reliability.md, and train nothing"
    )
    options = flags.parse_args()
    file = options.results / FILE
    if options.table:
        replace_table("returns/registered_settings", markdown(summary(read_rows(file), options)), PAGE)
        return
    options.results.mkdir(parents=True, exist_ok=True)
    _train(options, file)
    print(table(summary(read_rows(file), options), COLUMNS))


def _train(options: argparse.Namespace, file: Path) -> None:
    """One seed of each first, which tells how long they take; then the other seeds."""
    context, about = multiprocessing.get_context("spawn"), machine()
    with context.Pool(options.jobs, maxtasksperchild=8) as pool:
        for wanted in (lambda _: 1, lambda row: _seeds(row, options)):
            known = read_rows(file)
            todo = [training for training in missing(known, wanted, options) if _fits(training, known, options)]
            for row in pool.imap_unordered(train, todo):
                with open(file, "a") as lines:
                    lines.write(json.dumps({**row, "machine": about}) + "\n")
                print(*(row[name] for name in (*Training._fields[:4], "return", "seconds")), flush=True)


def train(training: Training) -> Row:
    """Train and evaluate; in a process of the pool."""
    from headrace import Trainer, evaluate

    total_steps = registered(training.algorithm, training.env)["total_steps"] * training.times
    seed, began = training.seed, time.process_time()
    trainer = Trainer(training.algorithm, training.env, seed=seed, total_steps=total_steps, target_return=None)
    while not trainer.reason_to_stop():
        trainer.iterate()
    result = evaluate(trainer.policy, training.env, EPISODES, seed)
    trainer.close()
    found = {"return": result.mean, "std": result.std, "steps": trainer.steps, "seconds": time.process_time() - began}
    return {**training._asdict(), **found}


def registered(algorithm: str, env: str) -> dict[str, Any]:
    """The registered settings."""
    from headrace.envs import registry

    return dict(registry.spec(env).defaults[algorithm])


def pairs(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(algorithm, environment) of all registered settings that are asked for."""
    import headrace  # noqa: F401  registers the environments
    from headrace.envs import registry

    only, envs = (set(filter(None, text.split(","))) for text in (options.only, options.env))
    for env in registry.names():
        if env.startswith(LEFT_OUT) or (envs and env not in envs):
            continue
        for algorithm in registry.spec(env).defaults:
            if not only or algorithm in only:
                yield algorithm, env


def missing(known: list[Row], wanted: Any, options: argparse.Namespace) -> list[Training]:
    """The trainings that are not among the known rows. wanted: gives the number of seeds for a row of one."""
    done = {Training(*(row[name] for name in Training._fields)): row for row in known}
    todo = []
    for algorithm, env in pairs(options):
        for times in options.times:
            if env in FOREIGN and times > 1:
                continue
            first = Training(algorithm, env, times, FIRST_SEED, digest(algorithm, env))
            todo += [first._replace(seed=FIRST_SEED + number) for number in range(wanted(done.get(first)))]
    return [training for training in todo if training not in done]


def _seeds(row: Row | None, options: argparse.Namespace) -> int:
    """Number of seeds of this training, by how long one took."""
    if row is None:
        return 0
    if row["env"] in FOREIGN:
        return FOREIGN_SEEDS
    return options.seeds or (MANY if row["seconds"] <= LONG else FEW)


def _fits(training: Training, known: list[Row], options: argparse.Namespace) -> bool:
    """Tell whether a training is not too long, judged by other seeds, or by fewer steps."""
    same = [row for row in known if (row["algorithm"], row["env"]) == (training.algorithm, training.env)]
    return not any(row["seconds"] / row["times"] * training.times > options.longest for row in same)


def threshold(algorithm: str, env: str) -> float:
    """The mean return that the other benchmarks ask for: of this algorithm, or else of any."""
    of_both = {(task.algorithm, task.env): task.threshold for task in algorithms.TASKS}
    of_env = {task.env: task.threshold for task in algorithms.TASKS} | OTHERS
    of_env |= {env: task.threshold for env, task in (any_env_tasks.TASKS | judge.TASKS).items()}
    return of_both.get((algorithm, env), of_env[env])


def digest(algorithm: str, env: str) -> str:
    """Digest of the registered settings: rows of other settings do not count."""
    return hashlib.sha256(json.dumps(registered(algorithm, env), sort_keys=True).encode()).hexdigest()[:12]


def summary(rows: list[Row], options: argparse.Namespace) -> list[Row]:
    """One row for each algorithm, environment and number of steps; those of today's settings."""
    found = []
    for algorithm, env in pairs(options):
        least, today = threshold(algorithm, env), digest(algorithm, env)
        for times in options.times:
            mine = [
                row
                for row in rows
                if (row["algorithm"], row["env"], row["times"], row["settings"]) == (algorithm, env, times, today)
            ]
            if mine:
                returns = [row["return"] for row in mine]
                found.append(
                    {"algorithm": algorithm, "env": env, "times": times, "threshold": least}
                    | {"mean": statistics.mean(returns), "lowest": min(returns), "seeds": len(mine)}
                    | {"reached": sum(value >= least for value in returns), "steps": mine[0]["steps"]}
                    | {"seconds": statistics.median(row["seconds"] for row in mine)}
                )
    return found


def markdown(rows: list[Row]) -> str:
    """The rows as a table for docs/reliability.md."""
    lines = [
        "| algorithm | env | times | threshold | mean | lowest | reached | steps | CPU s |",
        "|---|---|" + "--:|" * 7,
    ]
    for row in rows:
        returns = " | ".join(f"{row[name]:.4g}" for name in ("threshold", "mean", "lowest"))
        reached = f"{row['reached']} of {row['seeds']}"
        cells = (
            row["algorithm"],
            row["env"],
            row["times"],
            returns,
            reached,
            f"{row['steps']:,}",
            f"{row['seconds']:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("HEADRACE_THREADS", "1")  # as many trainings at once as there are cores
    main()
