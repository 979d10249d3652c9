"""Cost of the parts of actors on a Ray cluster, in a process of its own: started by cluster.py."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

FRAGMENTS = {"20_kB": 20_000, "1_MB": 1_000_000, "10_MB": 10_000_000}
FLOATS = {"20_k": 20_000, "1_M": 1_000_000}
ACTORS = 4  # that fetch weights


def private(pids: list[int]) -> float:
    """MB that some processes do not share with others."""
    total = 0.0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1e3
    return round(total, 1)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call, s."""
    call()
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return median(spent)


def local() -> dict[str, float]:
    """Four local actors: start-up and memory."""
    from headrace.training.trainer import Trainer

    began = time.perf_counter()
    trainer = Trainer("ppo", "CartPole-v1", num_envs=ACTORS, actors=ACTORS, progress="none", scale=False)
    taken = time.perf_counter() - began
    pids = [worker.process.pid for worker in trainer.env.transport.workers]
    memory = private(pids) / len(pids)
    trainer.close()
    return {"four_local_actors_s": taken, "local_actor_MB": memory}


def cluster(repeats: int) -> dict[str, float]:
    """Measure a cluster's actors: start-up, memory, a call, fragments to the learner, weights to four actors;
    milliseconds, but seconds for the start."""
    from headrace.parallel.cluster.connection import Connection, Settings, own_processes

    found = {}
    began = time.perf_counter()
    connection = Connection(Settings("local"), ACTORS, 400_000_000)
    found["cluster_s"] = time.perf_counter() - began
    import ray

    from headrace.parallel.cluster.node_actor import ClusterActor

    @ray.remote
    class Reader(ClusterActor):
        def total(self, weights: np.ndarray) -> float:
            """Use weights as an actor does."""
            return float(weights.copy()[0])

    def started() -> list[Any]:
        actors = [Reader.options(num_cpus=1).remote() for _ in range(ACTORS)]
        ray.get([actor.echo.remote(1) for actor in actors])
        return actors

    began = time.perf_counter()
    actors = connection.call(started)
    found["four_actors_s"] = time.perf_counter() - began
    processes = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in own_processes()[1:]}
    own = [pid for pid, command in processes.items() if b"Reader" in command]
    found["actor_MB"] = private(own) / max(1, len(own))
    found["ray_MB"] = private([pid for pid in processes if pid not in own])
    fetch = lambda size: connection.call(lambda: ray.get(actors[0].echo.remote(size)))  # noqa: E731
    found["call_ms"] = 1e3 * seconds(lambda: fetch(1), repeats)
    for name, size in FRAGMENTS.items():
        found[f"fragment_{name}_ms"] = 1e3 * seconds(lambda size=size: fetch(size), repeats)
    for name, count in FLOATS.items():
        weights = np.zeros(count, np.float32)

        def publish(weights: np.ndarray = weights) -> None:
            reference = ray.put(weights)
            ray.get([actor.total.remote(reference) for actor in actors])

        found[f"weights_{name}_ms"] = 1e3 * seconds(lambda publish=publish: connection.call(publish), repeats)
    connection.close()
    return found


def main() -> None:
    """Measure, and print the result as JSON."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--repeats", type=int, default=100)
    options = flags.parse_args()
    print(json.dumps({**local(), **cluster(options.repeats)}))


if __name__ == "__main__":
    main()
