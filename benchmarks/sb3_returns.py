"""Returns after equal steps of algorithms that Stable-Baselines3's contrib has too, with the same arguments, seeds 0-4.

Both libraries train one after the other in this process (as `headrace compare` does), with one thread, and each last
policy is evaluated on 100 episodes. Seconds are of the CPU while training: other programs change them little.
Needs sb3-contrib (`pip install sb3-contrib`).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import Neighbours, Row, finish, parser, table

OF_CARTPOLE = {  # of rl_zoo3's QR-DQN on CartPole-v1
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 10},
}
OF_PENDULUM = {"learning_rate": 1e-3, "policy_kwargs": {"net_arch": [64, 64]}}
RECURRENT = {"policy": "MlpLstmPolicy", "n_envs": 16, "n_steps": 64, "batch_size": 256, "learning_rate": 1e-3}
RECURRENT |= {"n_epochs": 10, "policy_kwargs": {"lstm_hidden_size": 64}}
TASKS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "QR-DQN": ("qrdqn", "CartPole-v1", 50_000, OF_CARTPOLE),
    "TQC": ("tqc", "Pendulum-v1", 5_000, OF_PENDULUM),
    "CrossQ": ("crossq", "Pendulum-v1", 5_000, OF_PENDULUM),
    "RecurrentPPO": ("recurrent_ppo", "CartPoleWithoutVelocities-v0", 50_000, RECURRENT),
}
COLUMNS = ("task", "library", "steps", "returns", "cpu_seconds")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--only", nargs="+", default=list(TASKS), choices=TASKS)
    flags.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    options = flags.parse_args()
    os.environ["HEADRACE_THREADS"] = "1"
    sys.path.insert(0, str(Path(__file__).parents[1]))
    neighbours, rows = Neighbours(), list[Row]()
    for name in options.only:
        rows += compared(name, options.seeds[:1] if options.quick else options.seeds, options.quick)
        print(table(rows[-2:], COLUMNS), flush=True)
    print(table(rows, COLUMNS))
    finish("sb3_returns", rows, options, neighbours)


def compared(name: str, seeds: list[int], quick: bool) -> list[Row]:
    """A row for each library."""
    import gymnasium
    import torch

    from headrace.sb3.zoo import side_by_side

    gymnasium.register("CartPoleWithoutVelocities-v0", without_velocities)
    torch.set_num_threads(1)
    algorithm, env, steps, arguments = TASKS[name]
    task = side_by_side.task(algorithm, env, arguments, steps // 10 if quick else steps)
    task.settings["threads"] = 1
    rows = []
    for library, train in (("Headrace", side_by_side.train_ours), ("SB3", side_by_side.train_theirs)):
        returns, seconds, done = list[float](), list[float](), 0
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                found, busy = measured(train, task, seed, Path(folder), 10 if quick else 100)
            returns.append(round(found.evaluated, 1))
            seconds.append(round(found.seconds * busy, 1))
            done = found.steps
        rows.append(
            {"task": name, "env": env, "library": library, "steps": done, "returns": returns}
            | {"seconds_each": seconds, "cpu_seconds": statistics.median(seconds)}
        )
    return rows


def without_velocities(**options: Any) -> Any:
    """CartPole-v1, of which the positions alone are observed: a task for recurrent policies."""
    import gymnasium

    env = gymnasium.make("CartPole-v1", **options)
    space = env.observation_space
    seen = gymnasium.spaces.Box(space.low[[0, 2]], space.high[[0, 2]])
    return gymnasium.wrappers.TransformObservation(env, lambda observation: observation[[0, 2]], seen)


def measured(train: Callable[..., Any], task: Any, seed: int, folder: Path, episodes: int) -> tuple[Any, float]:
    """What a training gives, and the part of a core that this process had meanwhile."""
    began, used = time.perf_counter(), time.process_time()
    found = train(task, seed, folder, episodes)
    return found, (time.process_time() - used) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
