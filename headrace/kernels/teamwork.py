"""Threads for kernels that share their work (headrace.kernels.team): a pool that lives as long as the process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np


def state() -> np.ndarray:
    """The state of a team that has no job yet, int64."""
    return np.zeros(16, np.int64)


def together(function: Callable[..., Any], threads: int, arguments: tuple[Any, ...]) -> Any:
    """function(leader, state, *arguments) in this thread and, with leader false, in threads - 1 others. Gives what the
    leader's call gave, once all have returned.

    The function must release the GIL, and come back from helpers' calls once the leader has dismissed them.
    """
    team = state()
    helpers = [_pool(os.getpid()).submit(function, False, team, *arguments) for _ in range(threads - 1)]
    try:
        return function(True, team, *arguments)
    finally:
        team[0] = -1  # dismissed, however the leader ended
        for helper in helpers:
            if not helper.cancel():
                helper.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One for each process: threads do not survive a fork."""
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="headrace")
