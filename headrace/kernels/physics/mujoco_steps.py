"""Steps of many simulations by MuJoCo's own functions, which are called by their addresses, in several threads."""

from __future__ import annotations

import numpy as np

from headrace.kernels.runtime.intrinsics import call_with_words, double_at, put_double
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import single_task

U = np.uint64
_0, _1, _8 = U(0), U(1), U(8)
SLOT, UNSTABLE = U(1024), -1  # a slot's bytes, and how a step ends: kernels.physics.mujoco_errors


@njit(**INNER)
def _step(part, worker, given):
    """Step one simulation, and copy fields of its mjData: float64, one after the other."""
    functions, models, datas, controls, actions, fields, sizes, copied, resets, due, repeats, guard, slots, ends = given
    i = U(due[part])
    slot = slots + U(worker) * SLOT
    for j in range(_0, U(actions.shape[1])):
        put_double(controls[i] + _8 * j, actions[i, j])
    for _ in range(repeats):
        if call_with_words(guard, functions[0], models[i], datas[i], slot):
            ends[i] = worker + 1
            return
    for k in range(_1, U(len(functions))):
        if call_with_words(guard, functions[k], models[i], datas[i], slot):
            ends[i] = worker + 1
            return
    place = _0
    for k in range(_0, U(len(sizes))):
        for j in range(_0, sizes[k]):
            copied[i, place + j] = double_at(fields[k, i] + _8 * j)
        place += sizes[k]
    words = copied.view(np.int64)
    for k in range(len(resets)):
        if words[i, resets[k]] >> 32:
            ends[i] = UNSTABLE


_run = single_task(_step)


@njit(**ENTRY)
def step(worker, state, count, arguments):
    """Step `count` simulations, those of the numbers `due`, by all threads together: kernels.runtime.thread_pool.

    arguments: the addresses of mj_step and of what is called after the last of its calls, and for each simulation those
    of its mjModel, its mjData and its controls; actions [N, A] and what is copied [N, K], float64; for each field its
    addresses, [k, N], and its number of entries; which columns have counts of resets in their upper halves; int64 `due`
    [N]; how often mj_step is called; of mujoco_errors the function that guards calls, and the slot of the first thread;
    and int64 [N], 0, which gets how each step ended: UNSTABLE, or the number of the thread, from 1 on, in which MuJoCo
    failed.
    """
    _run(worker, state, count, arguments)


@njit(**ENTRY)
def silent(ignored):
    """Do nothing: replaces MuJoCo's function for warnings, which would write a file."""
