"""Nanoseconds until what one core wrote has come to another: whether the cores have a cache in common.

    python -m benchmarks.speed.core_latency

Printed as a JSON object. Two threads count up one number in turns. On an AMD EPYC (Zen 5) it takes about 50 ns between
cores of one L3 cache, and about 210 between others. A virtual machine's host may move it from the one to the other
within seconds, and what two threads share takes longer then: so the other programs measure this before each run.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time

import numpy as np
from numba import njit  # noqa: TID253

from headrace.kernels.runtime.atomics import read, write

ROUNDS, TURNS = 5, 20_000
WORD = np.uint64(0)


@njit(nogil=True)
def take_turns(word, parity, turns):
    """Add 1 to word[0] so many times, whenever it is even (parity 0) or odd (1)."""
    done = 0
    while done < turns:
        value = read(word, WORD)
        if value % 2 == parity:
            write(word, WORD, value + 1)
            done += 1


def measure() -> float | None:
    """The median of some rounds, between this process's first two cores; None where it has one."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        return None
    take_turns(np.zeros(8, np.int64), 0, 1)
    return statistics.median(_round(cores[:2]) for _ in range(ROUNDS))


def _round(cores: list[int]) -> float:
    word = np.zeros(8, np.int64)

    def work(parity: int) -> None:
        os.sched_setaffinity(0, {cores[parity]})  # this thread's
        take_turns(word, parity, TURNS)

    threads = [threading.Thread(target=work, args=(parity,)) for parity in (0, 1)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - began) / (2 * TURNS) * 1e9


if __name__ == "__main__":
    print(json.dumps({"core_ns": measure()}))
