"""Seconds from a loss to full strength of RLlib's PPO, for comparison with kill_nodes.py: the same losses on the same
three nodes, restart_failed_env_runners=True. Not whether the result is the same: lost EnvRunners begin new episodes.

    .peers/rllib/bin/python -m benchmarks.faults.kill_env_runners     # two losses of each kind: about five minutes

Needs a Python with RLlib (peers/setup.sh rllib). Rows are appended to results/env_runners.jsonl.
"""

from __future__ import annotations

import os
import random
import signal
import time
from statistics import median
from typing import Any

from benchmarks import common

COMES_BACK = 3.0  # s after a loss, as many nodes come as were lost: as in kill_nodes.py
LOSSES = {"an actor": 0, "a node": 1, "two of three nodes": 2}  # and how many nodes each takes
LONGEST = 150.0  # s


def made(address: str) -> Any:
    """A PPO with three EnvRunners of four environments each, which looks every iteration whether they are there."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig

    ray.init(address, log_to_driver=False)
    config = PPOConfig().environment("CartPole-v1")
    config.env_runners(num_env_runners=3, num_envs_per_env_runner=4, rollout_fragment_length=32)
    config.training(train_batch_size_per_learner=384, minibatch_size=128, num_epochs=2)
    config.fault_tolerance(restart_failed_env_runners=True, delay_between_env_runner_restarts_s=0)
    config.reporting(min_time_s_per_iteration=0)
    return config.build_algo()


def lose(nodes: Any, algorithm: Any, loss: str, chance: random.Random) -> float | None:
    """Seconds from a loss until three EnvRunners have sampled again; None where they have not in time."""
    group = algorithm.env_runner_group
    began = time.monotonic()
    if not LOSSES[loss]:
        pids = group.foreach_env_runner(lambda _: os.getpid(), local_env_runner=False)
        began = time.monotonic()
        os.kill(chance.choice(pids), signal.SIGKILL)
    for _ in range(LOSSES[loss]):
        nodes.kill()
    if LOSSES[loss]:
        nodes.add_later(1, COMES_BACK, LOSSES[loss])
    noticed = False
    while time.monotonic() - began < LONGEST:
        algorithm.train()
        healthy = group.num_healthy_remote_env_runners()
        noticed = noticed or healthy < 3
        if noticed and healthy == 3:
            return time.monotonic() - began
    return None


def shut_down() -> None:
    """Leave the cluster, whose nodes may end then."""
    import ray

    ray.shutdown()


def main() -> None:
    """Lose, print, and append to results/env_runners.jsonl."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--losses", type=int, default=2, help="of each kind")
    flags.add_argument("--seed", type=int, default=0, help="of the moments")
    options = flags.parse_args()
    chance, neighbours = random.Random(options.seed), common.Neighbours()
    from benchmarks.faults.ray_nodes import Nodes

    os.environ.setdefault("RAY_health_check_period_ms", "1000")  # as kill_nodes.py
    nodes = Nodes(3, 1)
    algorithm = made(nodes.address)
    rows: list[common.Row] = []
    for loss in ["an actor"] if options.quick else LOSSES:
        spent = []
        for _ in range(1 if options.quick else options.losses):
            for _ in range(chance.randint(2, 5)):
                algorithm.train()
            spent.append(lose(nodes, algorithm, loss, chance))
            print(f"{loss}: full strength after {spent[-1] and round(spent[-1], 1)} s", flush=True)
            while len(nodes.nodes) < 3:
                time.sleep(0.1)
        rows.append({"lost": loss, "seconds": spent, "median": median(x or LONGEST for x in spent)})
    algorithm.stop()
    shut_down()
    nodes.close()
    common.finish("env_runners", rows, options, neighbours)


if __name__ == "__main__":
    main()
