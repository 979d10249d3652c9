"""Plans as a GPU computes them, on the CPU: the GPU's text, with a loop over each step's threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.kernels.nn.layout import aligned
from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.targets import slots
from headrace.kernels.rows.targets.cpu_code import object_code
from headrace.kernels.rows.targets.gpu import emitted
from headrace.kernels.rows.targets.gpu_text import PAD
from headrace.kernels.runtime.native import Native


def run(
    plan: Plan, columns: Sequence[np.ndarray], uniforms: Sequence[np.ndarray], lanes: int = 64, parts: int = 3
) -> dict[str, np.ndarray]:
    """A program's outputs, of columns [rows, ...] and uniform inputs, all float32, int64 or bool."""
    made = emitted(plan, [str(column.dtype) for column in columns], lanes, gpu=False)
    rows, outputs = len(columns[0]), plan.program.outputs
    given = [np.ascontiguousarray(x).reshape(rows, -1) for x in columns]
    kept = [np.ascontiguousarray(x, np.float32) for x in uniforms]
    fixed = slots.count(len(given), len(kept), len(outputs))
    words = np.zeros(fixed + len(made.numbers), np.int64)
    words[slots.PARTS], words[slots.ROWS] = parts, rows
    blocks = -(-rows // lanes)
    memory = {
        slots.SCRATCH: aligned(made.shared // 4),
        slots.KEPT: aligned(blocks * plan.kept * (lanes + PAD)),
        slots.UNIFORM: aligned(made.uniform),
        slots.SUMS: aligned(made.apart + parts * made.accumulators),
        slots.FACTORS: aligned(blocks * lanes * made.factors),
        slots.TILES: aligned(parts * made.scratch),
    }
    for slot, own in memory.items():
        own[:] = np.nan
        words[slot] = own.ctypes.data
    for i, number in enumerate(made.numbers):
        words[fixed + i : fixed + i + 1].view(np.float32)[0] = number.at(rows)
    for position, column in enumerate(given):
        first = slots.column(position)
        words[first : first + 3] = column.ctypes.data, column.shape[1], 1
    for position, uniform in enumerate(kept):
        words[slots.given(position, len(given))] = uniform.ctypes.data
    found: dict[str, np.ndarray] = {}
    for position, output in enumerate(outputs):
        shape = (rows, *output.view.shape) if output.view.value.rows else output.view.shape
        own = np.zeros(shape, np.int32 if output.view.value.dtype == "i32" else np.float32)
        found[output.name] = own
        first = slots.result(position, len(given), len(kept))
        words[first : first + 3] = own.ctypes.data, output.view.size, 1
    native = Native(object_code(made.text))
    native.run(words.ctypes.data)
    return found
