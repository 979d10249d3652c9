"""One learner that adds the sums of its minibatches in K parts: the reference for K learners, which have the same bits.

Its columns are cut into K parts. A copy of the algorithm learns from each, as a learner of its own would, and their
sums are added in order (parallel.learners). The copies are threads, which take turns.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextvars import copy_context
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.base import past_warm_up
from headrace.core.cores import partition
from headrace.core.device import without_denormals
from headrace.core.types import StateDict
from headrace.data.rollout import Column, Columns, Rollout, tree_map
from headrace.parallel.actor import constructor
from headrace.parallel.learners import ThreadSum


def room_of(algorithm: Any) -> int:
    """Bytes of the largest sum that an algorithm requests regularly: a gradient and some metrics."""
    return 4 * sum(parameter.numel() for parameter in algorithm.policy.parameters())


class Sharded:
    """An Algorithm that learns from `shards` parts of each rollout, as `shards` learners would.

    algorithm: a new one. Its policy is the one that collects.
    """

    def __init__(self, algorithm: Any, shards: int) -> None:
        make: Callable[[Any], Any] = pickle.loads(constructor(algorithm))
        self.replicas = [algorithm, *(make(deepcopy(algorithm.policy)) for _ in range(shards - 1))]
        self.name, self.config, self.num_steps = algorithm.name, algorithm.config, algorithm.num_steps
        self.max_lag, self.policy, self.seed = getattr(algorithm, "max_lag", 0), algorithm.policy, algorithm.seed
        self._barrier = threading.Barrier(shards)
        self._parts: list[Rollout] = []

    @property
    def iteration(self) -> int:
        """Updates done."""
        return self.replicas[0].iteration  # type: ignore[no-any-return]

    def columns(self) -> dict[str, Column | Columns]:
        """Columns of the algorithm."""
        return self.replicas[0].columns()  # type: ignore[no-any-return]

    def warm_up(self, rollout: Rollout) -> None:
        """Learn once from a random rollout, then restore all state."""
        self._cut(rollout)
        for replica, part in zip(self.replicas, self._parts, strict=True):
            replica.warm_up(part)
        self._parts.clear()

    def prepare(self, rollout: Rollout) -> str:
        """Allocate what depends on the number of environments, and let the copies add their sums from now on."""
        size, room, memory = len(self.replicas), room_of(self.replicas[0]), None
        self._cut(rollout)
        lines = []
        parts = partition(rollout.num_envs, size)
        for rank, (replica, part) in enumerate(zip(self.replicas, parts, strict=True)):
            replica.reduce = summed = ThreadSum(rank, size, room, memory, self._barrier)
            memory = summed.memory
            summed.columns = [each.stop - each.start for each in parts]
            replica.part = (part.start, rollout.num_envs)
            lines.append(replica.prepare(self._parts[rank]))
        return "\n".join(filter(None, lines))

    def past_warm_up(self) -> bool:
        """Tell whether the next update learns."""
        return past_warm_up(self.replicas[0])

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Let each copy learn from its part. Returns the metrics of all parts together."""
        self._cut(rollout)
        metrics: list[dict[str, Tensor]] = [{} for _ in self.replicas]
        errors: list[BaseException] = []
        threads = torch.get_num_threads()

        def learn(rank: int) -> None:
            try:
                torch.set_num_threads(threads)
                with without_denormals():
                    metrics[rank] = self.replicas[rank].update(self._parts[rank], progress)
            except threading.BrokenBarrierError:
                pass  # another thread has failed
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        ranks = range(1, len(self.replicas))
        others = [threading.Thread(target=copy_context().run, args=(learn, rank)) for rank in ranks]
        for thread in others:
            thread.start()
        learn(0)
        for thread in others:
            thread.join()
        if errors:
            raise errors[0]
        return metrics[0]

    def _cut(self, rollout: Rollout) -> None:
        """Copy the parts of a rollout to separate rollouts, in the layout of a learner's rollout."""
        parts = partition(rollout.num_envs, len(self.replicas))
        if not self._parts:
            self._parts = [
                Rollout(rollout.num_steps, part.stop - part.start, rollout.columns, rollout.device) for part in parts
            ]
        for target, part in zip(self._parts, parts, strict=True):
            for name in rollout.columns:
                source = tree_map(lambda column, part=part: column[:, part], getattr(rollout, name))
                tree_map(lambda own, column: own.copy_(column), getattr(target, name), source)

    def state_dict(self) -> StateDict:
        """The state of the algorithm; with a replay buffer, the state of each copy."""
        copies = self.replicas if hasattr(self.replicas[0], "replay") else self.replicas[:1]
        return {"shards": [replica.state_dict() for replica in copies]}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(), bit for bit."""
        saved = state["shards"]
        for rank, replica in enumerate(self.replicas):
            replica.load_state_dict(saved[min(rank, len(saved) - 1)])
