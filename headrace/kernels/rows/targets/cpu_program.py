"""A plan as machine code, with the memory that it needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.kernels.rows.plan import LANES, Plan
from headrace.kernels.rows.targets import slots
from headrace.kernels.rows.targets.cpu import assembly
from headrace.kernels.rows.targets.machine_code import is_wide, object_code
from headrace.kernels.runtime.native import Native

PARTS, PART = 8, 128  # parts of a minibatch: so many at most, of so many rows at least


def parts_of(rows: int) -> int:
    """Into how many parts so many rows are divided."""
    return max(1, min(PARTS, -(-rows // PART)))


def aligned(count: int) -> np.ndarray:
    """Zeros, float32, that begin at a cache line."""
    memory = np.zeros(count + 16, np.float32)
    return memory[(-memory.ctypes.data // 4) % 16 :][:count]


class CpuProgram:
    """Machine code of a plan. dtypes: of the columns' memory, as numpy names them."""

    def __init__(self, plan: Plan, dtypes: Sequence[str]) -> None:
        self.plan = plan
        self.native = Native(object_code(assembly(plan, list(dtypes), is_wide())))

    def run(
        self, columns: Sequence[np.ndarray], uniforms: Sequence[np.ndarray], order: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """All outputs, computed by this thread. columns: [rows, ...]; order: int64, of those rows that count."""
        words, found = self.words(columns, uniforms, order)
        assert self.native.run(words) == 0
        return found

    def words(
        self, columns: Sequence[np.ndarray], uniforms: Sequence[np.ndarray], order: np.ndarray | None = None
    ) -> tuple[int, dict[str, np.ndarray]]:
        """The address of the argument slots of a call, and its outputs."""
        program, plan = self.plan.program, self.plan
        rows = len(columns[0]) if order is None else len(order)
        sizes = len(program.columns), len(program.uniforms)
        words = np.zeros(slots.count(*sizes, len(program.outputs)), np.int64)
        words[[slots.TASK, slots.PART, slots.PARTS, slots.ROWS]] = slots.ALL, 0, 1, rows
        words[slots.ORDER] = 0 if order is None else order.ctypes.data
        memory = [
            aligned(plan.tiles * LANES),
            aligned(-(-rows // LANES) * plan.kept * LANES),
            aligned(plan.uniform),
            aligned(plan.accumulators),
        ]
        words[slots.SCRATCH : slots.INPUTS] = [x.ctypes.data for x in memory]
        given = [np.ascontiguousarray(column.reshape(len(column), -1)) for column in columns]
        for i, column in enumerate(given):
            first = slots.column(i)
            words[first : first + 3] = column.ctypes.data, column.shape[1], 1
        for i, uniform in enumerate(uniforms):
            words[slots.given(i, sizes[0])] = uniform.ctypes.data
        found: dict[str, np.ndarray] = {}
        for i, output in enumerate(program.outputs):
            rows_ = (rows,) if output.view.value.rows else ()
            kind = np.int32 if output.view.value.dtype == "i32" else np.float32
            size = output.view.value.size if not rows_ else output.view.size
            own = np.zeros((*rows_, size), kind)
            first = slots.result(i, *sizes)
            words[first : first + 3] = own.ctypes.data, size, 1
            if not rows_ and own.size == output.view.size:
                own = own.reshape(output.view.shape)
            found[output.name] = own
        self.kept = (words, memory, given, uniforms, order)
        return words.ctypes.data, found
