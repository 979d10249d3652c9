"""One measurement of RLlib on a Ray cluster of its own, in a process of its own, for comparison: started by cluster.py
in a Python that has RLlib."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import throughput
from benchmarks.processes import descendants
from benchmarks.speed.cluster_one import ACTORS, FLOATS, FRAGMENTS, private, seconds

WIDTHS = {"20_k": 136, "1_M": 1000}  # of two hidden layers, whose weights are about as many
STEP = 32  # bytes of a step of an episode: 4 float32 numbers observed, an action, a reward
LEARNING = {"train_batch_size_per_learner": 2048, "minibatch_size": 256, "num_epochs": 4}


def made(runners: int, learners: int, width: int) -> tuple[Any, dict[str, float]]:
    """A PPO, and the seconds that Ray and the rest took to start."""
    began = time.perf_counter()
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(address="local", num_cpus=runners + learners + 1, include_dashboard=False, log_to_driver=False)
    begun = time.perf_counter()
    config = PPOConfig().environment("CartPole-v1")
    config.env_runners(num_env_runners=runners, num_envs_per_env_runner=1 if runners else 32)
    rows = LEARNING["train_batch_size_per_learner"] // max(1, learners)
    config.training(**{**LEARNING, "train_batch_size_per_learner": rows})
    config.learners(num_learners=learners)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[width, width], fcnet_activation="tanh"))
    config.reporting(min_time_s_per_iteration=0)
    algorithm = config.build_algo()
    return algorithm, {"cluster_s": begun - began, "four_actors_s": time.perf_counter() - begun}


def parts(options: argparse.Namespace) -> dict[str, Any]:
    """Measure four EnvRunners as cluster_one does. Weights are of one size alone."""
    algorithm, found = made(ACTORS, 0, WIDTHS[options.floats])
    group, repeats = algorithm.env_runner_group, options.repeats
    processes = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(os.getpid())}
    own = [pid for pid, command in processes.items() if b"EnvRunner" in command]
    found["actor_MB"] = private(own) / max(1, len(own))
    found["ray_MB"] = private([pid for pid in processes if pid not in own])

    def call(function: Any) -> list[Any]:
        return group.foreach_env_runner(function, local_env_runner=False, remote_worker_ids=[1])

    found["call_ms"] = 1e3 * seconds(lambda: call("ping"), repeats)
    for name, size in FRAGMENTS.items():
        call(keeping(size))
        found[f"fragment_{name}_ms"] = 1e3 * seconds(lambda: call(lambda runner: runner.kept), repeats)

    def publish() -> None:
        source = algorithm.learner_group
        group.sync_weights(from_worker_or_learner_group=source, inference_only=True, timeout_seconds=None)

    found[f"weights_{options.floats}_ms"] = 1e3 * seconds(publish, repeats)
    weights = call(lambda runner: sum(weight.numel() for weight in runner.module.parameters()))
    return {**found, "floats": weights[0]}


def keeping(size: int) -> Any:
    """Function by which an EnvRunner keeps an episode of so many bytes, as it sends them to the learner."""

    def keep(runner: Any) -> None:
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode

        steps = size // STEP
        episode = SingleAgentEpisode(
            observations=list(np.zeros((steps + 1, 4), np.float32)),
            actions=list(np.zeros(steps, np.int64)),
            rewards=[0.0] * steps,
            len_lookback_buffer=0,
        )
        runner.kept = [episode.to_numpy()]

    return keep


def learners(options: argparse.Namespace) -> dict[str, Any]:
    """PPO on CartPole by some Learners: its start, steps per second, and the sum of a gradient over them."""
    algorithm, found = made(0, options.learners, 64)
    rows = LEARNING["train_batch_size_per_learner"]
    found |= throughput(algorithm.train, rows, options.seconds)
    if options.learners > 1:
        repeats = options.repeats
        for name, count in FLOATS.items():
            taken = algorithm.learner_group.foreach_learner(lambda _, count=count: summed(count, repeats))
            found[f"sum_{name}_us"] = 1e6 * next(iter(taken)).get()
    return found


def summed(count: int, repeats: int) -> float:
    """Seconds of a sum over all Learners, in one of them."""
    import torch
    from torch import distributed

    gradient = torch.zeros(count)
    return seconds(lambda: distributed.all_reduce(gradient), repeats)


def main() -> None:
    """Measure, and print the result as JSON."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("what", choices=["parts", "learners"])
    flags.add_argument("--repeats", type=int, default=100)
    flags.add_argument("--floats", choices=list(WIDTHS), default="20_k")
    flags.add_argument("--learners", type=int, default=0, help="0: one, in this process")
    flags.add_argument("--seconds", type=float, default=2.0, help="of a window")
    options = flags.parse_args()
    print(json.dumps({"parts": parts, "learners": learners}[options.what](options)))


if __name__ == "__main__":
    main()
