"""Minibatches of the replay buffer that a compiled loop draws, and the gradient steps on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.objectives import Objective, Rows
from headrace.algorithms.off_policy import OffPolicy, delayed_steps, means_of_sums
from headrace.bindings.compiled import compiled_objectives
from headrace.bindings.compiled.compiled_objectives import arguments_of
from headrace.bindings.compiled.loss_program import Program
from headrace.bindings.compiled.objective_learner import ObjectiveLearner, Part
from headrace.core import rng
from headrace.data.replay import Batch
from headrace.kernels.nn.layout import BLOCK, WORKERS
from headrace.kernels.off_policy.off_policy_run_arguments import Learning, Minibatches

NO_CHOICE, NO_NUMBER = np.empty(0, np.int32), np.empty(0, np.float32)


class MinibatchMemory:
    """Memory for G minibatches of B rows, which a compiled call draws, and for their draws."""

    def __init__(self, algorithm: OffPolicy[Any], steps: int) -> None:
        config, replay = algorithm.config, algorithm.replay
        assert replay is not None
        ring, self.shape = replay.ring, (steps, config.batch_size)
        draws, room = algorithm.num_draws(), -(-config.batch_size // int(BLOCK)) * int(BLOCK)
        size, choices = (steps, room), ring.action.dim() == 2
        seen, following = (torch.zeros(*size, ring.observation.shape[2]) for _ in range(2))
        action = torch.zeros(size, dtype=torch.int32) if choices else torch.zeros(*size, ring.action.shape[2])
        reward, discount, self.weight = (torch.zeros(size) for _ in range(3))
        random = torch.zeros(*size, draws)
        self.columns: Rows = {
            "observation": seen,
            "action": action,
            "reward": reward,
            "discount": discount,
            "next_observation": following,
            "weight": self.weight,
        } | ({"random": random} if draws else {})
        self.arguments = Minibatches(
            steps=np.uint64(steps),
            rows=np.uint64(config.batch_size),
            room=np.uint64(room),
            seed=np.uint64(rng.word(algorithm.seed)),
            n_steps=np.uint64(config.n_steps),
            gamma=np.float32(config.gamma),
            draws=np.uint64(draws),
            observation=_words(seen),
            next_observation=_words(following),
            action=NO_NUMBER if choices else _words(action),
            choice=_words(action) if choices else NO_CHOICE,
            reward=_words(reward),
            discount=_words(discount),
            weight=_words(self.weight),
            random=_words(random),
        )
        # the first two minibatches, as losses are given them
        self.first, self.second = (self._rows(g) for g in (0, min(1, steps - 1)))
        self._fill(algorithm)

    def _rows(self, g: int) -> Rows:
        return {name: column[g, : self.shape[1]] for name, column in self.columns.items()}

    def _fill(self, algorithm: OffPolicy[Any]) -> None:
        """Write a minibatch of the replay buffer, for programs to be compared on."""
        replay, (_, rows) = algorithm.replay, self.shape
        assert replay is not None
        random = torch.rand(1, rows, replay.draws, generator=torch.Generator().manual_seed(0))
        batch: Batch = replay.sample(random, algorithm.config.gamma)
        found = batch._asdict() | {"weight": compiled_objectives.mean_weights(batch.weight)}
        if "random" in self.columns:
            found["random"] = torch.rand(1, rows, algorithm.num_draws(), generator=torch.Generator().manual_seed(1))
        for name, column in self.columns.items():
            column[:1, :rows] = found[name]


class LearningCall:
    """G gradient steps along an algorithm's losses, on minibatches that the compiled loop draws.

    batch, learning: as the loop takes them. drawn: rows of all minibatches. threads: how many are worth it."""

    def __init__(
        self,
        algorithm: OffPolicy[Any],
        minibatches: MinibatchMemory,
        programs: list[Program],
        columns: list[Rows],
    ) -> None:
        self._minibatches, self._columns = minibatches, columns
        (steps, rows), room = minibatches.shape, minibatches.weight.shape[1]
        objectives, _ = algorithm.objectives()
        given = zip(programs, objectives, columns, strict=True)
        self._parts = [Part(*part, steps, rows, room) for part in given]
        self._learner = ObjectiveLearner(self._parts, steps, rows)
        names = [(part, name) for part in self._parts for name in part.metrics]
        self._measured = torch.zeros(steps, len(names))
        for column, (part, name) in enumerate(names):
            part.found[part.metrics[name]] = self._measured[:, column]
        self._every = {name: part.every for part, name in names}
        self._sums = np.zeros(len(names) + 1)
        self.threads, self.drawn, self.batch = self._learner.threads(), steps * rows, minibatches.arguments
        self.learning = self._arguments(objectives, algorithm.config)

    def _arguments(self, objectives: Sequence[Objective], config: Any) -> Learning:
        call, interval = self._learner.call, getattr(config, "target_interval", 1)
        words, state = np.tile(call.slots, (WORKERS, 1)), call.arguments[1]
        words[:, 0] = range(WORKERS)
        assert isinstance(state, np.ndarray)
        state[0] = -1  # closed: worker threads of the loop look at it between learning calls
        moving = [part.tau.numpy() for part, own in zip(self._parts, objectives, strict=True) if own.targets]
        errors = [_words(part.errors) for part in self._parts if part.errors is not None]
        return Learning(
            entry=np.uint64(call.function.address),
            slots=np.uint64(len(call.slots)),
            words=words.reshape(-1),
            state=state,
            since=np.uint64(self._learner.since),
            period=np.int64(np.lcm.reduce([part.every for part in self._parts])),
            follow=moving[0] if moving and interval > 1 else NO_NUMBER,
            tau=np.float32(getattr(config, "tau", 1.0)),
            interval=np.int64(interval),
            metrics=_words(self._measured),
            error=errors[0] if errors else NO_NUMBER,
            sums=self._sums,
        )

    def begin(self, algorithm: OffPolicy[Any]) -> None:
        """Write the settings of the next gradient steps."""
        objectives, networks = algorithm.objectives()
        given = self._minibatches.first, self._minibatches.second
        arguments = arguments_of(networks, given, self._columns, algorithm.config)
        parts = zip(self._parts, objectives, arguments, strict=True)
        self._kept = [part.begin(objective, own, self.threads) for part, objective, own in parts]
        self._sums[:] = 0

    def end(self, algorithm: OffPolicy[Any], first: int) -> tuple[dict[str, Tensor], int]:
        """Note the gradient steps since begin(). first: the number of the first one.

        Returns the means of their metrics, and the number of steps.
        """
        taken, (objectives, _) = int(self._sums[-1]), algorithm.objectives()
        for part, objective in zip(self._parts, objectives, strict=True):
            part.end(objective, 0)
        if not taken:
            return {}, 0
        counts = {name: delayed_steps(first, taken, every) for name, every in self._every.items()}
        return means_of_sums(torch.from_numpy(self._sums.astype(np.float32)), counts), taken


def _words(column: Tensor) -> np.ndarray:
    """The memory of a contiguous column."""
    return column.view(-1).numpy()
