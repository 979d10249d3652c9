"""Collection modes in which workers need not step together: double-buffered and asynchronous.

Both collect what all workers stepping together would collect: neither environments nor the random draws of actions
depend on which worker was first. If a policy's arithmetic depends on the batch size, so do the last bits of its
outputs. They are then the same from run to run when double-buffered, and may differ when asynchronous.
"""

from __future__ import annotations

from math import floor
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.base import is_offline
from headrace.core.types import StateDict
from headrace.data.rollout import Rollout, each_column, tree_map
from headrace.envs.base import AsyncEnv, Env
from headrace.envs.wrappers.conditioning import InformedEnv
from headrace.parallel.actor_env import ActorEnv
from headrace.parallel.actors import Actors
from headrace.parallel.collector import Collector, InlineCollector, NoSteps
from headrace.parallel.fragments import slots_of
from headrace.parallel.gradients import GradientActors
from headrace.parallel.learning_collector import LearningCollector

COLLECTION_MODES = ("sync", "double_buffered", "overlapped", "async")


def make_collector(
    mode: str, drop_slowest: float, env: Env, *arguments: Any, learner: Any = None, train: Any = None, **of_actors: Any
) -> Collector:
    """Make the collector of a mode, one of COLLECTION_MODES. drop_slowest: see AsyncCollector. of_actors: see Actors.

    learner: the algorithm, where actors send gradients. train: the algorithm, if it learns while a rollout is
    collected, or if nothing is collected.
    With EnvPool, each environment counts as a worker.
    Raises ValueError where the environments do not step in workers, or for a number out of range.
    """
    if not 0 <= drop_slowest < 1:
        raise ValueError(f"drop_slowest must be a fraction of the workers, 0 to below 1, got {drop_slowest}")
    if drop_slowest and mode != "async":
        raise ValueError(f"drop_slowest={drop_slowest} needs collection='async', and collection is {mode!r}")
    if is_offline(train):
        return NoSteps(env, arguments[2])
    if train is not None:
        if isinstance(env, ActorEnv) or mode != "sync" or isinstance(env, InformedEnv) or env.num_agents > 1:
            raise ValueError(
                f"train_freq={train.config.train_freq} is for environments with one agent, without actors and "
                "agent_info, and collection='sync': leave it out, and give num_steps as many steps"
            )
        return LearningCollector(train, env, *arguments)
    if isinstance(env, ActorEnv):
        if learner is not None:
            return GradientActors(learner, env, *arguments, collection=mode, **of_actors)
        if env.executor is None:  # others keep a number of their own
            of_actors["slots"] = slots_of(mode, of_actors["max_policy_lag"])
        return Actors(env, *arguments, collection=mode, **of_actors)
    if mode == "overlapped":
        _check_overlapped(env)
    if mode in ("sync", "overlapped"):
        return InlineCollector(env, *arguments)
    if isinstance(env, InformedEnv):
        raise ValueError(f"collection={mode!r} does not work with agent_info: leave one of them out")
    if not isinstance(env, AsyncEnv) or env.num_agents > 1:
        runs = f"{env.name} runs with the backend {env.backend!r} on {env.device}"
        raise ValueError(
            f"collection={mode!r} needs environments with one agent, in workers, of EnvPool or MuJoCo, or actors: "
            f"{runs}"
        )
    if len(env.parts) < 2:
        what = "workers" if env.backend == "workers" else "environments"
        raise ValueError(f"collection={mode!r} needs 2 {what} or more, and there is 1")
    env.make_async()
    if mode == "double_buffered":
        return DoubleBufferedCollector(env, *arguments)
    return AsyncCollector(drop_slowest, env, *arguments)


def _check_overlapped(env: Env) -> None:
    """Raise ValueError where a thread cannot step environments while the policy learns."""
    if env.device.type != "cpu":
        raise ValueError(
            f"collection='overlapped' steps environments on the CPU while the policy learns, and those of {env.name} "
            "are on a GPU, which would do the one after the other: leave it out"
        )
    if env.single:
        raise ValueError(
            f"collection='overlapped' steps environments while the policy learns or is evaluated, and a process has "
            f"those of {env.name} once only, for both: leave it out"
        )


class DoubleBufferedCollector(InlineCollector):
    """Lets one half of the workers step while the policy acts for the other half."""

    env: AsyncEnv

    @torch.no_grad()
    def fill(self, first_step: int | Tensor) -> None:
        """T steps from row 0 on."""
        env = self.env
        with self.timer("inference"):
            random = self._random(first_step)
        middle = len(env.parts) // 2
        halves = (range(middle), range(middle, len(env.parts)))
        stepping: set[int] = set()
        for t in range(self.rollout.num_steps):
            for half in halves:
                with self.timer("env"):
                    while stepping.intersection(half):
                        stepping.difference_update(env.get())
                with self.timer("inference"):
                    self.act_for(t, slice(env.parts[half[0]].start, env.parts[half[-1]].stop), random)
                for worker in half:
                    env.start(self.rollout, t, worker)
                stepping.update(half)
        with self.timer("env"):
            while stepping:
                stepping.difference_update(env.get())
        with self.timer("inference"):
            self.evaluate_bootstrap_row()


