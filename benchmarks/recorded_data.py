"""A replay buffer that begins with the rows of another run: returns of SAC on Pendulum-v1 after 2,000 steps, with the
4,000 steps of one run in its buffer and without, each with learning from the first step on.

`return` is the mean of 50 episodes, whose seeds no training has.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from common import Neighbours, Row, finish, parser, table

import headrace as hr

SETTINGS: dict[str, Any] = {"num_envs": 2, "progress": "none", "eval_freq": 0, "final_episodes": 0}
COLUMNS = ("data", "seed", "return", "cpu_s")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    options = flags.parse_args()
    neighbours, steps = Neighbours(), 200 if options.quick else 2_000
    seeds = options.seeds[:1] if options.quick else options.seeds
    with tempfile.TemporaryDirectory() as folder:
        data = hr.train("sac", "Pendulum-v1", total_steps=2 * steps, seed=100, log_folder=folder, **SETTINGS)
        rows = [learned(path, seed, steps, folder) for path in (None, data.path) for seed in seeds]
    print(table(rows, COLUMNS))
    finish("recorded_data", rows, options, neighbours)


def learned(data: Path | None, seed: int, steps: int, folder: str) -> Row:
    """One training."""
    start, given = time.process_time(), {} if data is None else {"replay": str(data)}
    settings = {"total_steps": steps, "seed": seed, "log_folder": folder, "learning_starts": 0, **given}
    run = hr.train("sac", "Pendulum-v1", **SETTINGS, **settings)
    spent = time.process_time() - start
    found = hr.evaluate(run.policy, "Pendulum-v1", episodes=50, seed=10_000).mean
    name = "none" if data is None else f"{2 * steps:,} steps"
    return {"data": name, "seed": seed, "return": found, "cpu_s": round(spent, 1)}


if __name__ == "__main__":
    main()
