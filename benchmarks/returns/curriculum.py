"""A curriculum of levels: PPO on CartPole with more gravity and a weaker push from level to level, compared with the
last level from the beginning, and with the usual parameters. Returns are of the last policy at the last level."""

from __future__ import annotations

import time
from typing import Any

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table

LEVELS = {"gravity": [9.8, 20.0, 30.0, 40.0], "force": [10.0, 8.0, 7.0, 6.0]}
LAST = {name: values[-1] for name, values in LEVELS.items()}
WAYS: dict[str, dict[str, Any]] = {
    "levels": {"curriculum": {**LEVELS, "above": 300, "episodes": 50}},
    "last level": {"params": LAST},
    "usual": {},
}
COLUMNS = ("way", "seed", "return", "level", "cpu_seconds")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--steps", type=int, default=200_000)
    options = flags.parse_args()
    neighbours, seeds = Neighbours(), options.seeds[:1] if options.quick else options.seeds
    steps = 20_000 if options.quick else options.steps
    rows = [trained(way, seed, steps) for way in WAYS for seed in seeds]
    print(table(rows, COLUMNS))
    finish("curriculum", rows, options, neighbours)


def trained(way: str, seed: int, steps: int) -> Row:
    """A training, and 100 episodes of its last policy at the last level."""
    began = time.process_time()
    trainer = hr.Trainer("ppo", "CartPole-v1", seed=seed, total_steps=steps, target_return=None, **WAYS[way])
    while not trainer.reason_to_stop():
        result = trainer.iterate()
    spent = time.process_time() - began
    found = hr.evaluate(trainer.policy, "CartPole-v1", episodes=100, params=LAST).mean
    level = result.details.get("curriculum/level", "")
    trainer.close()
    return {"way": way, "seed": seed, "return": round(found, 1), "level": level, "cpu_seconds": spent}


if __name__ == "__main__":
    main()
