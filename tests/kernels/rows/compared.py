"""Row programs as machine code, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.kernels.rows.row_plan import ALONE
from headrace.kernels.rows.row_program import F32, I32, Input, Program
from headrace.kernels.rows.row_schedule import plan
from tests.kernels.rows import in_numpy, on_threads
from tests.kernels.rows.on_cpu import run

ROWS = (1, 37, 64, 150, 1100)
MOST_ALONE = 64  # rows for which blocks of one are tried
LANES = {37: 4, 150: 64}  # rows of a GPU's block, for so many rows


def columns(*shapes: tuple[int, ...], dtype: str = F32) -> tuple[Input, ...]:
    return tuple(Input(shape, True, dtype, f"column{i}", i) for i, shape in enumerate(shapes))


def uniforms(*shapes: tuple[int, ...]) -> tuple[Input, ...]:
    return tuple(Input(shape, False, F32, f"uniform{i}", i) for i, shape in enumerate(shapes))


def numbers(program: Program, rows: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Standard normal numbers for a program's inputs; small integers for integer columns, truths for BOOL."""
    generator = np.random.default_rng(seed)
    made = []
    for value in program.columns:
        if value.dtype == F32:
            made.append(generator.standard_normal((rows, *value.shape)).astype(np.float32))
        elif value.dtype == I32:
            made.append(generator.integers(0, 5, (rows, *value.shape)))
        else:
            made.append(generator.random((rows, *value.shape)) < 0.5)
    return made, [generator.standard_normal(value.shape).astype(np.float32) for value in program.uniforms]


def same(program: Program, rows: Sequence[int] = ROWS, error: float = 3e-6) -> None:
    """A program's outputs are NumPy's, to float32's rounding of each array's largest number: the CPU's, also with
    gradients by weights and with blocks of one row, and those of a GPU's threads."""
    own, by_weights, for_gpu = plan(program), plan(program, by_weights=True), plan(program, vectors=False)
    alone = {"alone": plan(program, block=ALONE), "alone by weights": plan(program, by_weights=True, block=ALONE)}
    for count in rows:
        given = numbers(program, count)
        wanted, results = in_numpy.run(program, *given), {"CPU": run(own, *given)}
        if any(phase.gradients for phase in by_weights.phases):
            results["by weights"] = run(by_weights, *given)
        if count <= MOST_ALONE:
            results |= {where: run(own_plan, *given) for where, own_plan in alone.items()}
        if lanes := LANES.get(count):
            results["GPU"] = on_threads.run(for_gpu, *given, lanes=lanes)
        for name, expected in wanted.items():
            largest = np.abs(expected).max(initial=1.0)
            for where, found in results.items():
                near = {"rtol": 0, "atol": error * largest, "err_msg": f"{name}, {count}, {where}"}
                np.testing.assert_allclose(found[name], expected, **near)