class AsyncCollector(InlineCollector):
    """Lets the policy act for whichever workers are ready. A slow step delays only its own worker, and the rollout's
    end.

    drop_slowest: the fraction of workers whose last rows a rollout does not wait for. Rows that these workers have not
    filled are masked. Their last filled row counts as truncated, and bootstraps from the value of its next observation.
    The step that such a worker is in becomes its first of the next rollout, with the log_prob of the policy that chose
    the action. `dropped_steps` counts the rows masked in this way.
    """

    env: AsyncEnv

    def __init__(self, drop_slowest: float, env: AsyncEnv, *arguments: Any) -> None:
        super().__init__(env, *arguments)
        workers = len(env.parts)
        self.enough = workers - floor(drop_slowest * workers)  # workers that a rollout waits for
        self._at = [0] * workers  # rows of the present rollout that each worker has filled
        self._late: dict[int, int] = {}  # by worker in a step when the last rollout ended: the row of that step
        self._envs = [torch.arange(part.start, part.stop) for part in env.parts]
        self._copy: Rollout | None = None  # copy to learn from, while late workers write into the rollout
        if self.enough < workers:
            self._copy = Rollout(self.rollout.num_steps, env.num_envs, self.rollout.columns)

    @torch.no_grad()
    def collect(self) -> Rollout:
        """The next T steps. The rollout is the collector's own; the next call overwrites it."""
        rollout = super().collect()
        return rollout if self._copy is None else self._masked(self._copy)

    @torch.no_grad()
    def fill(self, first_step: int | Tensor) -> None:
        """Collect T steps from row 0 on, or fewer for late workers."""
        env = self.env
        steps = self.rollout.num_steps
        with self.timer("inference"):
            random = self._random(first_step)
        self._at = [0] * len(env.parts)
        ready = [worker for worker in range(len(env.parts)) if worker not in self._late]
        while True:
            ready = [worker for worker in ready if self._at[worker] < steps]
            if ready:
                with self.timer("inference"):
                    self.act_for(*self._rows_and_envs(ready), random)
                for worker in ready:
                    env.start(self.rollout, self._at[worker], worker)
            if self._at.count(steps) >= self.enough:
                break
            with self.timer("env"):
                ready = env.get()
            for worker in ready:
                self._stepped(worker)
        self._late = {w: self._late.get(w, row) for w, row in enumerate(self._at) if row < steps}
        with self.timer("inference"):
            self.evaluate_bootstrap_row()

    def _stepped(self, worker: int) -> None:
        """Record that a worker's step is done. A step begun in an earlier rollout becomes the first of this one."""
        if worker in self._late:
            _move_to_front(self.rollout, self.env.parts[worker], self._late.pop(worker))
        self._at[worker] += 1

    def _rows_and_envs(self, ready: list[int]) -> tuple[int | Tensor, slice | Tensor]:
        """Rows and environments of some workers, as slices if possible."""
        parts = self.env.parts
        if len(ready) == 1:
            return self._at[ready[0]], parts[ready[0]]
        if len(ready) == len(parts) and len(set(self._at)) == 1:
            return self._at[0], slice(None)
        envs = [self._envs[worker] for worker in ready]
        rows = torch.tensor([self._at[worker] for worker in ready])
        return rows.repeat_interleave(torch.tensor([len(x) for x in envs])), torch.cat(envs)

    def _advance(self) -> None:
        """Begin the next rollout where this one ended, except for late workers."""
        if not self._late:
            return super()._advance()
        for worker, part in enumerate(self.env.parts):
            if worker not in self._late:
                own = self.rollout[:, part]
                own.continue_from(own)

    def _masked(self, copy: Rollout) -> Rollout:
        """A copy for learning, in which the rows that late workers have not filled are masked."""
        for name in self.rollout.columns:
            tree_map(lambda to, column: to.copy_(column), getattr(copy, name), getattr(self.rollout, name))
        for worker in self._late:
            part, row = self.env.parts[worker], self._at[worker]
            if row:
                copy.truncated[row - 1, part] |= copy.valid[row - 1, part] & copy.valid[row, part]
            copy.valid[row:, part] = False
            copy.episode_length[row:, part] = 0
            self.dropped_steps += (copy.num_steps - row) * (part.stop - part.start)
        return copy

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(). Steps that late workers are in are forgotten."""
        env = self.env
        while env.get():
            pass
        self._late.clear()
        super().load_state_dict(state)


def _move_to_front(rollout: Rollout, part: slice, row: int) -> None:
    """Move a row of some environments to row 0, and the observation after it to row 1."""
    if not row:
        return
    for column, values in each_column(rollout.columns, rollout):
        values[0, part] = values[row, part]
        if column.bootstrap:
            values[1, part] = values[row + 1, part]
