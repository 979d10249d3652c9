"""Steps of optimizers along the gradients of compiled losses on a GPU: kernels that a CUDA graph can hold, since the
host waits for none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.objectives import TD_ERROR, Objective
from headrace.algorithms.on_policy import Limit
from headrace.algorithms.reduce import Reduce
from headrace.bindings.compiled.loss_program import Program
from headrace.core.device import known
from headrace.kernels.rows import slots
from headrace.kernels.rows.gpu.gpu_program import adam
from headrace.policies.flat_parameters import polyak


class Call:
    """Calls of a program on `count` minibatches of `rows` rows. Each minibatch has metrics of its own.

    columns: memory for results that have numbers for each row.
    """

    def __init__(self, program: Program, rows: int, count: int, columns: Mapping[str, Tensor] | None = None) -> None:
        self.program = program
        self._memory = program.code.memory(rows, 1)
        self.words = self._memory.words
        self._kept = dict[int, Tensor]()
        self._outputs = [program.output(i, rows) for i in range(len(program.results))]
        numbers = [i for i, result in enumerate(program.results) if result.is_metric]
        self.names: dict[str, int] = program.arranged(numbers)
        for name, own in (columns or {}).items():
            self._outputs[self.names[name]] = own
        self.metrics = {
            name: torch.empty(count, *self._outputs[i].shape, dtype=self._outputs[i].dtype, device=program.device)
            for name, i in self.names.items()
            if name not in (columns or {})
        }

    def point(self, values: Sequence[Tensor]) -> None:
        """Take these inputs."""
        program = self.program
        self._values, self._kept = values, program.point(self.words, values)
        for number, i in program.learned:
            gradient = values[i].grad
            assert gradient is not None, "which the optimizer made"
            self._outputs[number] = gradient
        for number, own in enumerate(self._outputs):
            program.point_output(self.words, number, own)

    def move(self, arguments: tuple[Any, ...]) -> None:
        """Take the columns of other arguments."""
        program, values = self.program, [*self._values]
        for i in program.columns:
            values[i] = program.sources[i].find(arguments)
        self._values, self._kept = values, self._kept | program.point(self.words, values, program.columns)

    def run(self, number: int) -> None:
        """Compute all results of a minibatch; its metrics are the given ones."""
        for name, found in self.metrics.items():
            self.words[slots.result(self.names[name], *self.program.code.sizes)] = found[number].data_ptr()
        self._memory.run(1)
        for output, i in self.program.written:
            self._values[i].copy_(self._outputs[output])
            self._kept[i].copy_(self._outputs[output])  # where it is of another dtype than the buffer

    def found(self, name: str, which: slice) -> Tensor:
        """A metric of these minibatches, in the plain function's dtype."""
        return self.metrics[name][which].to(self.program.results[self.names[name]].dtype)


def step(optimizer: Adam, max_norm: float, skip: Tensor | None = None) -> None:
    """optimizer.step(), in two launches."""
    if not all(parameter.requires_grad for parameter in optimizer.parameters):
        optimizer.step(max_norm, skip)
        return
    device = optimizer.flat.device
    if skip is None:
        skip = torch.zeros((), device=device)
    buffers = optimizer.flat, optimizer.gradient, optimizer.mean, optimizer.square
    numbers = optimizer.steps, optimizer.learning_rate, skip
    settings = optimizer.eps, optimizer.beta1, optimizer.beta2, optimizer.weight_decay
    adam(device).run((*buffers, *numbers), max_norm, *settings)


def learn(
    program: Program,
    optimizer: Adam,
    values: Sequence[Tensor],
    shares: Tensor,
    share: str,
    order: Tensor,
    number: int,
    max_norm: float,
    reduce: Reduce,
    limit: Limit | None,
) -> dict[str, Tensor]:
    """A step on each minibatch: see headrace.algorithms.on_policy.learn_minibatches.

    values: the program's inputs, with all rows of the columns. shares: [minibatches], of its input `share`. order:
    int64 [epochs, rows].
    """
    (epochs, rows), size = order.shape, order.shape[1] // number
    call = Call(program, size, epochs * number)
    call.point(values)
    shared = next(i for i, source in enumerate(program.sources) if source.name == share)
    slot = slots.given(program.uniforms.index(shared), len(program.columns))
    call.words[slots.ORDER] = order.data_ptr()
    skip = torch.zeros((), device=order.device) if limit else None
    optimizer.gradient.zero_()  # of parameters that the loss does not depend on
    done = 0
    for epoch in range(epochs):
        for batch in range(number):
            call.words[slots.FIRST] = epoch * rows + batch * size
            call.words[slot] = shares[done].data_ptr()
            call.run(done)
            if limit is None or skip is None:
                reduce(optimizer.gradient)
            else:
                measured = call.metrics[limit[0]][done].clone()
                reduce(optimizer.gradient, measured)
                skip = torch.maximum(skip, (measured > limit[1]).to(skip.dtype))
            step(optimizer, max_norm, skip)
            done += 1
        if skip is not None and known(skip):
            break  # all further steps would be skipped
    optimizer.gradient.zero_()
    return {name: call.found(name, slice(done)) for name in call.metrics}


def take_steps(
    programs: Sequence[Program],
    objectives: Sequence[Objective],
    columns: Sequence[Mapping[str, Tensor]],
    arguments: Sequence[Sequence[tuple[Any, ...]]],
    rows: int,
    since: int,
    reduce: Reduce,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """See headrace.algorithms.objectives.take_steps. columns: memory for what each loss gives to those that follow.
    arguments: of each loss, for each minibatch."""
    steps = len(arguments[0])
    calls = [Call(program, rows, steps, own) for program, own in zip(programs, columns, strict=True)]
    for optimizer in (optimizer for objective in objectives for optimizer in objective.optimizers):
        optimizer.gradient.zero_()  # of parameters that the loss does not depend on
    for call, given in zip(calls, arguments, strict=True):
        call.point(call.program.values(given[0]))
    for g in range(steps):
        for number, (call, objective) in enumerate(zip(calls, objectives, strict=True)):
            if (since + g + 1) % objective.every:
                continue
            call.move(arguments[number][g])
            call.run(g)
            own = [found[g] for name, found in call.metrics.items() if name != TD_ERROR]
            reduce(*(optimizer.gradient for optimizer in objective.optimizers), *own)
            for optimizer in objective.optimizers:
                step(optimizer, objective.max_norm)
            for target, learned in objective.targets:
                polyak(target, learned, objective.tau[g] if isinstance(objective.tau, Tensor) else objective.tau)
    for optimizer in (optimizer for objective in objectives for optimizer in objective.optimizers):
        optimizer.gradient.zero_()
    metrics = dict[str, Tensor]()
    for call, objective in zip(calls, objectives, strict=True):
        taken = slice((-since - 1) % objective.every, None, objective.every)
        found = {name: call.found(name, taken) for name in call.metrics if name != TD_ERROR}
        metrics |= {name: x.mean() for name, x in found.items() if len(x)}
    return metrics, next((call.metrics[TD_ERROR] for call in calls if TD_ERROR in call.metrics), None)
