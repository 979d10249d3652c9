"""Tasks of any_env.py, and the judge that says when a return is reached. Imports Gymnasium and NumPy alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

EPISODES, SCOUTS = 100, 10  # the first few tell whether the others are worth their time
SEED = 10_000


class Task(NamedTuple):
    """A return to reach, and how often to look."""

    threshold: float  # mean return of EPISODES deterministic episodes
    check_every: int  # environment steps
    throughput: bool = False  # where the return takes too long: steps a second


TASKS = {
    "LunarLander-v3": Task(200.0, 32_768),
    "HalfCheetah-v5": Task(2000.0, 32_768),
    "ALE/Pong-v5": Task(10.0, 131_072, throughput=True),
}


class Judge:
    """Keeps the clock of a training, which starts when it is made, and leaves the time it takes itself out.

    make_env: makes one environment. The run is given up after `seconds`; with throughput it ends then,
    nothing is evaluated, and the clock starts at the first call of over().
    """

    def __init__(self, env: str, seconds: float, throughput: bool, make_env: Callable[[], gymnasium.Env]) -> None:
        self.task, self.seconds, self.throughput, self.make_env = TASKS[env], seconds, throughput, make_env
        self.began, self.spent = time.perf_counter(), 0.0
        self.checked = self.first = 0
        self.row: dict[str, Any] = {"env": env, "throughput": throughput, "reached": False, "mean": None}

    def over(self, steps: int, act: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Tell, after an iteration, whether the return is reached or the time is up. act: observations [N, ...] ->
        actions [N, ...], deterministic."""
        if self.throughput and not self.first:
            self.first, self.began = steps, time.perf_counter()
            return False
        took = time.perf_counter() - self.began - self.spent
        self.row |= {"steps": steps - self.first, "train_s": took, "steps_per_s": (steps - self.first) / took}
        if self.throughput:
            return took >= self.seconds
        if steps - self.checked >= self.task.check_every or took >= self.seconds:
            self.checked, before = steps, time.perf_counter()
            self.row["mean"], episodes = self._mean(act)
            self.spent += time.perf_counter() - before
            self.row["reached"] = episodes == EPISODES and self.row["mean"] >= self.task.threshold
        return self.row["reached"] or took >= self.seconds

    def _mean(self, act: Callable[[np.ndarray], np.ndarray]) -> tuple[float, int]:
        """Mean return and number of episodes: all of them only where the scouts' mean is enough."""
        scouts = self._returns(act, 0, SCOUTS)
        if np.mean(scouts) < self.task.threshold:
            return float(np.mean(scouts)), SCOUTS
        return float(np.mean([*scouts, *self._returns(act, SCOUTS, EPISODES)])), EPISODES

    def _returns(self, act: Callable[[np.ndarray], np.ndarray], first: int, last: int) -> list[float]:
        envs = [self.make_env() for _ in range(first, last)]
        observations = [env.reset(seed=SEED + first + i)[0] for i, env in enumerate(envs)]
        returns, running = [0.0] * len(envs), list(range(len(envs)))
        while running:
            actions = act(np.stack([observations[i] for i in running]))
            for i, action in zip(running.copy(), actions, strict=True):
                observations[i], reward, terminated, truncated, _ = envs[i].step(action)
                returns[i] += float(reward)
                if terminated or truncated:
                    running.remove(i)
                    envs[i].close()
        return returns
