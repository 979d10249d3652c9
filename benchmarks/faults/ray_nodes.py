"""A Ray cluster of several nodes on this machine, in a network namespace, whose nodes come and go."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from typing import Any

from headrace.parallel.cluster import namespace

STORE = 80_000_000  # bytes of a node's object store
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


class Nodes:
    """A cluster on this machine: a head without cores, and nodes."""

    def __init__(self, nodes: int, cores: int, gpus: int = 0) -> None:
        namespace.enter()
        os.environ.update(TOKEN)
        import ray._private.utils

        ray._private.utils.set_sigterm_handler = lambda *_: None  # it may be set in the main thread alone
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []
        for _ in range(nodes):
            self.add(cores, gpus)
        self.cluster.wait_for_nodes()

    @property
    def address(self) -> str:
        """Address of the head."""
        return str(self.cluster.address)

    def add(self, cores: int, gpus: int = 0) -> None:
        """Another node joins. gpus: that Ray counts there, whatever there is."""
        self.nodes.append(self.cluster.add_node(num_cpus=cores, num_gpus=gpus, object_store_memory=STORE))

    def add_later(self, cores: int, seconds: float, count: int = 1) -> None:
        """Other nodes join meanwhile, one after another."""

        def wait() -> None:
            time.sleep(seconds)
            for _ in range(count):
                self.add(cores)
            time.sleep(3600)  # its processes would end with the thread that has started them

        threading.Thread(target=wait, daemon=True).start()

    def kill(self) -> None:
        """A node is gone, without a word."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)

    def close(self) -> None:
        """End all nodes."""
        self.cluster.shutdown()


def bits(trainer: Any) -> str:
    """The SHA-256 of a policy's weights."""
    import torch

    weights = torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def kill_actor(trainer: Any, number: int) -> None:
    """End the process of an actor."""
    executor = trainer.collector.executor
    os.kill(executor.pool.members[number].pid, signal.SIGKILL)


def wait_for(trainer: Any, actors: int, seconds: float = 60.0) -> float:
    """Seconds until there are so many actors."""
    collector, began = trainer.collector, time.monotonic()
    while collector.details()["actors"] < actors:
        assert time.monotonic() - began < seconds, collector.details()
        collector.wait(0.5)
    return time.monotonic() - began
