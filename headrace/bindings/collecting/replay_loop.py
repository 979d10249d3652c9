"""The loop of off-policy algorithms as one compiled call: acting, environments, the replay buffer and learning.

Where environments are not compiled they are stepped in Python, between a call that acts and one that appends and
learns; where a rollout is collected whole, the call draws and learns alone.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.off_policy import OffPolicy
from headrace.bindings.collecting.compiled_collecting import Rows
from headrace.bindings.compiled.replay_learning import NO_CHOICE, NO_NUMBER, LearningCall
from headrace.core.timer import Timer
from headrace.data.priorities import PrioritizedReplay
from headrace.data.replay import Replay
from headrace.data.rollout import Rollout
from headrace.envs.compiled.env import CompiledEnv
from headrace.kernels.off_policy import off_policy_run_arguments as slots
from headrace.kernels.off_policy.off_policy_run_arguments import (
    ACT,
    APPEND,
    LEARN,
    STEP,
    Columns,
    Priorities,
    Ring,
    Steps,
)
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.kernels.targets.cpu.state_layout import flat
from headrace.parallel.learning_collector import LearningCollector

ANNOUNCEMENT = "compiling the off-policy loop (once, about 8 s) ..."
_NO_WORDS = np.zeros(1, np.uint64)
FLAGS = ("valid", "terminated", "truncated")


class Acts(Protocol):
    """Acts in place of the loop's own actor, in a rollout that a collector fills."""

    def begin(self, collector: LearningCollector, random: Tensor) -> None:
        """Prepare for the first row. random: the draws of all rows."""

    def act(self, collector: LearningCollector, t: int, random: Tensor) -> None:
        """Fill row t with what the policy outputs."""

    def end(self, collector: LearningCollector) -> None:
        """Finish after the last row."""


class Loop:
    """The compiled loop of one algorithm, its replay buffer and (or None, to learn alone) one rollout.

    learning: the gradient steps after every `every` environment steps. step: the environments', if compiled. rows: a
    program of the policy; None where `acts` acts, or nothing does."""

    def __init__(
        self,
        algorithm: OffPolicy[Any],
        learning: LearningCall,
        rows: Rows | None = None,
        rollout: Rollout | None = None,
        every: int = 1,
        step: Any = None,
        acts: Acts | None = None,
    ) -> None:
        replay = algorithm.replay
        assert replay is not None
        self.learning, self.rows, self.acts = learning, rows, acts
        self.span, self.spent = np.zeros(4, np.int64), np.zeros(slots.PARTS, np.uint64)
        source: Any = replay.ring[:1] if rollout is None else rollout
        entered, actor_words, moving = self._acting()
        address, words = (0, _NO_WORDS) if step is None else (step.function.address, step.slots)
        if step is not None:
            words[-3:-1] = 0, source.num_envs
        ring = _ring(replay, learning.drawn)
        steps = Steps(
            span=self.span,
            every=np.int64(every),
            actor=np.uint64(entered),
            actor_words=actor_words,
            moving=moving,
            entry=np.uint64(address),
            words=words,
            spent=self.spent,
        )
        columns = _columns(source)
        arguments = (0, queue_state(), columns, ring, learning.batch, learning.learning, steps)
        self.call = Call(entry("off_policy.off_policy_run", "run_steps", arguments, ANNOUNCEMENT), arguments)
        self.every, self.num_steps = every, source.num_steps
        self.work_queue, self.compiled, self.in_python = WorkQueue(), step is not None, 0.0  # s in environments

    def _acting(self) -> tuple[int, np.ndarray, np.ndarray]:
        """The call that acts for one row after another: its address, its slots, and which of them move."""
        if self.rows is None:
            return 0, _NO_WORDS, np.empty((0, 3), np.int64)
        placed = self.rows.placed
        return placed.program.cpu.native.address, placed.memory.words.view(np.uint64), self.rows.moving

    def run(self, first: int, last: int, flags: int, threads: int = 1) -> None:
        """Do what the flags say for steps first .. last - 1. threads: for the learning calls among them."""
        span = self.span
        span[0], span[1], span[2] = first, last, flags  # a slice takes longer
        self.work_queue.run(self.call, threads)

    def learn(self, algorithm: OffPolicy[Any]) -> dict[str, Tensor]:
        """The gradient steps of one learning call, and their metrics."""
        self.span[slots.UPDATES] = algorithm.updates
        self.learning.begin(algorithm)
        self.run(self.every - 1, self.every, LEARN, self.learning.threads)
        return self.learning.end(algorithm, algorithm.updates)[0]

    def collect(self, collector: LearningCollector, random: Tensor) -> None:
        """All steps of a rollout."""
        algorithm, every, acts = collector.algorithm, self.every, self.rows or self.acts
        assert acts is not None  # else it learns alone
        acts.begin(collector, random)
        self.span[slots.UPDATES] = updates = algorithm.updates
        self.spent[:], self.in_python = 0, 0.0
        self.learning.begin(algorithm)
        began, first = perf_counter(), 0
        try:
            while first < len(random):
                count = len(random) - first if algorithm.steady() else every
                self._steps(collector, random, first, first + count, LEARN if algorithm.past_warm_up() else 0)
                algorithm.explore()
                if self.rows is not None:
                    self.rows.follow_exploration(algorithm.policy)
                first += count
        finally:  # an environment's exception ends the rollout
            acts.end(collector)
            metrics, taken = self.learning.end(algorithm, updates)
            if taken:
                algorithm.add_metrics(metrics, updates, taken)
        self._note_times(collector.timer, perf_counter() - began)

    def _steps(self, collector: LearningCollector, random: Tensor, first: int, last: int, learn: int) -> None:
        every, algorithm = self.every, collector.algorithm
        threads = self.learning.threads if learn else 1
        if self.compiled and self.acts is None:
            self.run(first, last, ACT | STEP | APPEND | learn, threads)
            algorithm.iteration += last // every - first // every
            return
        env, rollout = collector.env, collector.rollout
        for t in range(first, last):
            if self.acts is None:
                self.run(t, t + 1, ACT)
            else:
                with collector.timer("inference"):
                    self.acts.act(collector, t, random[t])
            if not self.compiled:
                began = perf_counter()
                env.step(rollout, t)
                self.in_python += perf_counter() - began
            ends = (t + 1) % every == 0
            self.run(t, t + 1, STEP * self.compiled | APPEND | learn, threads if ends else 1)
            algorithm.iteration += ends

    def _note_times(self, timer: Timer, seconds: float) -> None:
        """Divide the seconds of a rollout among its parts, by the processor's ticks."""
        ticks = self.spent.tolist()
        shares = [part / sum(ticks) for part in ticks] if any(ticks) else [0.0, 0.0, 1.0]  # it may have no counter
        inference, env, learn = ((seconds - self.in_python) * share for share in shares)
        for part, spent in (("inference", inference), ("env", env + self.in_python), ("learning", learn)):
            timer.add(part, spent)


