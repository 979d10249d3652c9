"""Gradient steps along the compiled losses of an off-policy algorithm, all minibatches in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.objectives import TD_ERROR, Objective
from headrace.algorithms.reduce import Reduce, size_of
from headrace.bindings.compiled.loss_learner import optimizer_arguments, write_settings
from headrace.bindings.compiled.loss_program import Program
from headrace.kernels.rows import slots
from headrace.kernels.rows.targets.cpu_arguments import DONE, PAUSED, PAUSES, STAGE, STEPS, Optimizer, Stage
from headrace.kernels.rows.targets.cpu_program import Memory, Workers
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state

ANNOUNCEMENT = "compiling the learning call for compiled losses (once, about 4 s) ..."
NOTHING = np.empty(0, np.float32)
NO_OPTIMIZER = Optimizer(
    parameters=NOTHING,
    gradient=NOTHING,
    mean=NOTHING,
    square=NOTHING,
    ranges=np.empty((0, 2), np.int64),
    squares=NOTHING,
    numbers=np.zeros(9, np.float32),
    settings=np.zeros(7),
)
SINCE = 3  # the argument of the call


class Part:
    """Steps along one loss in each of `steps` minibatches of `rows` rows. The buffers' addresses stay the same.

    columns: memory by name for what the loss gives to later losses. room: number of rows that each minibatch's errors
    have memory for.
    """

    def __init__(
        self,
        program: Program,
        objective: Objective,
        columns: dict[str, Tensor],
        steps: int,
        rows: int,
        room: int | None = None,
    ) -> None:
        self.program, self.every, self._rows = program, objective.every, rows
        self.memory = Memory(program.cpu)
        self.workers = Workers(program.cpu, self.memory.count)
        self.optimizers = [optimizer_arguments(optimizer) for optimizer in objective.optimizers]
        self._numbers = [i for i, result in enumerate(program.results) if result.is_metric]
        named = program.arranged(self._numbers)
        self.found = [program.output(i, rows) for i in range(len(program.results))]
        self.metrics = {name: i for name, i in named.items() if not program.with_rows[i]}
        for i in self.metrics.values():
            self.found[i] = torch.zeros(steps, dtype=self.found[i].dtype)
        self.errors: Tensor | None = None
        self._error = at = named.get(TD_ERROR)
        if at is not None:
            self.errors = torch.zeros(steps, room or rows, *self.found[at].shape[1:])
            self.found[at] = self.errors[0]
        for name, column in columns.items():
            self.found[named[name]] = column
        self.tau = torch.zeros(steps)
        self.moving = np.zeros((len(program.columns) + len(self._numbers), 3), np.int64)
        pairs = [(target.numpy(), own.numpy()) for target, own in objective.targets]
        pairs += [(NOTHING, NOTHING)] * (2 - len(pairs))
        first, second = [*self.optimizers, NO_OPTIMIZER][:2]
        targets, tau = (pairs[0], pairs[1]), self.tau.numpy()
        self._lie: list[int] = []  # the addresses that the slots were written for
        self.writes = np.zeros((2 * len(program.written), 4), np.int64)
        self.stage = Stage(
            np.int64(self.every), self.workers.work, self.moving, self.writes, first, second, targets, tau
        )

    def begin(self, objective: Objective, arguments: Sequence[tuple[Any, ...]], threads: int) -> dict[int, Tensor]:
        """Take over what changes from call to call. arguments: of the first minibatch, and of the second.

        Returns the inputs that the call reads."""
        program, values = self.program, self.program.values(arguments[0])
        following = [program.sources[i].find(arguments[1]) for i in program.columns]
        gradients: list[Any] = [values[i].grad for _, i in program.learned]  # which the optimizers made
        given = [*(values[i] for i in program.looked_up), *following, *gradients]
        lie = [threads, *(x.data_ptr() for x in given)]
        kept = dict(enumerate(values))
        if lie != self._lie:
            kept = self._point(values, following, gradients, threads)
            own = all(x.data_ptr() == values[i].data_ptr() for i, x in kept.items())
            self._lie = lie if own else []  # copied numbers may have changed at the next call
        self.tau.copy_(torch.as_tensor(objective.tau if objective.targets else 0.0))
        for written, optimizer in zip(self.optimizers, objective.optimizers, strict=True):
            write_settings(written, optimizer, objective.max_norm)
            optimizer.gradient.zero_()  # of parameters that the loss does not depend on
        return kept

    def _point(
        self, values: Sequence[Tensor], following: Sequence[Tensor], gradients: Sequence[Tensor], threads: int
    ) -> dict[int, Tensor]:
        """Write where inputs, columns of the second minibatch, gradients and outputs lie."""
        program, words = self.program, self.memory.words
        self.memory.prepare(self._rows, threads)
        for (number, _), gradient in zip(program.learned, gradients, strict=True):
            self.found[number] = gradient
        for number, output in enumerate(self.found):
            program.point_output(words, number, output)
        kept = program.point(words, values)
        assert all(kept[i].data_ptr() == values[i].data_ptr() for i in program.columns), "not copied"
        for row, i in enumerate(program.columns):
            slot = slots.column(row)
            self.moving[row] = slot, words[slot], following[row].data_ptr() - values[i].data_ptr()
        for row, i in enumerate(self._numbers, len(program.columns)):
            slot, own = slots.result(i, *program.code.sizes), self.found[i]
            if i in self.metrics.values():
                apart = own.stride(0) * own.element_size()
            else:
                apart = self.errors.stride(0) * 4 if i == self._error and self.errors is not None else 0
            self.moving[row] = slot, words[slot], apart
        writes = program.writes(values, kept, self.found)
        self.writes[: len(writes)] = writes
        self.workers.take(words, threads)
        return kept

    def end(self, objective: Objective, since: int) -> dict[str, Tensor]:
        """Note the steps. Returns the metrics of the minibatches that measured them."""
        for written, optimizer in zip(self.optimizers, objective.optimizers, strict=True):
            optimizer.steps.fill_(written.settings[STEPS])
            optimizer.gradient.zero_()
        results, first = self.program.results, self.every - 1 - since % self.every
        return {name: self.found[i][first :: self.every].to(results[i].dtype) for name, i in self.metrics.items()}


class ObjectiveLearner:
    """Takes gradient steps along the losses of programs, one after the other for each minibatch."""

    def __init__(self, parts: Sequence[Part], steps: int, rows: int) -> None:
        self.parts, self._rows = parts, rows
        self._now = np.zeros(8, np.int64)
        stages = tuple(part.stage for part in parts)
        arguments = (0, queue_state(), np.int64(steps), np.int64(0), self._now, stages)
        self.call = Call(entry("rows.targets.cpu_objectives", "learn", arguments, ANNOUNCEMENT), arguments)
        self.since, self._queue = self.call.slot(SINCE), WorkQueue()

    def threads(self) -> int:
        """Number of threads that are worth their start."""
        return max(part.program.threads(self._rows) for part in self.parts)

    def learn(
        self,
        objectives: Sequence[Objective],
        arguments: Sequence[Sequence[tuple[Any, ...]]],
        since: int,
        reduce: Reduce,
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """See headrace.algorithms.objectives.take_steps. arguments: of each loss, at the first minibatch and at the
        second."""
        threads = self.threads()
        pairs = list(zip(self.parts, objectives, strict=True))
        begun = zip(self.parts, objectives, arguments, strict=True)
        kept = [part.begin(objective, given, threads) for part, objective, given in begun]  # as long as it is read
        self._now[:] = 0
        self._now[PAUSES] = size_of(reduce) > 1
        self.call.slots[self.since] = since
        self._queue.run(self.call, threads)
        while self._now[PAUSED]:
            _, objective = pairs[int(self._now[STAGE])]
            reduce(*(optimizer.gradient for optimizer in objective.optimizers))
            self._queue.run(self.call, threads)
        assert self._now[DONE] == len(self.parts[0].tau)
        del kept
        found = dict[str, Tensor]()
        for part, objective in pairs:
            found |= {name: x for name, x in part.end(objective, since).items() if len(x)}
        reduce(*found.values())
        errors = next((part.errors for part in self.parts if part.errors is not None), None)
        return {name: x.mean() for name, x in found.items()}, errors
