"""Learning from recorded data: the rows of the replay buffer of a run of SAC on Pendulum-v1, or of DQN on CartPole-v1.

--part first: a replay buffer that begins with them. Returns of SAC after 2,000 steps, with the 4,000 steps of one run
in its buffer and without, each with learning from the first step on.
--part alone: nothing but them. Returns of TD3+BC, IQL and behaviour cloning after 10,000 gradient steps on the 8,000
steps of a run, the first 2,000 of which are random. `mean return` of the data is that of its episodes. Settings were
chosen on seed 10.
--part discrete: the same of discrete actions, on CartPole-v1. Returns of CQL, IQL and behaviour cloning after 5,000
gradient steps on the 20,000 steps of a run of DQN.

`return` is the mean of 50 episodes, whose seeds no training has.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table

SETTINGS: dict[str, Any] = {"progress": "none", "eval_freq": 0}
COLUMNS = ("algorithm", "data", "mean return", "seed", "return", "cpu_s")
ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "td3_bc": ("td3_bc", {}),
    "td3_bc, alpha=20": ("td3_bc", {"alpha": 20.0}),
    "iql": ("iql", {}),
    "cql": ("cql", {"num_samples": 4, "hidden": (64, 64)}),
    "bc": ("bc", {}),
}
DISCRETE = ("iql", "discrete_cql", "bc")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--part", choices=("first", "alone", "discrete"), default="first")
    flags.add_argument("--only", nargs="*", help="names of algorithms")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds = options.seeds[:1] if options.quick else options.seeds
    scale = 10 if options.quick else 1
    with tempfile.TemporaryDirectory() as folder:
        if options.part == "first":
            data = collected(4_000 // scale, folder)
            settings = {"num_envs": 2, "total_steps": 2_000 // scale, "learning_starts": 0}
            cases = [("sac", "sac", "Pendulum-v1", path, settings) for path in (None, data)]
        elif options.part == "discrete":
            data = collected(20_000 // scale, folder, "dqn", "CartPole-v1")
            common = {"total_steps": 5_000 // scale, "learning_rate": 1e-3, "batch_size": 128}
            cases = [(name, name, "CartPole-v1", data, common) for name in DISCRETE]
        else:
            data = collected(8_000 // scale, folder, learning_starts=2_000 // scale)
            common = {"total_steps": 10_000 // scale, "learning_rate": 1e-3, "batch_size": 128}
            cases = [(name, algorithm, "Pendulum-v1", data, common | own) for name, (algorithm, own) in ALONE.items()]
        cases = [case for case in cases if not options.only or case[0] in options.only]
        rows = [learned(*case, seed, folder) for seed in seeds for case in cases]
    print(table(rows, COLUMNS))
    finish("recorded_data", rows, options, neighbours)


def collected(steps: int, folder: str, algorithm: str = "sac", env: str = "Pendulum-v1", **settings: Any) -> Path:
    """A run whose replay buffer has so many steps."""
    settings = {"num_envs": 2, "total_steps": steps, "seed": 100, "log_folder": folder, **settings}
    run = hr.train(algorithm, env, **SETTINGS, **settings)
    print(f"{algorithm} has learned: {hr.evaluate(run.policy, env, episodes=50, seed=10_000).mean:.1f}", flush=True)
    return run.path


def learned(
    name: str, algorithm: str, env: str, data: Path | None, settings: dict[str, Any], seed: int, folder: str
) -> Row:
    """One training."""
    start, given = time.process_time(), {} if data is None else {"replay": str(data)}
    run = hr.train(algorithm, env, seed=seed, log_folder=folder, **SETTINGS, **settings, **given)
    spent = time.process_time() - start
    found = hr.evaluate(run.policy, env, episodes=50, seed=10_000).mean
    returns = [] if data is None else of_episodes(data)
    print(f"{name} {seed}: {found:.1f}", flush=True)
    return {
        "algorithm": name,
        "data": f"{len(returns)} episodes" if returns else "none",
        "mean return": round(statistics.fmean(returns), 1) if returns else None,
        "seed": seed,
        "return": found,
        "cpu_s": round(spent, 1),
    }


def of_episodes(run: Path) -> list[float]:
    """The returns of the episodes of a run, which its monitor.csv lists."""
    lines = [line for line in (run / "monitor.csv").read_text().splitlines() if not line.startswith("#")]
    return [float(row["r"]) for row in csv.DictReader(lines)]


if __name__ == "__main__":
    main()
