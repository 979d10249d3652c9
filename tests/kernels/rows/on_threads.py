"""Plans as a GPU computes them, on the CPU: the GPU's text, with a loop over each step's threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from headrace.kernels.rows import slots
from headrace.kernels.rows.gpu.gpu_program import compiled
from headrace.kernels.rows.row_plan import Plan


def run(
    plan: Plan, columns: Sequence[np.ndarray], uniforms: Sequence[np.ndarray], lanes: int = 64
) -> dict[str, np.ndarray]:
    """A program's outputs, of columns [rows, ...] and uniform inputs, all float32, int64 or bool."""
    rows, outputs = len(columns[0]), plan.program.outputs
    program = compiled(plan, [str(column.dtype) for column in columns], rows, torch.device("cpu"), lanes)
    memory = program.memory(rows, 1)
    given = [np.ascontiguousarray(x).reshape(rows, -1) for x in columns]
    kept = [np.ascontiguousarray(x, np.float32) for x in uniforms]
    for position, column in enumerate(given):
        first = slots.column(position)
        memory.words[first : first + 3] = column.ctypes.data, column.shape[1], 1
    for position, uniform in enumerate(kept):
        memory.words[slots.given(position, len(given))] = uniform.ctypes.data
    found: dict[str, np.ndarray] = {}
    for position, output in enumerate(outputs):
        shape = (rows, *output.view.shape) if output.view.value.rows else output.view.shape
        own = np.zeros(shape, np.int32 if output.view.value.dtype == "i32" else np.float32)
        found[output.name] = own
        first = slots.result(position, len(given), len(kept))
        memory.words[first : first + 3] = own.ctypes.data, output.view.size, 1
    memory.run()
    return found
