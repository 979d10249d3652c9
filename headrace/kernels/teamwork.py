"""Threads for kernels that share their work (headrace.kernels.team): a pool that lives as long as the process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

CROWDED = 0.6  # share of a call in which its own thread ran, below which other processes want the cores
WORTH_JUDGING = 1e-3  # s: shorter calls say nothing about that
ALONE = 8  # calls without helpers after a crowded one


def state() -> np.ndarray:
    """The state of a team that has no job yet, int64."""
    return np.zeros(16, np.int64)


class Team:
    """Runs one kind of job on several threads, or on one while the machine is crowded: a helper that is not running
    keeps the others waiting."""

    def __init__(self) -> None:
        self.alone = 0

    def run(self, function: Callable[..., Any], threads: int, arguments: tuple[Any, ...]) -> Any:
        """function(worker, state, *arguments): worker 0 in this thread, which leads, and 1 ... threads - 1 in others.
        Gives what the leader's call gave, once all have returned.

        The function must release the GIL, and come back from helpers' calls once the leader has dismissed them. Its
        results must not depend on the number of threads.
        """
        if threads == 1:
            return function(0, state(), *arguments)
        wall, own = time.perf_counter(), time.thread_time()
        result = _together(function, 1 if self.alone else threads, arguments)
        wall, own = time.perf_counter() - wall, time.thread_time() - own
        self.alone = max(self.alone - 1, 0)
        if wall > WORTH_JUDGING and own < CROWDED * wall:
            self.alone = ALONE
        return result


def _together(function: Callable[..., Any], threads: int, arguments: tuple[Any, ...]) -> Any:
    team = state()
    helpers = [_pool(os.getpid()).submit(function, worker, team, *arguments) for worker in range(1, threads)]
    try:
        return function(0, team, *arguments)
    finally:
        team[0] = -1  # dismissed, however the leader ended
        for helper in helpers:
            if not helper.cancel():
                helper.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One for each process: threads do not survive a fork."""
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="headrace")
