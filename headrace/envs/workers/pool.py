"""Several workers and what each of them is at: told together or one by one, waited for as they become ready."""

from __future__ import annotations

import select
from time import monotonic
from typing import Any, NamedTuple

from headrace.core.cores import cores
from headrace.data.shared_memory import SharedRollout
from headrace.envs.workers.process import GRACE, WorkerError, WorkerProcess
from headrace.envs.workers.protocol import Facts, Task
from headrace.envs.workers.resources import check_memory, own_memory
from headrace.envs.workers.spin_wait import Waiting

__all__ = ["Order", "WorkerError", "WorkerPool"]


class Order(NamedTuple):
    """What a worker was told and has not answered yet."""

    what: int
    where: int
    until: float  # of monotonic(): when it counts as hanging


class WorkerPool:
    """Workers with tasks. Raises what making an environment raises."""

    def __init__(self, workers: list[WorkerProcess], tasks: list[Task], step_timeout: float) -> None:
        self.workers, self.step_timeout = workers, step_timeout
        self.orders: dict[int, Order] = {}  # by place, of those that are at it
        self._waiting = Waiting(workers[0].spin)
        self._poll = select.poll()
        self._places: dict[int, int] = {}  # by descriptor
        self._broken: set[int] = set()  # places of workers that nobody may be given again
        self.facts: Facts
        try:
            # more processes than cores may be more than there is memory for: the first tells what one takes
            for some in (range(1), range(1, len(workers))) if len(workers) > cores() else (range(len(workers)),):
                if some.start:
                    check_memory(len(workers), own_memory(workers[0].process.pid))
                self._engage(tasks, some)
        except BaseException:
            self.dismiss()
            raise

    def _engage(self, tasks: list[Task], places: range) -> None:
        """Have workers make their environments, all at once, and wait until they are made."""
        self._broken.update(places)  # until they have said their facts
        for place in places:
            self.workers[place].engage(tasks[place])
        for place in places:
            self.facts = self.workers[place].facts()
            self._broken.discard(place)

    def tell(self, what: int, where: int = 0, message: Any = None) -> None:
        """Give all workers an order that is not answered."""
        for worker in self.workers:
            worker.tell(what, where, message)

    def bind(self, rollout: SharedRollout) -> None:
        """Let all workers write into a rollout from now on."""
        for worker in self.workers:
            worker.bind(rollout)

    def start(self, place: int, what: int, where: int, message: Any = None) -> None:
        """Give one worker an order that it will answer."""
        worker = self.workers[place]
        worker.tell(what, where, message)
        descriptor = worker.orders.fileno()
        self._places[descriptor] = place
        self._poll.register(descriptor, select.POLLIN)
        self.orders[place] = Order(what, where, monotonic() + self.step_timeout)

    def get(self, timeout: float | None = None) -> tuple[list[int], dict[int, Order]]:
        """Wait until a worker has answered, or is dead or hanging: the places of those that have answered, and what
        those were at that are lost. Nothing where none is at anything, or after `timeout` seconds.

        Raises what a worker's environment raised.
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
                self.workers[place].answer()
            except WorkerError:
                lost[place] = order
            except BaseException:
                self._broken.add(place)
                raise
            else:
                ready.append(place)
        if not events:
            now = monotonic()
            late = [place for place, order in self.orders.items() if order.until <= now]
            lost = {place: self._done(place) for place in late}
        self._broken.update(lost)
        return sorted(ready), lost

    def _done(self, place: int) -> Order:
        descriptor = self.workers[place].orders.fileno()
        self._poll.unregister(descriptor)
        del self._places[descriptor]
        return self.orders.pop(place)

    def failure(self, place: int) -> WorkerError:
        """Why a worker has not answered."""
        return self.workers[place].failure(self.step_timeout)

    def replace(self, place: int, rollouts: list[SharedRollout], seed: int) -> None:
        """Start another process in the place of one that is lost."""
        self.workers[place].replace(rollouts, seed)
        self._broken.discard(place)

    def restarts(self) -> int:
        """Environments that had to be made anew so far."""
        return sum(worker.lost + worker.restarts for worker in self.workers)

    def dismiss(self) -> None:
        """Have all workers close their environments; those that are not free to are ended."""
        until = monotonic() + GRACE
        while self.orders and monotonic() < until:
            try:
                self.get(until - monotonic())
            except Exception:  # whoever was to hear of it has gone
                continue
        for place, worker in enumerate(self.workers):
            if place in self._broken or place in self.orders:
                worker.end(0.0)
            elif worker.running:
                worker.dismiss()
