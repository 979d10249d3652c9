"""Gradient steps a CPU second of algorithms for discrete actions: compiled from their losses, and plain PyTorch.

CartPole, two hidden layers of 64 units, minibatches of 64 rows, one thread. Both take turns in one process; CPU time
counts, so that other programs on the machine change little.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from benchmarks.common import Neighbours, Row, finish, parser, table

RAINBOW = {"noisy": 0.5, "n_steps": 3, "double": True, "dueling": True, "prioritized": True}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "DQN": ("dqn", {}),
    "DQN, noisy": ("dqn", {"noisy": 0.5}),
    "QR-DQN": ("qrdqn", {"quantiles": 50}),
    "C51": ("c51", {}),
    "C51, noisy": ("c51", {"noisy": 0.5}),
    "Rainbow": ("c51", RAINBOW),
    "discrete SAC": ("discrete_sac", {}),
}
STEPS = 16  # gradient steps of a call
COLUMNS = ("task", "compiled", "plain", "times")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--only", nargs="+", default=list(TASKS), choices=TASKS)
    flags.add_argument("--turns", type=int, default=5)
    options = flags.parse_args()
    os.environ["HEADRACE_THREADS"] = "1"
    neighbours, rows = Neighbours(), list[Row]()
    turns, seconds = (1, 0.05) if options.quick else (options.turns, 1.0)
    for task in options.only:
        rows.append({"task": task} | measure(*TASKS[task], turns, seconds))
    print(table(rows, COLUMNS))
    finish("discrete_losses", rows, options, neighbours)


def measure(algorithm: str, settings: dict[str, Any], turns: int, seconds: float) -> Row:
    """Medians over turns, of which the first warms up."""
    import torch

    import headrace as hr
    from headrace.algorithms.off_policy import learn_from_replay
    from headrace.core.fused import plain_only

    torch.set_num_threads(1)
    options = {"num_envs": 8, "num_steps": 8, "hidden": (64, 64), "batch_size": 64, "learning_starts": 500} | settings
    options |= {"total_steps": 10**6, "buffer_size": 20_000, "registered": False, "progress": "none", "threads": 1}
    found: dict[bool, list[float]] = {False: [], True: []}
    trainer = hr.Trainer(algorithm, "CartPole-v1", **options)
    while trainer.algorithm.updates < STEPS:
        trainer.iterate()
    for turn in range(turns + 1):
        for plain, rates in found.items():
            with plain_only(plain):
                steps, began = 0, time.process_time()
                while time.process_time() - began < seconds or not steps:
                    learn_from_replay(trainer.algorithm, STEPS)
                    steps += STEPS
                if turn:
                    rates.append(steps / (time.process_time() - began))
    trainer.close()
    compiled, plainly = (statistics.median(rates) for rates in found.values())
    return {"compiled": compiled, "plain": plainly, "times": compiled / plainly}


if __name__ == "__main__":
    main()
