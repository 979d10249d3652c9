"""The collector of algorithms that learn from a replay buffer every few steps, while a rollout is collected."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.off_policy import OffPolicy
from headrace.core.fused import fused
from headrace.parallel.collector import InlineCollector


class LearningCollector(InlineCollector):
    """An InlineCollector whose algorithm appends rows and learns after every config.train_freq steps, as it would with
    rollouts of train_freq steps. Logs, checks, observation statistics and schedules are updated once per rollout. A
    rollout is not given up when the training stops.

    arguments: those of InlineCollector.
    """

    def __init__(self, algorithm: OffPolicy[Any], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.algorithm, self.every = algorithm, algorithm.config.train_freq
        rollout, every = self.rollout, self.every
        self.parts = [rollout[t : t + every] for t in range(0, rollout.num_steps, every)]  # learned from in turn

    @torch.no_grad()
    def fill(self, first_step: int | Tensor) -> None:
        """T steps from row 0 on."""
        self.algorithm.follow_policy()
        with self.timer("inference"):
            random = self._random(first_step)
        steps(self, random)

    def warm_up(self) -> None:
        """Compile the loop, if a kernel serves it."""
        steps(self, self._random(self.steps)[:0])

    def _check(self) -> None:
        """Do not stop within a rollout: what was learned from its first steps could not be undone."""


@fused("off_policy.steps", "headrace.bindings.collecting.compiled_replay")
def steps(collector: LearningCollector, random: Tensor) -> None:
    """Take len(random) steps from row 0: policy, environments and learning take turns. random: [T, N, num_draws]."""
    timer, rollout, every = collector.timer, collector.rollout, collector.every
    for t in range(len(random)):
        with timer("inference"):
            collector.act(t, random[t])
        with timer("env"):
            collector.env.step(rollout, t)
        if (t + 1) % every == 0:
            with timer("learning"), torch.enable_grad():
                collector.algorithm.append_and_learn(collector.parts[t // every])
