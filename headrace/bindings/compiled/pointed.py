"""Addresses that calls of a program are given, where most inputs and all outputs lie where they lay before."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headrace.bindings.compiled.loss_program import Program
from headrace.kernels.rows.targets.cpu_program import Memory


class Pointed:
    """A program's argument slots: an input's is written again only where it lies elsewhere than at the call before. It
    does not keep the program, and with it a policy.

    found: tensors for the outputs. wrote_all: True if take() wrote all slots. holds: True if it need not be called
    again for the same tensors, of which none was copied.
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
