"""Tasks of a program on several threads: the parts of phases on all, what is between phases on one. Compiled once for
all programs.

Each worker has argument slots of its own (kernels.rows.slots), which differ only in the scratch memory.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.rows.slots import PART, TASK
from headrace.kernels.runtime.intrinsics import run as call
from headrace.kernels.runtime.jit import ENTRY, MERGED, njit
from headrace.kernels.runtime.work_queue import close, work_loop

_TASK, _PART = (np.uint64(i) for i in (TASK, PART))


@njit(**MERGED)
def do_task(part, worker, work):
    """A part of the current task."""
    first = worker * work.each
    work.slots[first + _TASK], work.slots[first + _PART] = work.task[0], np.int64(part)
    call(work.entry, work.slots, first)


_run_task, _serve = work_loop(do_task)


@njit(**ENTRY)
def run(worker, state, work):
    """All tasks of a program, by all threads together: see kernels.runtime.thread_pool."""
    if worker == 0:
        for task in range(len(work.parts)):
            work.task[0] = task
            if work.parts[task] == 1:
                do_task(np.uint64(0), np.uint64(0), work)
            else:
                _run_task(state, work.parts[task], work)
        close(state)
    else:
        _serve(worker, state, work)