def _columns(rollout: Rollout) -> Columns:
    action, nothing = rollout.action, (NO_NUMBER, NO_CHOICE)
    number, choice = (flat(action), nothing[1]) if action.dim() == 3 else (nothing[0], flat(action))
    flags = {name: flat(getattr(rollout, name)) for name in FLAGS}
    planes = np.uint64(rollout.observation.stride(2)), np.uint64(action.stride(2) if action.dim() == 3 else 0)
    others = (flat(rollout.reward), flags["terminated"], flags["truncated"])
    return Columns(flat(rollout.observation), flags["valid"], number, choice, *others, *planes)


def _ring(replay: Replay, drawn: int) -> Ring:
    ring, size = replay.ring, 1 if replay.ring.action.dim() == 2 else replay.ring.action.shape[2]
    columns = _columns(ring)
    numbers = (replay.length, replay.num_envs, ring.observation.shape[2], size)
    fields: Any = (*columns[:-2], replay.written.numpy(), *map(np.uint64, numbers), _priorities(replay, drawn))
    return Ring(*fields)


def _priorities(replay: Replay, drawn: int) -> Priorities:
    """drawn: rows of a learning call's minibatches."""
    if not isinstance(replay, PrioritizedReplay):
        nothing = (np.zeros(1), 0.0, NO_NUMBER, np.zeros(1), np.zeros(1, np.int64), np.zeros(1))
        return Priorities(np.uint64(0), np.uint64(0), *nothing)
    numbers = (replay.beta.view(1).numpy(), replay.highest.view(1).numpy())
    memory = (np.zeros(drawn, np.int64), np.zeros(drawn))
    sizes = (np.uint64(replay.depth), np.uint64(replay.num_steps))
    return Priorities(*sizes, replay.tree.numpy(), float(replay.alpha), *numbers, *memory)


def draws(algorithm: OffPolicy[Any], number: int) -> bool:
    """Tell whether a compiled call draws minibatches of the algorithm's replay buffer."""
    replay = algorithm.replay
    if replay is None or type(replay) not in (Replay, PrioritizedReplay) or algorithm.intrinsic is not None:
        return False
    ring = replay.ring
    if ring.device.type != "cpu" or not replay.alike or number < 1:
        return False
    if not isinstance(ring.observation, Tensor) or ring.observation.dtype != torch.float32:
        return False
    numbers = torch.int32 if ring.action.dim() == 2 else torch.float32
    return ring.observation.dim() == 3 and ring.action.dim() in (2, 3) and ring.action.dtype == numbers


def collects(collector: LearningCollector, random: Tensor) -> bool:
    """Tell whether a compiled call reads and writes the columns of a collector's rollout."""
    rollout = collector.rollout
    if rollout.env is not None or rollout.device.type != "cpu" or random.dtype != torch.float32:
        return False
    return isinstance(rollout.observation, Tensor) and isinstance(rollout.action, Tensor) and _side_by_side(rollout)


def compiled_step(collector: LearningCollector) -> Any:
    """The environments' step as a compiled call; None where they have none, or their own takes part."""
    env = collector.env
    if type(env) is not CompiledEnv or not isinstance(env.target, CpuEnvs) or env.step != env.target.step:
        return None
    return env.target.bound(collector.rollout) if env.num_agents == 1 and not env.ir.frames else None


def _side_by_side(rollout: Rollout) -> bool:
    """Tell whether entry (t, n) of every column lies at t * N + n."""
    scalars = [rollout.reward, *(getattr(rollout, name) for name in FLAGS)]
    vectors = [x[:, :, 0] for x in (rollout.observation, rollout.action) if x.dim() == 3]
    if rollout.observation.dim() != 3 or rollout.action.dim() not in (2, 3):
        return False
    return all(x.is_contiguous() for x in (*scalars, *vectors))
