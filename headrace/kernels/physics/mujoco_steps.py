"""Steps of many simulations by MuJoCo's own functions, which are called by their addresses, in several threads."""

from __future__ import annotations

import numpy as np

from headrace.kernels.runtime.intrinsics import call_with_two, double_at, put_double
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import single_task

U = np.uint64
_0, _1, _8 = U(0), U(1), U(8)


@njit(**INNER)
def _step(part, worker, arguments):
    """Step one simulation, and copy fields of its mjData: float64, one after the other."""
    functions, model, datas, controls, actions, fields, sizes, copied, due, repeats = arguments
    i = U(due[part])
    for j in range(_0, U(actions.shape[1])):
        put_double(controls[i] + _8 * j, actions[i, j])
    for _ in range(repeats):
        call_with_two(functions[0], model, datas[i])
    for k in range(_1, U(len(functions))):
        call_with_two(functions[k], model, datas[i])
    place = _0
    for k in range(_0, U(len(sizes))):
        for j in range(_0, sizes[k]):
            copied[i, place + j] = double_at(fields[k, i] + _8 * j)
        place += sizes[k]


_run = single_task(_step)


@njit(**ENTRY)
def step(worker, state, count, arguments):
    """Step `count` simulations, those of the numbers `due`, by all threads together: kernels.runtime.thread_pool.

    arguments: the addresses of mj_step and of what is called after the last of its calls, that of the mjModel, and for
    each simulation those of its mjData and its controls; actions [N, A] and what is copied [N, K], float64; for each
    field its addresses, [k, N], and its number of entries; int64 `due` [N]; and how often mj_step is called.
    """
    _run(worker, state, count, arguments)


@njit(**ENTRY)
def silent(ignored):
    """Nothing: takes the place of MuJoCo's function for warnings, which would write a file."""
