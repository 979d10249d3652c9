"""Steps of an optimizer along the gradients of a compiled loss, on minibatches of columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import is_

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Limit
from headrace.algorithms.reduce import Reduce, size_of
from headrace.bindings.bound import place
from headrace.bindings.compiled.loss_program import Program
from headrace.bindings.compiled.placed_program import Pointed
from headrace.core.looking import Moment, moment
from headrace.kernels.rows import slots
from headrace.kernels.rows.targets.cpu_arguments import DONE, PAUSED, PAUSES, STEPS, Learning, Optimizer
from headrace.kernels.rows.targets.cpu_program import Workers
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state

RANGE = 16_384  # parameters of a part of Adam's step
ANNOUNCEMENT = "compiling the learning call for compiled losses (once, about 3 s) ..."


class LossLearner:
    """Takes an optimizer's steps along a program's gradients, as long as its buffers' addresses are the same.

    order: int64 [epochs, rows], of as many rows as each call has. number: minibatches of an epoch. share: the name of
    the program's input that is another number in each minibatch. limit: see on_policy.learn_minibatches().
    """

    def __init__(
        self, program: Program, optimizer: Adam, order: Tensor, number: int, share: str, limit: Limit | None
    ) -> None:
        self._program = program
        (epochs, rows), count = order.shape, len(order) * number
        self._size = rows // number
        self._now = np.zeros(8, np.int64)
        self._metrics = [i for i, result in enumerate(program.results) if result.is_metric]
        self._found = [program.output(i, self._size) for i in range(len(program.results))]
        self._table = torch.zeros(len(self._metrics), count)
        dtypes = [(self._found[i].dtype, program.results[i].dtype) for i in self._metrics]
        self._kinds = self._metrics, [pair == (torch.float32, torch.float32) for pair in dtypes]
        for row, i in zip(self._table, self._metrics, strict=True):
            self._found[i] = row.view(self._found[i].dtype)
        by_name = program.arranged(self._metrics)
        self._names, self._is_table = [*by_name], [*by_name.values()] == self._metrics and all(self._kinds[1])
        limited = None if limit is None else self._found[by_name[limit[0]]]
        self._measured = np.zeros(count, np.float32) if limited is None else limited.numpy()
        self._share = next(i for i, source in enumerate(program.sources) if source.name == share)
        self._pointed = Pointed(program, self._found)
        self._workers = Workers(program.cpu, self._pointed.memory.count)
        self._arguments = optimizer_arguments(optimizer)
        self._writes = np.zeros((2 * len(program.written), 4), np.int64)
        learning = Learning(
            self._workers.work,
            self._now,
            np.array([epochs, number, self._size, rows]),
            np.array(self._moving()),
            self._writes,
            self._arguments,
            np.array([math.inf if limit is None else limit[1]]),
            self._measured,
        )
        arguments = (0, queue_state(), learning)
        self._call = Call(entry("rows.targets.cpu_learning", "learn", arguments, ANNOUNCEMENT), arguments)
        self._queue = WorkQueue()
        self._last: tuple[Moment | None, int, Sequence[Tensor]] = (None, 0, [])  # when, threads, what lay there

    def _moving(self) -> list[tuple[int, int]]:
        """Argument slots whose address differs between minibatches, and by how much it grows."""
        program = self._program
        columns, uniforms = program.code.sizes
        outputs = [(slots.result(i, columns, uniforms), self._found[i].element_size()) for i in self._metrics]
        return [*outputs, (slots.given(program.uniforms.index(self._share), columns), 4)]

    def learn(
        self,
        optimizer: Adam,
        values: Sequence[Tensor],
        shares: Tensor,
        order: Tensor,
        max_norm: float,
        reduce: Reduce,
    ) -> int:
        """Take a step on each minibatch. Returns the number of steps, to which metrics() and means() refer.

        optimizer: the one that this learner was made for. It is not kept here, so that it is freed with its algorithm.
        values: the program's inputs, all rows of the columns. shares: float32, that of each minibatch.
        """
        threads = self._program.threads(self._size)
        kept = self._begin([shares if i == self._share else x for i, x in enumerate(values)], order, threads)
        self._now[:] = 0
        self._now[PAUSES] = size_of(reduce) > 1
        write_settings(self._arguments, optimizer, max_norm)
        self._arguments.gradient.fill(0)  # of parameters that the loss does not depend on
        own = list[float]()
        self._queue.run(self._call, threads)
        while self._now[PAUSED]:
            done = int(self._now[DONE]) - 1
            own.append(float(self._measured[done]))
            reduce(optimizer.gradient, torch.from_numpy(self._measured[done : done + 1]))
            self._queue.run(self._call, threads)
        self._measured[: len(own)] = own
        del kept
        optimizer.steps.fill_(self._arguments.settings[STEPS])
        self._arguments.gradient.fill(0)
        return int(self._now[DONE])

    def metrics(self, done: int) -> dict[str, Tensor]:
        """The metrics of each of the minibatches that were learned, [minibatches] each."""
        rows = self._table[:, :done].clone()  # at once: of tensors this short each call takes longer than its work
        if self._is_table:
            return dict(zip(self._names, rows.unbind(), strict=True))
        known = zip(rows.unbind(), *self._kinds, strict=True)
        return dict(self._program.arranged(row if same else self._converted(row, i) for row, i, same in known))

    def means(self, done: int, last: Mapping[str, int]) -> dict[str, Tensor]:
        """Mean of each metric over all minibatches that were learned. last: for some metrics, the number of last
        minibatches to take the mean over."""
        if not all(self._kinds[1]):
            return {name: x[-last.get(name, done) :].mean() for name, x in self.metrics(done).items()}
        table = self._table.numpy()[:, :done]
        rows = dict(zip(self._names, table, strict=True))
        part = [rows[name][-count:].mean() for name, count in last.items() if name in rows]
        means = torch.from_numpy(np.array([*table.mean(1), *part], np.float32)).unbind()
        return dict(zip((*rows, *(name for name in last if name in rows)), means, strict=True))

    def _converted(self, row: Tensor, i: int) -> Tensor:
        """A metric's numbers in the dtype that the plain function gives."""
        return row.view(self._found[i].dtype).to(self._program.results[i].dtype)

    def _begin(self, values: Sequence[Tensor], order: Tensor, threads: int) -> dict[int, Tensor]:
        """Write addresses that have changed since the last call. Returns the inputs, which the call reads."""
        words, kept = self._pointed.memory.words, dict(enumerate(values))
        if not self._lies_still([*values, order], threads):
            for number, i in self._program.learned:
                gradient = values[i].grad
                assert gradient is not None, "which the optimizer made"
                self._found[number] = gradient
            kept = self._pointed.take(self._program, values, self._size, threads)
            if self._pointed.wrote_all:
                writes = self._program.writes(values, kept, self._found)
                self._writes[: len(writes)] = writes
            words[slots.ORDER] = order.data_ptr()
            self._last = moment() if self._pointed.holds else None, threads, [*values, order]
        self._workers.take(words, threads)  # the call before has moved what grows
        return kept

    def _lies_still(self, given: Sequence[Tensor], threads: int) -> bool:
        """Tell whether these are the tensors of the last call, in the same moment, so that no address has changed."""
        then, those, before = self._last
        if then is None or then is not moment() or those != threads:
            return False
        return len(given) == len(before) and all(map(is_, given, before))


