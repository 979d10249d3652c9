"""The row programs that the combinations of generality.py ask for, each with the numbers that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from benchmarks.speed.generality import prepare
from benchmarks.speed.generality_cases import CASES
from headrace.bindings.compiled import loss_check, loss_program
from headrace.bindings.compiled.compiled_learning import SHARE
from headrace.bindings.compiled.compiled_losses import CompiledLoss
from headrace.bindings.compiled.loss_program import Program
from headrace.kernels.rows.gpu import gpu_program
from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import Program as RowProgram
from headrace.kernels.rows.row_schedule import plan

NAMES = {case.name: case for case in CASES}
MOST_ROWS = 75  # on which both are computed: no multiple of the rows of any block


class Asked(NamedTuple):
    """A program for the CPU, the row program that it was made of, and its inputs. dtypes: of the columns."""

    name: str
    program: Program
    own: RowProgram
    dtypes: list[str]
    values: list[Tensor]

    @property
    def plan(self) -> Plan:
        """Plan of the program for a GPU."""
        return plan(self.own, vectors=False)

    def numbers(self) -> Iterator[list[Tensor]]:
        """Inputs of few rows: those of the call, and others that reach the other sides of comparisons."""
        few = [
            x[:MOST_ROWS] if source.kind == "column" else torch.tensor(1 / MOST_ROWS) if source.name == SHARE else x
            for source, x in zip(self.program.sources, self.values, strict=True)
        ]
        yield few
        yield loss_check._others(self.program, few, torch.Generator().manual_seed(0))

    def on_threads(self, values: Sequence[Tensor], lanes: int) -> list[Tensor]:
        """All outputs as a GPU computes them, with so many rows in a block: a loop stands for each step's threads."""
        program, cpu = self.program, torch.device("cpu")
        before = program.code
        program.code = gpu_program.compiled(self.plan, self.dtypes, len(values[program.columns[0]]), cpu, lanes)
        try:
            return program.compute(values)
        finally:
            program.code = before


@cache
def asked(name: str) -> list[Asked]:
    """The programs that one update of a combination, and acting once, ask for."""
    torch.manual_seed(0)
    with _noting() as found:
        ours, _ = prepare(NAMES[name])
        ours.learn()
        ours.act()
    return found


@contextmanager
def _noting() -> Iterator[list[Asked]]:
    """Note the programs that are made within this block, whatever is on disk."""
    found, programs = list[Asked](), list[Any]()
    made, program_of = loss_program.made, CompiledLoss._program

    def making(own: RowProgram, dtypes: list[str], *rest: Any) -> Any:
        programs.append((own, dtypes))
        return made(own, dtypes, *rest)

    def noted(self: CompiledLoss, *given: Any, **named: Any) -> Program:
        program = program_of(self, *given, **named)
        values = [x.detach().clone() for x in program.values(given[0])]
        found.append(Asked(self.name, program, *programs[-1], values))
        return program

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_program, "recorded", lambda key, places, read, make, again: make())
        patch.setattr(loss_program, "made", making)
        patch.setattr(CompiledLoss, "_program", noted)
        yield found
