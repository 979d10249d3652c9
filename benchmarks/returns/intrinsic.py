"""A bonus for new observations: tasks whose one reward is far from what random actions reach, with random network
distillation and without.

Switchback has its reward at the end of a path of 58 steps; MountainCarContinuous costs each action, and TD3's noise,
which is independent from step to step here, does not swing the car up. `return` is the mean of the last 100 training
episodes at the end, `best` the highest such mean, `steps_to` the steps at which it was first above 0.9 (of Switchback),
or 0 (of the car). With registered settings but for those in TASKS.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table

CAR = {"noise_autocorrelation": 0.0, "n_steps": 1, "learning_starts": 1_000, "intrinsic_coef": 100.0}
SWITCHBACK: dict[str, dict[str, Any]] = {  # A2C, IMPALA and REINFORCE do not normalise advantages by default
    "ppo": {"total_steps": 300_000},
    "appo": {"total_steps": 300_000, "num_envs": 64, "minibatch_size": 1_024, "entropy_coef": 0.001},
    "trpo": {"total_steps": 300_000},
    "a2c": {"total_steps": 1_000_000, "num_envs": 64, "normalize_advantage": True},
    "impala": {"total_steps": 1_000_000, "num_envs": 64, "normalize_advantage": True},
    "reinforce": {
        **{"total_steps": 1_000_000, "num_envs": 64, "num_steps": 64},
        **{"learning_rate": 1e-3, "normalize_advantage": True},
    },
    "dqn": {"total_steps": 150_000},
}
TASKS: dict[str, tuple[str, str, float, dict[str, Any]]] = {  # name -> algorithm, environment, threshold, settings
    **{name: (name, "Switchback", 0.9, settings) for name, settings in SWITCHBACK.items()},
    "td3": ("td3", "MountainCarContinuous-v0", 0.0, {"total_steps": 20_000, **CAR}),
}
COLUMNS = ("task", "env", "intrinsic", "seed", "return", "best", "steps_to", "cpu_s")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds = options.seeds[:1] if options.quick else options.seeds
    rows = [
        learned(task, intrinsic, seed, options.quick)
        for task in options.tasks
        for intrinsic in ("rnd", "none")
        for seed in seeds
    ]
    print(table(rows, COLUMNS))
    finish("intrinsic", rows, options, neighbours)


def learned(task: str, intrinsic: str, seed: int, quick: bool) -> Row:
    """One training."""
    algorithm, env, threshold, settings = TASKS[task]
    settings = settings | {"intrinsic": intrinsic, "seed": seed, "target_return": None}
    if intrinsic == "none":
        settings.pop("intrinsic_coef", None)
    if quick:
        settings["total_steps"] = 4_000
    means, reached, start = [float("-inf")], None, time.process_time()
    with closing(hr.Trainer(algorithm, env, **settings)) as trainer:
        while trainer.steps < settings["total_steps"]:
            result = trainer.iterate()
            if result.mean_return is not None:
                means.append(result.mean_return)
            reached = result.steps if reached is None and means[-1] > threshold else reached
    row = {"task": task, "env": env, "intrinsic": intrinsic, "seed": seed, "return": round(means[-1], 3)}
    row |= {"best": round(max(means), 3), "steps_to": reached}
    return row | {"cpu_s": round(time.process_time() - start, 1)}


if __name__ == "__main__":
    main()
