"""Processes with tasks, whatever their role is: orders are given and waited for, failures reported, and lost processes
replaced."""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from headrace.core.cores import cores
from headrace.envs.workers.process import GRACE, WorkerError, WorkerProcess
from headrace.envs.workers.protocol import DISMISS, Message, Task
from headrace.envs.workers.resources import check_memory, own_memory
from headrace.envs.workers.spin_wait import Waiting

TRIES = 3  # losses in a row, or failures to make a role again, after which a process is given up


class Order(NamedTuple):
    """An order that a process has not answered yet."""

    what: int
    where: int
    until: float  # time by monotonic() after which the process counts as hanging


class Transport:
    """Worker processes, each with its task, and the orders that they have not answered yet.

    facts: what the roles have reported, by place; answers: the last answer of each process; answered: how often it has
    answered. timeout: seconds after which one that has not answered counts as hanging. heartbeat: a counter of each
    process, by place, which grows while it works: seconds count from when that was last seen.
    """

    heartbeat: Callable[[int], int] | None = None

    def __init__(self, workers: list[WorkerProcess], timeout: float) -> None:
        self.workers, self.timeout = workers, timeout
        self._beats: dict[int, int] = {}  # by place
        self.orders: dict[int, Order] = {}  # by place
        self.facts: dict[int, Any] = {}
        self.answers: list[Any] = [0] * len(workers)
        self.answered = [0] * len(workers)
        self._lost: list[list[int]] = [[] for _ in workers]  # after how many answers, while that was the same
        self._waiting = Waiting(workers[0].spin)
        self._poll = select.poll()
        self._places: dict[int, int] = {}  # by descriptor
        self._broken: set[int] = set()  # places of processes that may not be used again

    def assign(self, tasks: list[Task]) -> None:
        """Let the processes make their roles, all at once, and wait until they are made. Raises what making one raises,
        and MemoryError where they do not fit."""
        count = len(tasks)
        # many processes may need too much memory: measure the first one
        for some in (range(1), range(1, count)) if count > cores() else (range(count),):
            if some.start:
                check_memory(count, own_memory(self.workers[0].process.pid))
            self._broken.update(some)  # until their roles are made
            for place in some:
                self.workers[place].assign(tasks[place])
            for place in some:
                self.facts[place] = self.workers[place].facts()
                self._broken.discard(place)

    def start(self, place: int, what: int, where: int, message: Message = None) -> None:
        """Give one process an order that it will answer."""
        worker = self.workers[place]
        worker.tell(what, where, message)
        descriptor = worker.orders.fileno()
        self._places[descriptor] = place
        self._poll.register(descriptor, select.POLLIN)
        self.orders[place] = Order(what, where, monotonic() + self.timeout)

    def get(self, timeout: float | None = None) -> tuple[list[int], dict[int, Order]]:
        """Wait until a process has answered, has died or hangs: the places of those that have answered, and the orders
        of lost ones. Both are empty where no order is open, or after `timeout` seconds.

        Raises the exception of a role.
        """
        if not self.orders:
            return [], {}
        hanging = min(order.until for order in self.orders.values())
        until = hanging if timeout is None else min(hanging, monotonic() + timeout)
        events = self._waiting.poll(self._poll, until - monotonic())
        ready, lost = [], {}
        for descriptor, _ in events:
            place = self._places[descriptor]
            order = self._done(place)
            try:
                self.answers[place] = self.workers[place].answer()
            except WorkerError:
                lost[place] = order
            except BaseException:
                self._broken.add(place)
                raise
            else:
                self.answered[place] += 1
                ready.append(place)
        if not events:
            now = monotonic()
            late = [place for place, order in self.orders.items() if order.until <= now and not self._beating(place)]
            lost = {place: self._done(place) for place in late}
        self._broken.update(lost)
        return sorted(ready), lost

    def _beating(self, place: int) -> bool:
        """Whether a process that is late has worked since it was last asked: then it has as much time again."""
        if self.heartbeat is None or (beat := self.heartbeat(place)) == self._beats.get(place):
            return False
        self._beats[place] = beat
        self.orders[place] = self.orders[place]._replace(until=monotonic() + self.timeout)
        return True

    def _done(self, place: int) -> Order:
        descriptor = self.workers[place].orders.fileno()
        self._poll.unregister(descriptor)
        del self._places[descriptor]
        return self.orders.pop(place)

    def failure(self, place: int) -> WorkerError:
        """Why a process has not answered."""
        worker = self.workers[place]
        if not worker.process.is_alive():
            return worker.death()
        return WorkerError(f"{worker} has not answered for {self.timeout:g} s: it hangs, or step_timeout is too short")

    def replace(self, place: int, progress: int | None = None) -> None:
        """Start another process with the task of a lost one, and wait until its role is made, which is tried several
        times.

        Raises why it was lost where that has happened TRIES times in a row at the same progress: None for the number
        of its answers.
        """
        worker, count = self.workers[place], self.answered[place] if progress is None else progress
        self._lost[place] = [*self._lost[place], count] if count in self._lost[place][-1:] else [count]
        if len(self._lost[place]) == TRIES:
            error = self.failure(place)
            error.add_note(
                f"It is not started again: this has happened {TRIES} times in a row, each time after as many answers."
            )
            raise error
        for left in reversed(range(TRIES)):
            worker.end(0.0)
            worker.assign(worker.task)
            try:
                self.facts[place] = worker.facts()
                break
            except Exception:
                if not left:
                    raise
        self.answers[place] = self.answered[place] = 0
        self._broken.discard(place)

    def dismiss(self) -> None:
        """Let all processes close their roles; end those that are still at an order."""
        until = monotonic() + GRACE
        while self.orders and monotonic() < until:
            try:
                self.get(until - monotonic())
            except Exception:  # nothing is left to report it to
                continue
        for place, worker in enumerate(self.workers):
            if place in self._broken or place in self.orders:
                worker.end(0.0)
            elif worker.running and place in self.facts:
                worker.tell(DISMISS)
