"""Environments that can be saved, and that go wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TimeLimit


class Drifting(gymnasium.Env):
    """A random walk of two numbers until it is far away. An action moves one of them."""

    observation_space, action_space = Box(-100, 100, (2,)), Discrete(2)

    def __init__(self) -> None:
        self.place, self.pull, self.moves = np.zeros(2, np.float32), np.float32(1), {"all": 0, "last": (0, 1.5, None)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place[:] = self.np_random.normal(size=2)
        self.pull = np.float32(self.np_random.random())
        return self.place.copy(), {}

    def step(self, action):
        self.place += self.np_random.normal(size=2).astype(np.float32) * self.pull
        self.place[action] += np.float32(0.1)
        self.moves = {"all": self.moves["all"] + 1, "last": (int(action), 1.5, None)}
        return self.place.copy(), float(self.pull), bool(abs(self.place).max() > 5), False, {}

    def state_dict(self):
        return {"place": self.place, "pull": self.pull, "moves": self.moves}

    def load_state_dict(self, state):
        self.place[:], self.pull, self.moves = state["place"], state["pull"], state["moves"]


class Faulty(Drifting):
    """Goes wrong in `fault`: (when, what, file): at "make", "reset", the step of that number of the whole life, or "the
    state after" it, by "kill", "hang", "stop", "exit" or an exception; once in all where a file is named, which does
    not exist yet."""

    def __init__(self, when: str | int, what: str, once: str = "") -> None:
        super().__init__()
        self.fault, self.taken = (when, what, once), 0
        self._now("make")

    def reset(self, *, seed=None, options=None):
        self._now("reset")
        return super().reset(seed=seed)

    def step(self, action):
        self.taken += 1
        self._now(self.taken)
        return super().step(action)

    def state_dict(self):
        self._now(f"the state after {self.taken}")
        return {**super().state_dict(), "taken": self.taken}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.taken = state["taken"]

    def _now(self, when: str | int) -> None:
        at, what, once = self.fault
        if when != at:
            return
        if once:
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL))  # one process alone can
            except FileExistsError:
                return
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "exit":
            os._exit(3)
        elif what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "hang":
            time.sleep(1000)
        elif what == "unpicklable":
            error = ZeroDivisionError("the step went wrong")
            error.lock = lambda: None
            raise error
        else:
            raise ZeroDivisionError(f"the {what} went wrong")


class Unsaved(Faulty):
    """Cannot be saved."""

    state_dict = None


class Slow(Unsaved):
    """A step takes so many seconds, and is written down first."""

    def __init__(self, seconds: float) -> None:
        super().__init__("never", "")
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class SlowlyDrifting(Drifting):
    """A step takes 10 ms."""

    def step(self, action):
        time.sleep(0.01)
        return super().step(action)


def limited(make: Callable[[], gymnasium.Env], steps: int = 7) -> gymnasium.Env:
    """Make an environment with Gymnasium's wrappers for a time limit and the order of calls."""
    return TimeLimit(gymnasium.wrappers.OrderEnforcing(make()), steps)
