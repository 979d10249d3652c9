"""An environment whose steps take a known time: the rest of a core's time is the overhead of a vector environment."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

EPISODE = 1000  # steps
RARE, TIMES = 0.01, 100.0  # of heavy-tailed environments: the share of slow steps, and how much longer they take


class TimedEnv(gymnasium.Env):
    """seconds: of a step, in the mean. sleeping: it waits, as for a device or a network; else it computes.
    heavy: one step in a hundred takes a hundred times as long as the others."""

    observation_space = Box(-np.inf, np.inf, (4,), np.float32)
    action_space = Discrete(2)

    def __init__(self, seconds: float, sleeping: bool = False, heavy: bool = False) -> None:
        self.sleeping, self.heavy = sleeping, heavy
        self.usual = seconds / (1 + RARE * (TIMES - 1)) if heavy else seconds
        self.draws = np.random.default_rng()  # other numbers in each environment, also where reset() is given no seed
        self.steps = 0
        self.observation = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.draws = np.random.default_rng(seed)
        self.steps = 0
        return self.observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        seconds = self.usual
        if self.heavy and self.draws.random() < RARE:
            seconds *= TIMES
        if self.sleeping:
            if seconds:
                time.sleep(seconds)
        else:
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                pass
        self.steps += 1
        return self.observation, 1.0, False, self.steps == EPISODE, {}
