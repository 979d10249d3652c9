"""Gymnasium environments in worker processes, on rollouts in shared memory.

A worker runs its environments one after another, as InlineEnv does, and writes directly into the rollout's columns.
Processes exchange a dozen bytes per step and worker: the row, and the acknowledgement.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import gymnasium
import torch

from headrace.core.cores import partition
from headrace.core.types import Settings, StateDict
from headrace.data.rollout import Column, Columns, Rollout
from headrace.data.shared_memory import FOLDER, SharedRollout, shared_size
from headrace.envs.base import AsyncEnv, Round, repeat_first
from headrace.envs.gym.agent_groups import Grouping, take_agents
from headrace.envs.gym.change_params import check_numbers
from headrace.envs.gym.pettingzoo import restarts
from headrace.envs.workers.process import Workers
from headrace.envs.workers.protocol import Message, Task
from headrace.envs.workers.resources import MEGABYTE, check_processes, check_rollout, in_words
from headrace.envs.workers.stepping import (
    APPLY,
    BIND,
    CUT_OFF,
    PARAMS,
    RESET,
    RESET_ALL,
    ROWS,
    STEP,
    TAKE_OVER,
    UNBIND,
    Raised,
    Stepping,
)
from headrace.envs.workers.transport import Order, Transport
from headrace.envs.workers.tuning import tried

BEFORE = ("observation", "valid")  # columns that are known before a row's step
OUTCOME = ("reward", "terminated", "truncated", "episode_return", "episode_length")


class WorkerEnv(AsyncEnv):
    """N Gymnasium environments in worker processes behind headrace.envs.base.Env.

    factory() makes one environment. It is sent to the workers by cloudpickle, so the script that defines it needs no
    `if __name__ == "__main__"`. workers: the number of processes; None to choose it by measuring one environment; or
    Workers, which stay open when this is closed. step_timeout: seconds after which a worker that has not answered
    counts as hanging.
    on_error: "raise" an environment's exception, with its traceback and the environment's number; or "restart": make it
    again, truncate its episode, continue, and count it in `restarts`. The same holds for a worker that dies or hangs,
    unless that happens three times in a row after the same number of steps.
    group_by: see envs.gym.agent_groups. With several agents, the argument num_envs counts copies of the environment,
    the attribute columns.
    set_up, clean_up: called in each worker with its number, at the beginning and the end. If there are at most as many
    workers as cores, each is bound to its own cores; set_up may undo that (os.sched_setaffinity).

    step() steps all workers. With start() and get() each steps on its own, in a rollout that rollout() has made:
    `parts` are the environments of each worker.
    Raises TypeError for a function that cannot be sent, and for unsupported spaces.
    """

    backend = "workers"
    device = torch.device("cpu")

    def __init__(
        self,
        factory: Callable[[], gymnasium.Env],
        num_envs: int,
        name: str,
        workers: int | Workers | None = None,
        *,
        step_timeout: float = 60.0,
        on_error: Literal["raise", "restart"] = "raise",
        group_by: Grouping = "spaces",
        set_up: Callable[[int], None] | None = None,
        clean_up: Callable[[int], None] | None = None,
    ) -> None:
        if isinstance(workers, int) and not 1 <= workers <= num_envs:
            raise ValueError(f"workers must be between 1 and num_envs = {num_envs}, got {workers}")
        self.name, self.num_envs, self.factory = name, num_envs, factory
        self.restart = restarts(on_error)
        sent, begin, end = sendable(factory), set_up and sendable(set_up), clean_up and sendable(clean_up)
        owner = workers if isinstance(workers, Workers) else Workers(workers or tried(factory, num_envs, fewest=1))
        check_processes(min(owner.number, num_envs))
        self._transport = Transport(owner.acquire(num_envs), step_timeout)
        self._close = weakref.finalize(self, release, self._transport, owner, owner is workers)
        count = len(self._transport.workers)
        self._lost = [0] * count  # environments of each worker made again because their process was gone ...
        self._lost_before = [0] * count  # ... of these before the last reset
        self._seed = 0  # of the last reset
        self._round: Round | None = None
        self._asked: Settings = {}  # by the last set_params()
        self._numbers: WeakKeyDictionary[SharedRollout, int] = WeakKeyDictionary()  # of those that workers write into
        self._bound: list[int] = []  # numbers that the workers know
        self.parts, tasks = partition(num_envs, count), []
        for place, (first, after) in enumerate((part.start, part.stop) for part in self.parts):
            part = {"first_env": first, "of": num_envs, "restart": self.restart, "group_by": group_by}
            role = partial(Stepping, sent, after - first, name, part)
            tasks.append(Task(role, f"envs {first} to {after - 1} of {name}", place, count, begin, end))
        try:
            self._transport.assign(tasks)
            facts = self._transport.facts[0]
            self.observation_space, self.action_space, self.max_steps, self.agent_groups, self.learned = facts
            if self.agent_groups is not None:  # several agents
                take_agents(self, self.agent_groups)
            self._row = self.rollout(1, self.columns())  # through which other rollouts than the workers' are filled
            self._last = 0, self._row  # the last one that workers have written into, and may be writing into
        except BaseException:
            self.close()
            raise

    def columns(self) -> dict[str, Column | Columns]:
        """The columns that the env writes, and the action."""
        groups = self.agent_groups
        return super().columns() if groups is None else groups.columns(self.num_copies)

    def rollout(self, num_steps: int, columns: Columns) -> SharedRollout:
        """A rollout in shared memory, which the workers write into. Into other rollouts each step is copied."""
        gone = set(self._bound).difference(self._numbers.values())
        for worker in self._transport.workers:
            for number in gone:
                worker.tell(UNBIND, number)
        check_rollout(shared_size(num_steps, self.num_envs, columns), num_steps, self.num_envs, FOLDER)
        rollout = SharedRollout(num_steps, self.num_envs, columns)
        self._numbers[rollout] = max(self._bound, default=-1) + 1
        self._bound = list(self._numbers.values())
        for place in range(len(self.parts)):
            self._bind(place, rollout)
        return rollout

    def _bind(self, worker: int, rollout: SharedRollout) -> None:
        """Let a worker write into a rollout from now on."""
        what = (rollout.num_steps, self.num_envs, rollout.columns, rollout.store.size)
        self._transport.workers[worker].tell(BIND, self._numbers[rollout], what, rollout.store.descriptor)

    def plan(self) -> str:
        """The memory of processes and rollouts, in a line."""
        pids = [worker.process.pid for worker in self._transport.workers]
        shared = sum(rollout.store.size for rollout in self._numbers) / MEGABYTE
        return in_words(f"{self.num_envs} environments of {self.name}", pids, f"rollout {shared:.3g} MB, shared")

    @property
    def restarts(self) -> int:
        """Number of times that an environment had to be made again after a failure."""
        return sum(self._lost) + sum(self._transport.answers)

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Seed every environment and begin its first episode."""
        self._begin(rollout, seed, None)

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        self._begin(rollout, seed, episodes)

    def _begin(self, rollout: Rollout, seed: int, episodes: Round | None) -> None:
        self._seed, self._round, self._lost_before = seed, episodes, list(self._lost)
        number, shared = self._place(rollout)
        self._do(RESET, number, 0, (seed, episodes))
        if episodes:
            repeat_first(shared, self.num_copies, episodes.size)
        if shared is not rollout:
            _copy(BEFORE, shared, 0, rollout, 0)

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment, or reset it where valid[t] is false."""
        number, shared = self._place(rollout)
        if shared is rollout:
            self._do(STEP, number, t)
            return
        _copy(("action", *BEFORE), rollout, t, shared, 0)
        self._do(STEP, number, 0)
        _copy(BEFORE, shared, 1, rollout, t + 1)
        _copy(OUTCOME, shared, 0, rollout, t)

    def start(self, rollout: Rollout, t: int, part: int) -> None:
        """Start the step of one worker's environments from row t, and do not wait for it.

        Raises ValueError for a rollout that the workers do not write into, or a worker that is still at a step.
        """
        number, shared = self._place(rollout)
        if shared is not rollout:
            raise ValueError("workers step on their own only in a rollout that rollout() has made")
        if part in self._transport.orders:
            raise ValueError(f"worker {part} is still at a step: get() tells when it is ready")
        self._transport.start(part, STEP, number * ROWS + t)

    def get(self, timeout: float | None = None) -> list[int]:
        """The workers that have finished their step, as soon as there is one; none after `timeout` seconds, or where
        none was started."""
        try:
            ready, lost = self._transport.get(timeout)
            for worker, order in lost.items():
                self._replace(worker, order)
        except BaseException:
            self.close()  # the others may be in the middle of a step
            raise
        return self.get(timeout) if lost and not ready else ready

    def _set_params(self, params: Settings) -> None:
        check_numbers(params, self.num_copies)
        self._asked = params
        self._do(PARAMS, 0, 0, (dict(params),))

    def apply(self, function: Callable[[Any], Any], indices: Iterable[int] | None = None) -> list[Any]:
        wanted, sent = [*range(self.num_copies)] if indices is None else [*indices], sendable(function)
        parts = [range(*part.indices(self.num_copies)) for part in self.parts]
        counted = [*self._transport.answers]  # the last answers to steps, which `restarts` counts
        self._do(APPLY, 0, 0, [(sent, [number for number in wanted if number in part]) for part in parts])
        answers, self._transport.answers[:] = [*map(pickle.loads, self._transport.answers)], counted
        for answer in answers:
            if isinstance(answer, Raised):
                raise answer.error
        return [answers[place].pop(0) for number in wanted for place, part in enumerate(parts) if number in part]

    def close(self) -> None:
        self._close()

    def _do(self, what: int, number: int, t: int, message: Message | list[Message] = None) -> None:
        """Give all workers an order for row t of a rollout, and wait for them. message: a list has one for each."""
        while self._transport.orders:  # steps that were started and not waited for
            self.get()
        for worker in range(len(self.parts)):
            own = message[worker] if isinstance(message, list) else message
            self._transport.start(worker, what, number * ROWS + t, own)
        while self._transport.orders:
            self.get()

    def _replace(self, worker: int, order: Order) -> None:
        """Replace a lost process by another one that carries out its order, or raise the reason for the loss."""
        if not self.restart or order.what == APPLY:  # the result of a function on lost environments is unknown
            raise self._transport.failure(worker)
        part = self.parts[worker]
        self._lost[worker] += self._transport.answers[worker] + part.stop - part.start
        self._transport.replace(worker)
        for rollout in self._numbers:
            self._bind(worker, rollout)
        lost = self._lost[worker] - self._lost_before[worker]
        taken_over = (self._seed, lost, self._round, dict(self.params))
        self._transport.workers[worker].tell(TAKE_OVER, 0, taken_over)
        if order.what == RESET:
            self._transport.start(worker, RESET, order.where, (self._seed, self._round))
        elif order.what == PARAMS:
            self._transport.start(worker, PARAMS, order.where, (dict(self._asked),))
        else:
            self._transport.start(worker, CUT_OFF, order.where)
            self._transport.answered[worker] = -1  # no step is taken

    def _place(self, rollout: Rollout) -> tuple[int, SharedRollout]:
        """A rollout of the workers and its number: this one, or one of a single row to copy from."""
        if rollout is not self._last[1]:
            number = self._numbers.get(rollout) if isinstance(rollout, SharedRollout) else None
            if number is None or not isinstance(rollout, SharedRollout):
                return 0, self._row
            self._last = number, rollout
        return self._last

    def state_dict(self) -> StateDict:
        """Empty: Gymnasium has no way to save an environment."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Begin a new episode everywhere: the next row is masked."""
        for worker in self._transport.workers:
            worker.tell(RESET_ALL)


def release(transport: Transport, owner: Workers, keep: bool) -> None:
    """Give processes back to their owner, or end them."""
    if keep:
        transport.dismiss()
        owner.release(transport.workers)
    else:
        owner.close()


def _copy(names: tuple[str, ...], source: Rollout, row: int, target: Rollout, to: int) -> None:
    """Copy some columns' row of one rollout to a row of another."""
    for name in names:
        getattr(target, name)[to].copy_(getattr(source, name)[row])


def sendable(thing: object) -> bytes:
    """Pickle a user's function, or data. Raises TypeError, naming what cannot be sent."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(thing)
    except Exception as error:
        raise TypeError(
            f"{thing!r} cannot be sent to a worker process: {error}. Make what it needs (files, locks, sockets, "
            "models on a GPU) inside the function, rather than before"
        ) from error
    return data
