"""Collecting from workers that need not step together: in two halves, or each at its own pace.

What is collected is what all of them together would collect: environments and the draws behind the actions do not know
who was first. Where a policy's arithmetic depends on the size of a batch, so do the last bits of what it decides: in
halves they are the same from run to run; at the workers' own pace they may differ.
"""

from __future__ import annotations

from math import floor
from typing import Any

import torch
from torch import Tensor

from headrace.data.rollout import Column, Columns, Rollout, tree_map
from headrace.envs.base import AsyncEnv, Env
from headrace.envs.wrappers.conditioning import InformedEnv
from headrace.parallel.collector import Collector, mask_state, output_columns

COLLECTION_MODES = ("sync", "double_buffered", "async")


def make_collector(mode: str, drop_slowest: float, env: Env, *arguments: Any) -> Collector:
    """A Collector of a mode, one of COLLECTION_MODES. drop_slowest: see AsyncCollector.

    What is said of workers holds for EnvPool's worlds, too, each of which is a worker.
    Raises ValueError where the environments do not step in workers, or for a number out of range.
    """
    if not 0 <= drop_slowest < 1:
        raise ValueError(
            f"drop_slowest is the share of workers that learning does not wait for, 0 .. 1, got {drop_slowest}"
        )
    if drop_slowest and mode != "async":
        raise ValueError(f"drop_slowest={drop_slowest} is for the collection mode 'async', and this is {mode!r}")
    if mode == "sync":
        return Collector(env, *arguments)
    if isinstance(env, InformedEnv):
        raise ValueError(f"collection={mode!r} goes without agent_info: leave one of them out")
    if not isinstance(env, AsyncEnv) or env.num_agents > 1:
        runs = f"{env.name} runs as {env.backend!r}, seen from {env.device}"
        raise ValueError(f"collection={mode!r} is for environments with one agent, in workers or of EnvPool: {runs}")
    if len(env.parts) < 2:
        what = "workers" if env.backend == "workers" else "environments"
        raise ValueError(f"collection={mode!r} needs 2 {what} or more, and there is 1")
    env.make_async()
    if mode == "double_buffered":
        return DoubleBufferedCollector(env, *arguments)
    return AsyncCollector(drop_slowest, env, *arguments)


class DoubleBufferedCollector(Collector):
    """The policy decides for one half of the workers while the other half steps."""

    @torch.no_grad()
    def fill(self, first_step: int | Tensor) -> None:
        """T steps from the row 0 that is there."""
        env: Any = self.env
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
                    act_for(self, t, slice(env.parts[half[0]].start, env.parts[half[-1]].stop), random)
                for worker in half:
                    env.start(self.rollout, t, worker)
                stepping.update(half)
        with self.timer("env"):
            while stepping:
                stepping.difference_update(env.get())
        with self.timer("inference"):
            self.evaluate_edge()


