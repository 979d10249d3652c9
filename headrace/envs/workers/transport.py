"""Processes with tasks of any role: give orders and wait for them, report failures, and replace lost processes."""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from headrace.core.cores import cores
from headrace.envs.workers.process import GRACE, START_TIMEOUT, ProcessLost, WorkerError, WorkerProcess
from headrace.envs.workers.protocol import ASSIGN, DISMISS, Message, Task
from headrace.envs.workers.resources import check_memory, own_memory
from headrace.envs.workers.spin_wait import Waiting

TRIES = 3  # losses in a row, or failures to make a role again, after which a process is given up
LOOKS = 8  # number of heartbeat checks within the time after which a process counts as hanging


class Order(NamedTuple):
    """An order that a process has not answered yet."""

    what: int
    where: int
    seconds: float  # after which the process counts as hanging ...
    until: float  # ... and when that is, by monotonic()


class Transport:
    """Worker processes, each with its task, and the orders that they have not answered yet.

    facts: the roles' reports, by place. answers: the last answer of each process. answered: number of its answers.
    timeout: seconds without an answer after which a process counts as hanging. heartbeat: a counter of each process, by
    place, which grows while it works; seconds count from its last growth.
    """

    heartbeat: Callable[[int], int] | None = None

    def __init__(self, workers: list[WorkerProcess], timeout: float) -> None:
        self.workers, self.timeout = workers, timeout
        self._beats: dict[int, int] = {}  # by place
        self.orders: dict[int, Order] = {}  # by place
        self.facts: dict[int, Any] = {}
        self.answers: list[Any] = [0] * len(workers)
        self.answered = [0] * len(workers)
        self._lost: list[list[int]] = [[] for _ in workers]  # equal numbers of answers at its last losses
        self._causes: dict[int, Exception] = {}  # why processes are lost that have not ended, by place
        self._waiting = Waiting(workers[0].spin)
        self._poll = select.poll()
        self._places: dict[int, int] = {}  # by descriptor
        self._broken: set[int] = set()  # places of processes that may not be used again

    def assign(self, tasks: list[Task]) -> None:
        """Let all processes make their roles at the same time, and wait for them. Raises the exception of making one,
        and MemoryError if they do not fit."""
        count = len(tasks)
        # many processes may need too much memory: measure the first one
        for some in (range(1), range(1, count)) if count > cores() else (range(count),):
            if some.start:
                check_memory(count, own_memory(self.workers[0].process.pid))
            self._broken.update(some)  # until their roles are made
            for place in some:
                self.workers[place].assign(tasks[place])
            for place in some:
                self.facts[place] = self._made(place, ProcessLost)
                self._broken.discard(place)

    def _made(self, place: int, failure: type[Exception]) -> Any:
        """Wait for the facts of a role. After a failure another process makes it, up to TRIES times in total."""
        worker = self.workers[place]
        for _ in range(TRIES - 1):
            try:
                return worker.facts()
            except failure:
                worker.end(0.0)
                worker.assign(worker.task, worker.state)
        return worker.facts()

    def start(self, place: int, what: int, where: int, message: Message = None, timeout: float | None = None) -> None:
        """Give one process an order that it will answer. timeout: seconds, if not the usual ones."""
        # the heartbeat is read before the step can begin: later, a step that hangs at once would already be counted
        self._expect(place, what, where, timeout or self.timeout)
        self.workers[place].tell(what, where, message)

    def _expect(self, place: int, what: int, where: int, seconds: float) -> None:
        descriptor = self.workers[place].orders.fileno()
        self._places[descriptor] = place
        self._poll.register(descriptor, select.POLLIN)
        self.orders[place] = Order(what, where, seconds, monotonic() + seconds)
        if self.heartbeat is not None:
            self._beats[place] = self.heartbeat(place)

    def awaited(self) -> list[int]:
        """The descriptors that answers are read from, of the processes that have not answered."""
        return list(self._places)

    def get(self, timeout: float | None = None) -> tuple[list[int], dict[int, Order]]:
        """Wait until a process has answered, has died or hangs. Returns the places of processes that have answered, and
        the orders of lost ones. Both may be empty: if no order is open, after `timeout` seconds, or for a check of
        heartbeats.

        Raises the exception of a role.
        """
        if not self.orders:
            return [], {}
        until = min(order.until for order in self.orders.values())
        if self.heartbeat is not None:
            until = min(until, monotonic() + self.timeout / LOOKS)
        if timeout is not None:
            until = min(until, monotonic() + timeout)
        events = self._waiting.poll(self._poll, until - monotonic())
        ready, lost = [], {}
        for descriptor, _ in events:
            place = self._places[descriptor]
            order = self._done(place)
            if self._read(place, order):
                ready.append(place)
            else:
                lost[place] = order
        if not events:
            lost = self._late()
        self._broken.update(lost)
        return sorted(ready), lost

    def _read(self, place: int, order: Order) -> bool:
        """Read an answer. Returns whether there is one. Raises a role's exception, unless the role is being made
        again."""
        worker = self.workers[place]
        try:
            if order.what == ASSIGN:
                self.facts[place] = worker.facts()
                self._broken.discard(place)
                return True
            self.answers[place] = worker.answer()
        except ProcessLost:
            return False
        except BaseException as error:
            if order.what == ASSIGN and isinstance(error, Exception):
                self._causes[place] = error
                return False
            self._broken.add(place)
            raise
        self.answered[place] += 1
        return True

    def _late(self) -> dict[int, Order]:
        """Orders of processes that hang. A process that has worked since the last check gets the full time again."""
        now, late = monotonic(), {}
        for place, order in list(self.orders.items()):
            if self.heartbeat is not None and (beat := self.heartbeat(place)) != self._beats[place]:
                self._beats[place] = beat
                self.orders[place] = order._replace(until=now + self.timeout, seconds=self.timeout)
            elif order.until <= now:
                late[place] = self._done(place)
                what = "has not answered" if self.heartbeat is None else "has neither answered nor taken a step"
                hanging = f"{what} for {order.seconds:g} s: it hangs, or step_timeout is too short"
                self._causes[place] = WorkerError(f"{self.workers[place]} {hanging}")
        return late

    def _done(self, place: int) -> Order:
        descriptor = self.workers[place].orders.fileno()
        self._poll.unregister(descriptor)
        del self._places[descriptor]
        return self.orders.pop(place)

    def failure(self, place: int) -> Exception:
        """Reason why a process is lost."""
        return self._causes.get(place) or self.workers[place].death()

    def replace(self, place: int, progress: int | None = None) -> None:
        """Start another process with the task of a lost one, and wait until its role is made. Tries several times.

        Raises the reason for the loss if it has happened TRIES times in a row at the same progress.
        progress: None stands for the number of answers that the process has given.
        """
        self._start_again(place, progress)
        self.facts[place] = self._made(place, Exception)
        self._broken.discard(place)

    def begin_replacing(self, place: int, progress: int) -> None:
        """Same as replace(), without waiting. get() reports when the role is made, or if this process is lost, too."""
        self._start_again(place, progress)
        self._expect(place, ASSIGN, 0, START_TIMEOUT)

    def _start_again(self, place: int, progress: int | None) -> None:
        worker, count = self.workers[place], self.answered[place] if progress is None else progress
        self._lost[place] = [*self._lost[place], count] if count in self._lost[place][-1:] else [count]
        if len(self._lost[place]) == TRIES:
            error = self.failure(place)
            error.add_note(
                f"It is not started again: this has happened {TRIES} times in a row, each time after as many answers, "
                f"{count}."
            )
            raise error
        self._causes.pop(place, None)
        worker.end(0.0)
        worker.assign(worker.task, worker.state)
        self.answers[place] = self.answered[place] = 0

    def finish_orders(self, seconds: float) -> None:
        """Wait `seconds` for open orders. End processes that have not finished then, or cannot be used again."""
        until = monotonic() + seconds
        while self.orders and monotonic() < until:
            try:
                self.get(until - monotonic())
            except Exception:  # nothing is left to report it to
                continue
        for place, worker in enumerate(self.workers):
            if place in self._broken or place in self.orders:
                worker.end(0.0)

    def dismiss(self) -> None:
        """Let all processes close their roles, and end those that are still carrying out an order."""
        self.finish_orders(GRACE)
        for place, worker in enumerate(self.workers):
            if worker.running and place in self.facts:
                worker.tell(DISMISS)
