"""Steps on minibatches: the gradient of a program, clipping, and Adam's step, for all of them in one call. Compiled
once for all programs.

Where a call pauses, it returns between each gradient and its step, and is called again.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.rows.slots import FIRST
from headrace.kernels.rows.targets.cpu_adam import begin_step, square_part, step_part
from headrace.kernels.rows.targets.cpu_arguments import (
    DONE,
    EPOCHS,
    NUMBER,
    PAUSED,
    PAUSES,
    PROGRAM,
    ROWS,
    SIZE,
    SQUARES,
    STEP,
    STOPPED,
    TASK,
)
from headrace.kernels.rows.targets.cpu_threads import do_task
from headrace.kernels.rows.targets.cpu_writes import write_back
from headrace.kernels.runtime.jit import ENTRY, INNER, MERGED, njit
from headrace.kernels.runtime.work_queue import close, work_loop

U = np.uint64
_FIRST = U(FIRST)


@njit(**INNER)  # not merged: a call runs tasks of three kinds, and threads serve them
def _do(part, worker, learning):
    task = learning.now[TASK]
    if task == PROGRAM:
        do_task(part, worker, learning.work)
    elif task == SQUARES:
        square_part(part, learning.optimizer)
    else:
        step_part(part, learning.optimizer)


_run_task, _serve = work_loop(_do)


@njit(**MERGED)
def _next(learning):
    """Describe the next minibatch; False where there is none."""
    done, number = learning.now[DONE], learning.sizes[NUMBER]
    epoch, batch = divmod(done, number)
    if epoch == learning.sizes[EPOCHS] or (learning.now[STOPPED] and batch == 0):
        return False
    slots, each = learning.work.slots, learning.work.each
    for first in range(U(0), U(len(slots)), each):
        slots[first + _FIRST] = epoch * learning.sizes[ROWS] + batch * learning.sizes[SIZE]
        if done > 0:
            for i in range(len(learning.moving)):
                slots[first + U(learning.moving[i, 0])] += learning.moving[i, 1]
    return True


@njit(**MERGED)
def _differentiate(state, learning):
    """The gradient of the minibatch."""
    work = learning.work
    learning.now[TASK] = PROGRAM
    for task in range(len(work.parts)):
        work.task[0] = task
        if work.parts[task] == 1:
            do_task(U(0), U(0), work)
        else:
            _run_task(state, work.parts[task], learning)
    write_back(learning.writes)
    learning.now[DONE] += 1


@njit(**MERGED)
def _step(state, learning):
    """Adam's step along the gradient."""
    optimizer = learning.optimizer
    learning.now[TASK] = SQUARES
    _run_task(state, len(optimizer.ranges), learning)
    begin_step(optimizer)
    learning.now[TASK] = STEP
    _run_task(state, len(optimizer.ranges), learning)


@njit(**MERGED)
def _stops(learning):
    """Tell whether no step is taken along this gradient."""
    now = learning.now
    if learning.measured[U(now[DONE] - 1)] > learning.limit[0]:
        now[STOPPED] = 1
    return now[STOPPED]


@njit(**ENTRY)
def learn(worker, state, learning):
    """A step on each minibatch, by all threads together: see kernels.runtime.thread_pool."""
    if worker != 0:
        _serve(worker, state, learning)
        return
    now = learning.now
    while now[PAUSED] or _next(learning):
        if now[PAUSED]:
            now[PAUSED] = 0
        else:
            _differentiate(state, learning)
            if now[PAUSES]:
                now[PAUSED] = 1
                break
        if not _stops(learning):
            _step(state, learning)
    close(state)