class AsyncCollector(Collector):
    """The policy decides for whichever workers are ready; a slow step holds up its own worker alone, until the
    rollout's end.

    stragglers: the share of workers for whose last rows nobody waits. The rows that they have not filled are dead; the
    last one before counts as truncated, and the value of what is seen then stands in for what follows. The step they
    are at goes on, and is the first of the next rollout, with the log_prob of the policy that decided it.
    `unfilled` counts rows that are dead for want of time.
    """

    def __init__(self, drop_slowest: float, env: Any, *arguments: Any) -> None:
        super().__init__(env, *arguments)
        workers = len(env.parts)
        self.enough = workers - floor(drop_slowest * workers)  # workers that a rollout waits for
        self.dropped_steps = 0
        self._at = [0] * workers  # rows of the present rollout that each has filled
        self._late: dict[int, int] = {}  # workers that were at a step when the last rollout ended: at which row of it
        self._envs = [torch.arange(part.start, part.stop) for part in env.parts]
        self._seen: Rollout | None = None  # what learning sees, while stragglers write on
        if self.enough < workers:
            self._seen = Rollout(self.rollout.num_steps, env.num_envs, self.rollout.columns)

    @torch.no_grad()
    def collect(self) -> Rollout:
        """The next T steps. The rollout is the collector's own and is overwritten by the next call."""
        if self.steps:
            self._advance()
        self.fill(self.steps)
        self.steps += self.rollout.num_steps
        return self.rollout if self._seen is None else self._cut(self._seen)

    @torch.no_grad()
    def fill(self, first_step: int | Tensor) -> None:
        """T steps from the row 0 that is there, or fewer of stragglers."""
        env: Any = self.env
        steps = self.rollout.num_steps
        with self.timer("inference"):
            random = self._random(first_step)
        self._at = [0] * len(env.parts)
        ready = [worker for worker in range(len(env.parts)) if worker not in self._late]
        while True:
            ready = [worker for worker in ready if self._at[worker] < steps]
            if ready:
                with self.timer("inference"):
                    act_for(self, *self._where(ready), random)
                for worker in ready:
                    env.start(self.rollout, self._at[worker], worker)
            if self._at.count(steps) >= self.enough:
                break
            with self.timer("env"):
                ready = env.get()
            for worker in ready:
                self._arrived(worker)
        self._late = {w: self._late.get(w, row) for w, row in enumerate(self._at) if row < steps}
        with self.timer("inference"):
            self.evaluate_edge()

    def _arrived(self, worker: int) -> None:
        """A step is done. One that began in an earlier rollout becomes the first of this one."""
        if worker in self._late:
            _to_the_front(self.rollout, self.env.parts[worker], self._late.pop(worker))  # type: ignore[attr-defined]
        self._at[worker] += 1

    def _where(self, ready: list[int]) -> tuple[Any, Any]:
        """Rows and environments of some workers: as slices where they can be."""
        parts: Any = self.env.parts  # type: ignore[attr-defined]
        if len(ready) == 1:
            return self._at[ready[0]], parts[ready[0]]
        if len(ready) == len(parts) and len(set(self._at)) == 1:
            return self._at[0], slice(None)
        envs = [self._envs[worker] for worker in ready]
        rows = torch.tensor([self._at[worker] for worker in ready])
        return rows.repeat_interleave(torch.tensor([len(x) for x in envs])), torch.cat(envs)

    def _advance(self) -> None:
        """Begin the next rollout where this one ended, but for stragglers."""
        if not self._late:
            self.rollout.continue_from(self.rollout)
            return
        for worker, part in enumerate(self.env.parts):  # type: ignore[attr-defined]
            if worker not in self._late:
                own = self.rollout[:, part]
                own.continue_from(own)

    def _cut(self, seen: Rollout) -> Rollout:
        """A copy for learning, in which the rows that stragglers have not filled are dead."""
        for name in self.rollout.columns:
            tree_map(lambda copy, column: copy.copy_(column), getattr(seen, name), getattr(self.rollout, name))
        for worker in self._late:
            part, row = self.env.parts[worker], self._at[worker]  # type: ignore[attr-defined]
            if row:
                seen.truncated[row - 1, part] |= seen.valid[row - 1, part] & seen.valid[row, part]
            seen.valid[row:, part] = False
            seen.episode_length[row:, part] = 0
            self.dropped_steps += (seen.num_steps - row) * (part.stop - part.start)
        return seen

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict(). Steps that stragglers are at are forgotten."""
        env: Any = self.env
        while env.get():
            pass
        self._late.clear()
        super().load_state_dict(state)


def act_for(collector: Collector, rows: Any, envs: Any, random: Tensor) -> None:
    """Fill rows of some environments with what the policy decides. rows, envs: a row and a slice, or a row for each of
    the environments [k]; noise: [T, N, num_draws]."""
    rollout, policy = collector.rollout, collector.policy
    observation = tree_map(lambda x: x[rows, envs], rollout.observation)
    before = tree_map(lambda x: x[envs], collector.rnn_state)
    decision = policy.act(observation, before, random[rows, envs])
    for name in output_columns(rollout):
        getattr(rollout, name)[rows, envs] = getattr(decision, name)
    if "rnn_state" in rollout.columns:
        tree_map(lambda column, x: _put(column, (rows, envs), x), rollout.rnn_state, before)
    after = mask_state(decision.rnn_state, rollout.valid[rows, envs])
    tree_map(lambda x, part: _put(x, envs, part), collector.rnn_state, after)


def _put(target: Tensor, index: Any, value: Tensor) -> Tensor:
    target[index] = value
    return target


def _to_the_front(rollout: Rollout, part: slice, row: int) -> None:
    """Make a row of some environments the first, and what is seen after it the second."""

    def move(columns: Columns, value: Any) -> None:
        for name, column in columns.items():
            member = getattr(value, name)
            if not isinstance(column, Column):
                move(column, member)
                continue
            member[0, part] = member[row, part]
            if column.bootstrap:
                member[1, part] = member[row + 1, part]

    if row:
        move(rollout.columns, rollout)
