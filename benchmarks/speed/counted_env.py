"""An environment whose steps take a fixed count of operations, or sleep.

A loop until a wall-clock time would hide that two processes share a core: it ends on time all the same.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.speed.timed_env import RARE, TIMES, TimedEnv

EPISODE = 200  # steps


def compute(count: int) -> float:
    """`count` operations."""
    x = 1.0
    for _ in range(count):
        x = x * 0.999 + 0.001
    return x


def calibrated(seconds: float) -> int:
    """The count that takes so long on a core of its own: by the fastest trial of a second, which nothing disturbed."""
    count, best, end = 10_000, float("inf"), time.perf_counter() + 1
    while time.perf_counter() < end:
        began = time.perf_counter()
        compute(count)
        best = min(best, time.perf_counter() - began)
    return max(1, round(count * seconds / best))


class CountedEnv(TimedEnv):
    """count: operations of a step. sleep: seconds. heavy: one step in a hundred sleeps a hundred times as long."""

    def __init__(self, count: int = 0, sleep: float = 0.0, heavy: bool = False) -> None:
        super().__init__(sleep, sleeping=True, heavy=heavy)
        self.count, self.sleep = count, sleep

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        compute(self.count)
        if self.sleep:
            time.sleep(self.sleep * (TIMES if self.heavy and self.draws.random() < RARE else 1.0))
        self.steps += 1
        return self.observation, 1.0, False, self.steps == EPISODE, {}
