"""Environments that go wrong in every way, as worker processes and their parents must bear it."""

from __future__ import annotations

import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Counter(gymnasium.Env):
    """Counts its steps; observation: (steps, seed's remainder). Episodes of 5 steps. `fault` happens at step `at`, in
    the process where the file `once` does not exist yet."""

    observation_space = Box(-1e6, 1e6, (2,))
    action_space = Discrete(2)

    def __init__(self, fault: str = "", at: int = 3, once: str = "") -> None:
        self.fault, self.at, self.once = fault, at, once
        if fault == "constructor":
            self._go_wrong()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.mark = float(self.np_random.integers(1000))
        if self.fault == "reset":
            self._go_wrong()
        return np.array([0, self.mark], np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.fault and self.fault != "reset" and self.steps == self.at:
            if self.fault == "shape" and self._first_time():
                return np.zeros(3, np.float32), 1.0, False, False, {}
            self._go_wrong()
        return np.array([self.steps, self.mark], np.float32), 1.0, self.steps == 5, False, {}

    def _first_time(self) -> bool:
        if self.once:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))  # one process alone can
            except FileExistsError:
                return False
        return True

    def _go_wrong(self) -> None:
        if not self._first_time():
            return
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault == "exit":
            os._exit(3)
        elif self.fault == "hang":
            time.sleep(1000)
        elif self.fault != "shape":
            raise ZeroDivisionError(f"the {self.fault} went wrong")
