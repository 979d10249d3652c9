"""Judge of whether an environment is solved, the same for every library: Gymnasium's own environments, 100 episodes.

Imports Gymnasium and NumPy alone, because peers run it in interpreters of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
import numpy as np

EPISODES = 100
SEED = 10_000  # of the first episode; the same episodes for every check and everybody
IN_A_ROW = 3


class Task(NamedTuple):
    """Conditions under which an environment counts as solved."""

    threshold: float  # mean return
    check_every: int  # environment steps between checks, for everybody
    max_steps: int  # environment steps after which a run has failed
    most_per_step: float  # no later step can bring more than this ...
    most_at_end: float  # ... except one, which can bring so much besides


TASKS = {
    "CartPole-v1": Task(475.0, 1024, 500_000, most_per_step=1.0, most_at_end=0.0),
    "Acrobot-v1": Task(-100.0, 8192, 2_000_000, most_per_step=0.0, most_at_end=0.0),
    "Pendulum-v1": Task(-200.0, 8192, 2_000_000, most_per_step=0.0, most_at_end=0.0),
    "MountainCarContinuous-v0": Task(85.0, 8192, 2_000_000, most_per_step=0.0, most_at_end=100.0),
    "MountainCar-v0": Task(-120.0, 8192, 5_000_000, most_per_step=0.0, most_at_end=0.0),
    "Catch": Task(0.95, 8192, 2_000_000, most_per_step=0.0, most_at_end=1.0),  # not Gymnasium's: see scaling_one.py
}


class Evaluation:
    """Episodes of a Gymnasium environment, side by side, one call of the policy for all."""

    def __init__(self, env_id: str, task: Task, episodes: int = EPISODES) -> None:
        self.task = task
        self.envs = [gymnasium.make(env_id, disable_env_checker=True) for _ in range(episodes)]
        self.limit = self.envs[0].spec.max_episode_steps

    def mean(self, act: Callable[[np.ndarray], np.ndarray]) -> tuple[float, bool]:
        """Mean return, and whether it was seen to the end: it is given up once the threshold is out of reach.

        act: observations [N, ...] float32 -> actions [N, ...], deterministic.
        """
        observation = np.stack([env.reset(seed=SEED + i)[0] for i, env in enumerate(self.envs)])
        total, steps = np.zeros(len(self.envs)), 0
        running = np.arange(len(self.envs))
        while len(running):
            actions = act(observation.astype(np.float32))  # of all, since another shape is compiled again by some
            over = np.zeros(len(running), bool)
            for k, i in enumerate(running):
                observation[i], reward, terminated, truncated, _ = self.envs[i].step(actions[i])
                total[i] += float(reward)
                over[k] = terminated or truncated
            steps += 1
            running = running[~over]
            if self._best_possible(total, running, steps) < self.task.threshold:
                return float(total.mean()), False
        return float(total.mean()), True

    def _best_possible(self, total: np.ndarray, running: np.ndarray, steps: int) -> float:
        future = self.task.most_per_step * (self.limit - steps) + self.task.most_at_end
        return float(total.sum() + len(running) * future) / len(self.envs)


@dataclass
class Judge:
    """Keeps the clock of a training: checks it at intervals, and leaves the time it takes for that out.

    process_start: time.time() of it. The training's clock starts when the judge is made: make it after the imports and
    before anything else.
    """

    env_id: str
    process_start: float
    max_steps: int | None = None
    verdict: dict[str, Any] = field(default_factory=dict)
    passed_in_a_row: int = 0
    last_step: int = 0
    last_mean: float = float("nan")

    def __post_init__(self) -> None:
        self.task = TASKS[self.env_id]
        self.max_steps = self.max_steps or self.task.max_steps
        self.spent = 0.0
        self.started = time.time()
        with _Spending(self):
            self.evaluation = Evaluation(self.env_id, self.task)
        names = ("steps", "train_s", "total_s", "eval_mean")
        self.verdict = {"solved": False, "held": False} | dict.fromkeys([*names, *(f"held_{name}" for name in names)])

    def check(self, steps: int, act: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Check the policy after an iteration, given the environment steps so far. True when there is nothing to wait
        for: held, or out of steps."""
        out_of_steps = steps >= self.max_steps
        if steps - self.last_step < self.task.check_every and not out_of_steps:
            return False
        self.last_step = steps
        reached = self._now(steps)
        with _Spending(self):
            self.last_mean, complete = self.evaluation.mean(act)
        if not (complete and self.last_mean >= self.task.threshold):
            self.passed_in_a_row = 0
            return out_of_steps
        self.passed_in_a_row += 1
        reached["eval_mean"] = self.last_mean
        if not self.verdict["solved"]:
            self.verdict |= {"solved": True, **reached}
        if self.passed_in_a_row < IN_A_ROW:
            return out_of_steps
        self.verdict |= {"held": True, **{f"held_{name}": value for name, value in reached.items()}}
        return True

    def _now(self, steps: int) -> dict[str, Any]:
        now = time.time() - self.spent
        return {"steps": steps, "train_s": now - self.started, "total_s": now - self.process_start}

    def row(self) -> dict[str, Any]:
        """The verdict for the benchmark's row."""
        facts = {"check_every": self.task.check_every, "last_step": self.last_step, "last_mean": self.last_mean}
        return {**self.verdict, **facts, "evaluation_s": self.spent}


class _Spending:
    """Adds the time within to the judge's own."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    def __enter__(self) -> None:
        self.began = time.time()

    def __exit__(self, *_: object) -> None:
        self.judge.spent += time.time() - self.began
