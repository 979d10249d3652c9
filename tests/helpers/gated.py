"""Environment that waits for others where it is asked to, so that tests of the order depend on no clock."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

PLACE = "HEADRACE_TEST_PLACE"


def set_up(place: int) -> None:
    """Set up a worker: its environments learn by this which worker they are in."""
    os.environ[PLACE] = str(place)


class Gated(gymnasium.Env):
    """Counts its steps; observation: (steps, last action). gates: (place, step) -> (file to make, file to await)."""

    observation_space = Box(-1e6, 1e6, (2,))
    action_space = Discrete(2)

    def __init__(self, folder: str, gates: Mapping[tuple[int, int], tuple[str, str]], length: int = 1000) -> None:
        self.folder, self.gates, self.length = Path(folder), gates, length
        self.place = int(os.environ[PLACE])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        made, awaited = self.gates.get((self.place, self.steps), ("", ""))
        if made:
            (self.folder / made).touch()
        while awaited and not (self.folder / awaited).exists():
            time.sleep(0.001)
        return np.array([self.steps, action], np.float32), 1.0, self.steps == self.length, False, {}
