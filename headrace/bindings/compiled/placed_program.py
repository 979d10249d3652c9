"""Addresses at which programs read their inputs and write their outputs: those of the call before, or in a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not
from typing import Any

import numpy as np
from torch import Tensor

from headrace.bindings.compiled.loss_program import Program
from headrace.kernels.rows import slots
from headrace.kernels.rows.targets.cpu_program import Memory, Workers


class PlacedProgram:
    """A program with the arguments and outputs of all its calls: each call is some of their rows.

    given: the arguments. outputs: tensors for the outputs. moving: see rows.targets.cpu_arguments.Collecting. fits:
    whether columns are read where they lie, and outputs are of the columns' dtypes and shapes.
    """

    def __init__(self, program: Program, given: tuple[Any, ...], outputs: Sequence[Tensor]) -> None:
        self.program, self.given, self.outputs = program, given, outputs
        self.memory = Memory(program.cpu)
        self.workers = Workers(program.cpu, self.memory.count)
        self._point(program.values(given))
        self.moving = np.array(self._moving(), np.int64)
        self.fits = self._fits()

    def take(self, rows: int, threads: int) -> None:
        """Take over what changes from call to call. rows: of a call."""
        values = self.program.values(self.given)  # settings and copied numbers may have changed
        if self._copies or any(map(is_not, values, self._values)):
            self._point(values)
        self.memory.prepare(rows, threads)
        self.workers.take(self.memory.words, threads)

    def _point(self, values: list[Tensor]) -> None:
        """Let the call read these inputs."""
        self._values, self._kept = values, self.program.point(self.memory.words, values)
        self._copies = any(x.data_ptr() != values[i].data_ptr() for i, x in self._kept.items())

    def _moving(self) -> list[tuple[int, int, int]]:
        program, words, found = self.program, self.memory.words, list[tuple[int, int, int]]()
        for position, i in enumerate(program.columns):
            first = slots.column(position)
            found.append((first, int(words[first]), int(words[first + 1]) * self._kept[i].element_size()))
        for position, output in enumerate(self.outputs):
            program.point_output(words, position, output)
            first = slots.result(position, *program.code.sizes)
            found.append((first, output.data_ptr(), output.stride(0) * output.element_size()))
        return found

    def _fits(self) -> bool:
        values, program = self._values, self.program
        read = all(self._kept[i].data_ptr() == values[i].data_ptr() for i in program.columns)
        made = [program.output(i, len(own)) for i, own in enumerate(self.outputs)]
        alike = all(own.shape == x.shape and own.dtype == x.dtype for own, x in zip(self.outputs, made, strict=True))
        return read and alike and all(own.dim() == 2 or own[0].is_contiguous() for own in self.outputs)


class Pointed:
    """Argument slots of a program. An input's slots are written only when its address has changed since the last call.
    The program is not kept here, since it would keep a policy.

    found: tensors for the outputs. wrote_all: whether take() wrote all slots. holds: whether take() need not be called
    again for the same tensors, because none of them was copied.
    """

    def __init__(self, program: Program, found: list[Tensor]) -> None:
        self.found, self.memory, self.wrote_all = found, Memory(program.cpu), False
        self.holds = False
        # what the slots were written for: rows, threads and the outputs' addresses; those of inputs
        self._steady, self._lie = list[int](), list[int]()

    def take(self, program: Program, values: Sequence[Tensor], rows: int, threads: int) -> dict[int, Tensor]:
        """Write what has changed, for a call of so many rows. Returns the inputs, which the call reads: keep them."""
        words = self.memory.words
        lie = [values[i].data_ptr() for i in program.looked_up]
        steady = [rows, threads, *map(Tensor.data_ptr, self.found)]
        self.wrote_all = steady != self._steady or (lie != self._lie and bool(program.written))
        if self.wrote_all:
            self.memory.prepare(rows, threads)
            for number, output in enumerate(self.found):
                program.point_output(words, number, output)
            written = program.point(words, values)
        else:
            before = zip(program.looked_up, lie, self._lie, strict=True)
            written = program.point(words, values, [i for i, now, then in before if now != then])
        self.holds = all(x.data_ptr() == values[i].data_ptr() for i, x in written.items())
        self._steady, self._lie = steady if self.holds else [], lie  # of copies, the numbers may be others next time
        return dict(enumerate(values)) | written
