"""Cost and gain of several learners: the sum of two of them by shared memory compared with gloo, and steps per second
of PPO by two learners compared with one learner that has one or two threads.

    python -m benchmarks.speed.learners
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import torch

from benchmarks import common

SIZES = (20_000, 1_000_000)  # floats of a gradient
SUMS = 300
WORK: dict[str, dict[str, Any]] = {
    "CartPole, 64 x 64": {"env": "CartPole-v1"},
    "CartPole, 256 x 256, 2048 rows": {"env": "CartPole-v1", "hidden": (256, 256), "minibatch_size": 2048},
}
LEARNERS = {"one learner": (1, 1), "one learner, 2 threads": (1, 2), "2 learners": (2, 1)}  # learners, threads of each
FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")


def sums(reduce: Callable[[torch.Tensor], None], rank: int, size: int) -> float:
    """Microseconds of a sum, the median."""
    gradient, taken = torch.ones(size), []
    for _ in range(SUMS):
        began = perf_counter()
        reduce(gradient)
        taken.append(perf_counter() - began)
        gradient.fill_(rank)
    return statistics.median(taken) * 1e6


def by_shared_memory(rank: int, size: int, memory: Any) -> float:
    from headrace.parallel.learners import SharedSum

    return sums(SharedSum(rank, 2, 4 * size, memory), rank, size)


def by_gloo(rank: int, size: int, store: str) -> float:
    from torch.distributed import FileStore, ProcessGroupGloo

    from headrace.training.distributed import DistributedSum

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    group = ProcessGroupGloo(FileStore(store, 2), rank, 2, timedelta(seconds=60))
    return sums(DistributedSum(rank, 2, group), rank, size)


def both(measure: Callable[[int, int, Any], float], size: int, shared: Any) -> float:
    """A measurement in two processes; that of rank 0."""
    here, there = FORK.Pipe()

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        found = measure(rank, size, shared)
        if rank == 0:
            there.send(found)

    processes = [FORK.Process(target=run, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    found: float = here.recv()
    for process in processes:
        process.join()
    return found


def reductions() -> list[common.Row]:
    from headrace.data.shared_memory import Memory
    from headrace.parallel.learners import SharedSum

    rows: list[common.Row] = []
    for size in SIZES:
        memory: Memory = SharedSum(0, 2, 4 * size).memory
        with tempfile.TemporaryDirectory() as folder:
            gloo = both(by_gloo, size, f"{folder}/store")
        rows.append({"floats": size, "shared_memory_us": both(by_shared_memory, size, memory), "gloo_us": gloo})
    return rows


def rate(work: dict[str, Any], learners: int, threads: int, seconds: float, sent: Connection) -> None:
    """Send the steps per second of a training, and the seconds until it could begin."""
    os.environ["HEADRACE_THREADS"] = str(threads)
    began = perf_counter()
    from headrace.training.trainer import Trainer

    trainer = Trainer("ppo", **work, learners=learners, threads=threads, total_steps=None, max_seconds=1e9)
    try:
        begun = perf_counter() - began
        steps = common.throughput(trainer.iterate, trainer.config.num_envs * trainer.algorithm.num_steps, seconds)
        sent.send({**steps, "start_s": begun})
    finally:
        trainer.close()


def trainings(seconds: float, works: dict[str, dict[str, Any]] = WORK) -> list[common.Row]:
    """Steps per second of each of these trainings, by each number of learners."""
    rows: list[common.Row] = []
    for name, work in works.items():
        for how, (learners, threads) in LEARNERS.items():
            here, there = SPAWN.Pipe()
            process = SPAWN.Process(target=rate, args=(work, learners, threads, seconds, there))
            process.start()
            rows.append({"work": name, "learners": how, **here.recv()})
            process.join()
    return rows


def main() -> None:
    options = common.parser(__doc__ or "").parse_args()
    neighbours = common.Neighbours()
    added = reductions()
    print(common.table(added, ("floats", "shared_memory_us", "gloo_us")))
    trained = trainings(0.2 if options.quick else 2.0)
    print(common.table(trained, ("work", "learners", "sps", "sps_min", "sps_max", "start_s")))
    common.finish("learners", trained, options, neighbours, sums=added)


if __name__ == "__main__":
    main()
