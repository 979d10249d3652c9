"""A bonus for new observations: Switchback, whose one reward is at the end of a path of 58 steps, by PPO with random
network distillation and without.

`return` is the mean of the last 100 training episodes at the end, `steps_to_0.9` those at which it was first above 0.9.
With registered settings but for the number of steps.
"""

from __future__ import annotations

import time

from common import Neighbours, Row, finish, parser, table

import headrace as hr

STEPS = 300_000
COLUMNS = ("algorithm", "intrinsic", "seed", "return", "steps_to_0.9", "cpu_s")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds = options.seeds[:1] if options.quick else options.seeds
    steps = 20_000 if options.quick else STEPS
    rows = [learned("ppo", intrinsic, seed, steps) for intrinsic in ("rnd", "none") for seed in seeds]
    print(table(rows, COLUMNS))
    finish("intrinsic", rows, options, neighbours)


def learned(algorithm: str, intrinsic: str, seed: int, steps: int) -> Row:
    """One training."""
    mean, reached, start = 0.0, None, time.process_time()
    settings = {"intrinsic": intrinsic, "total_steps": steps, "seed": seed}
    trainer = hr.Trainer(algorithm, "Switchback", target_return=None, **settings)
    while trainer.steps < steps:
        result = trainer.iterate()
        mean = result.mean_return or 0.0
        reached = result.steps if reached is None and mean > 0.9 else reached
    trainer.close()
    row = {"algorithm": algorithm, "intrinsic": intrinsic, "seed": seed, "return": round(mean, 3)}
    return row | {"steps_to_0.9": reached, "cpu_s": round(time.process_time() - start, 1)}


if __name__ == "__main__":
    main()