def optimizer_arguments(optimizer: Adam) -> Optimizer:
    """Arguments of compiled calls for an optimizer, as long as its buffers' addresses are the same."""
    buffers = optimizer.flat, optimizer.gradient, optimizer.mean, optimizer.square
    flat, gradient, mean, square = (buffer.numpy() for buffer in buffers)
    parts = _parts(optimizer)
    squares, numbers, settings = np.zeros(len(parts), np.float32), np.zeros(9, np.float32), np.zeros(7)
    return Optimizer(flat, gradient, mean, square, parts, squares, numbers, settings)


def write_settings(arguments: Optimizer, optimizer: Adam, max_norm: float) -> None:
    """Take over what changes from call to call."""
    betas = optimizer.beta1, optimizer.beta2
    numbers = float(optimizer.steps), float(optimizer.learning_rate), optimizer.eps, *betas, max_norm
    arguments.settings[:] = *numbers, optimizer.weight_decay


def _parts(optimizer: Adam) -> np.ndarray:
    """The parts of an optimizer's buffers that are learned, int64 [n, 2]: where they begin, and how long they are."""
    found = list[list[int]]()
    for parameter in optimizer.parameters:
        if parameter.requires_grad:
            first = place(parameter, optimizer.flat)
            if found and sum(found[-1]) == first:
                found[-1][1] += parameter.numel()
            else:
                found.append([first, parameter.numel()])
    cut = [(at, min(RANGE, first + count - at)) for first, count in found for at in range(first, first + count, RANGE)]
    return np.array(cut, np.int64).reshape(-1, 2)
