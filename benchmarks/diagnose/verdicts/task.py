"""Common parts of the scripts: an environment with a given cost of a step, and a clock that prints steps per second."""

from __future__ import annotations

import json
import os
import sys
import time

import gymnasium
import numpy as np

WARM_UP = 1.0  # s of training that do not count


def burn(seconds: float) -> int:
    """Compute for so many seconds of CPU time."""
    end, total = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        total += sum(range(20))
    return total


class Task(gymnasium.Env):
    """An environment that computes `cost` s and sleeps `pause` s in each step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, cost: float = 0.0, pause: float = 0.0, length: int = 50, continuous: bool = False) -> None:
        self.cost, self.pause, self.length, self.count = cost, pause, length, 0
        if continuous:
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(8, np.float32), {}

    def step(self, action):
        if self.cost:
            burn(self.cost)
        if self.pause:
            time.sleep(self.pause)
        self.count += 1
        observation = np.full(8, self.count / self.length, np.float32)
        return observation, 1.0, self.count >= self.length, False, {}


class Rate:
    """Counts steps for SECONDS s after a warm-up, then prints steps per second."""

    def __init__(self) -> None:
        self.seconds = float(os.environ.get("SECONDS", "60"))
        self.began, self.steps = 0.0, 0

    def more(self, steps: int = 1) -> bool:
        """Count steps; False once the time is over, after printing the rate."""
        now = time.perf_counter()
        self.began = self.began or now + WARM_UP
        if now < self.began:
            return True
        self.steps += steps
        if now < self.began + self.seconds:
            return True
        print(json.dumps({"rate": self.steps / (now - self.began)}), flush=True)
        return False

    def tick(self, steps: int = 1) -> None:
        """Count steps, and end the process when the time is over."""
        if not self.more(steps):
            sys.stdout.flush()
            os._exit(0)
