"""Threads for kernels that share their work (kernels.runtime.work_queue): a pool that lives as long as the process."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from headrace.kernels.runtime.native import Call

CROWDED = 0.6  # share of a call in which its own thread ran, below which other processes want the cores
WORTH_JUDGING = 1e-3  # s: shorter calls say nothing about that
ALONE = 8  # calls without helpers after a crowded one


def queue_state() -> np.ndarray:
    """The state of a team that has no job yet, int64."""
    return np.zeros(16, np.int64)


class WorkQueue:
    """Runs one kind of job on several threads, or on one while the machine is crowded: a helper that is not running
    keeps the others waiting."""

    def __init__(self) -> None:
        self.alone = 0

    def run(self, call: Call, threads: int) -> None:
        """Run a call whose first arguments are 0 and queue_state(): worker 0 in this thread, and workers from 1
        in other threads. Returns once all have.

        The function must release the GIL, and come back from helpers' calls once the leader has dismissed them. Its
        results must not depend on the number of threads.
        """
        call.arguments[1][:] = 0
        if threads == 1:
            call()
            return
        wall, own = time.perf_counter(), time.thread_time()
        _together(call, 1 if self.alone else threads)
        wall, own = time.perf_counter() - wall, time.thread_time() - own
        self.alone = max(self.alone - 1, 0)
        if wall > WORTH_JUDGING and own < CROWDED * wall:
            self.alone = ALONE


def _together(call: Call, threads: int) -> None:
    helpers = [_pool(os.getpid()).submit(call.for_worker(worker)) for worker in range(1, threads)]
    try:
        call()
    finally:
        call.arguments[1][0] = -1  # dismissed, however the leader ended
        for helper in helpers:
            if not helper.cancel():
                helper.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One for each process: threads do not survive a fork. They flush denormals, as training does."""
    import torch

    return ThreadPoolExecutor(os.cpu_count() or 1, "headrace", torch.set_flush_denormal, (True,))
