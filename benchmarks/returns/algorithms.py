"""Every algorithm on the tasks it must master: return on the original environment after training with the defaults.

A seed has a process of its own. Training ends where the environment's defaults say; the return is the mean of 100
deterministic episodes afterwards. Seconds are those of training, compiling left out.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.common import Neighbours, Row, finish, parser, run_program, table


class Task(NamedTuple):
    """Return that an algorithm must reach, as the mean over seeds."""

    algorithm: str
    env: str
    threshold: float
    seeds: int = 5  # trainings, where nothing else is asked for


TASKS = [
    *(Task(name, "CartPole-v1", 475.0) for name in ("reinforce", "a2c", "impala", "ppo", "appo", "trpo", "dqn", "pqn")),
    *(Task(name, "Acrobot-v1", -100.0) for name in ("a2c", "impala", "ppo", "appo", "trpo", "dqn")),
    *(Task(name, "Pendulum-v1", -200.0) for name in ("ddpg", "td3", "sac", "tqc", "crossq")),
    *(Task(name, "InvertedDoublePendulum-v5", 9000.0) for name in ("sac", "tqc", "crossq")),
    Task("ppo", "CartPoleHidden", 400.0),  # without velocities: by memory
    Task("dqn", "CartPoleHidden", 200.0),
    Task("sac", "PendulumHidden", -300.0),
    *(Task(name, "PixelCatch", 0.9) for name in ("ppo", "dqn")),
    Task("sac", "PixelPendulum", -300.0, seeds=1),
]
COLUMNS = ("algorithm", "env", "threshold", "return", "spread", "lowest", "reached", "seeds", "steps", "seconds")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--only", default="", help="algorithms, separated by commas; all of them where empty")
    flags.add_argument("--env", default="", help="environments, separated by commas; all of them where empty")
    flags.add_argument("--seeds", type=int, help="5 where nothing else is said, and 1 of the slowest tasks")
    flags.add_argument("--first-seed", type=int, default=0)
    options = flags.parse_args()
    neighbours = Neighbours()
    algorithms, envs = (set(filter(None, text.split(","))) for text in (options.only, options.env))
    chosen = [t for t in TASKS if (not algorithms or t.algorithm in algorithms) and (not envs or t.env in envs)]
    if not chosen:
        sys.exit(f"no task of {options.only or 'any algorithm'} on {options.env or 'any environment'}")
    first = options.first_seed
    rows = []
    for task in chosen:
        numbers = range(first, first + (1 if options.quick else options.seeds or task.seeds))
        rows.append(summary(task, trainings(task, numbers, options.quick)))
    print(table(rows, COLUMNS))
    finish("algorithms", rows, options, neighbours)


def trainings(task: Task, numbers: Iterable[int], quick: bool) -> list[Row]:
    """One training for each seed. quick: one short one, whose return means nothing."""
    limits = ["--total-steps", 2_000] if quick else []
    episodes = 5 if quick else 100
    rows = []
    for seed in numbers:
        arguments = (task.algorithm, task.env, "--seed", seed, "--episodes", episodes, *limits)
        rows.append(run_program(sys.executable, "returns/algorithms_one.py", *arguments, timeout=3600))
        print(*arguments, f"return {rows[-1]['return']:.1f}, {rows[-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    return rows


def summary(task: Task, rows: list[Row]) -> Row:
    """Mean and spread (standard deviation) over seeds; `reached`: how many seeds did."""
    returns = [row["return"] for row in rows]
    return {
        **task._asdict(),
        "return": statistics.mean(returns),
        "spread": statistics.stdev(returns) if len(returns) > 1 else 0.0,
        "lowest": min(returns),
        "reached": sum(value >= task.threshold for value in returns),
        "seeds": len(returns),
        "steps": statistics.mean(row["steps"] for row in rows),
        "seconds": statistics.mean(row["seconds"] for row in rows),
        "runs": rows,
    }


if __name__ == "__main__":
    main()
