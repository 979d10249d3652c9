"""Threads for kernels that share their work (kernels.runtime.work_queue): one pool for the whole process."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from headrace.core.cores import cores
from headrace.kernels.runtime.native import Call

BUSY = 0.6  # fraction of a call in which the main thread ran, below which other processes are using the cores
MIN_MEASURED = 1e-3  # s: shorter calls are not measured
ALONE = 8  # calls with one thread after one on a busy machine


def queue_state() -> np.ndarray:
    """The state of a work queue without a task, int64."""
    return np.zeros(16, np.int64)


class WorkQueue:
    """Runs one kernel on several threads, or on one while the machine is busy: a worker thread that is not scheduled
    delays the others. alone: calls with one thread that are left."""

    def __init__(self) -> None:
        self.alone = 0

    def run(self, call: Call, threads: int) -> None:
        """Run a call whose first arguments are 0 and queue_state(): worker 0 in this thread, and workers from 1
        in other threads. Returns once all have.

        The function must release the GIL, and return in worker threads once the main thread has closed the queue. Its
        results must not depend on the number of threads.
        """
        _state(call)[:] = 0
        if threads == 1:
            call()
            return
        wall, own = time.perf_counter(), time.thread_time()
        _run_threads(call, 1 if self.alone else threads)
        wall, own = time.perf_counter() - wall, time.thread_time() - own
        self.alone = max(self.alone - 1, 0)
        if wall > MIN_MEASURED and own < BUSY * wall:
            self.alone = ALONE


def _state(call: Call) -> np.ndarray:
    state = call.arguments[1]
    assert isinstance(state, np.ndarray)
    return state


def _run_threads(call: Call, threads: int) -> None:
    workers = [_pool(os.getpid()).submit(call.for_worker(worker)) for worker in range(1, threads)]
    try:
        call()
    finally:
        _state(call)[0] = -1  # closed, however the main thread ended
        for task in workers:
            if not task.cancel():
                task.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One for each process: threads do not survive a fork. They flush denormals like the main thread."""
    import torch

    return ThreadPoolExecutor(cores(), "headrace", torch.set_flush_denormal, (True,))
