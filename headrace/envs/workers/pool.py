"""Several workers and the orders that they have not answered yet, waited for as they become ready."""

from __future__ import annotations

import select
from time import monotonic
from typing import NamedTuple

from headrace.core.cores import cores
from headrace.data.shared_memory import SharedRollout
from headrace.envs.workers.process import GRACE, WorkerError, WorkerProcess
from headrace.envs.workers.protocol import EnvFacts, Message, Task
from headrace.envs.workers.resources import check_memory, own_memory
from headrace.envs.workers.spin_wait import Waiting


class Order(NamedTuple):
    """An order that a worker has not answered yet."""

    what: int
    where: int
    until: float  # time by monotonic() after which the worker counts as hanging


class WorkerPool:
    """Workers with tasks. Raises what making an environment raises."""

    def __init__(self, workers: list[WorkerProcess], tasks: list[Task], step_timeout: float) -> None:
        self.workers, self.step_timeout = workers, step_timeout
        self.orders: dict[int, Order] = {}  # by place
        self._waiting = Waiting(workers[0].spin)
        self._poll = select.poll()
        self._places: dict[int, int] = {}  # by descriptor
        self._broken: set[int] = set()  # places of workers that may not be used again
        self.facts: EnvFacts
        try:
            # many processes may need too much memory: measure the first one
            for some in (range(1), range(1, len(workers))) if len(workers) > cores() else (range(len(workers)),):
                if some.start:
                    check_memory(len(workers), own_memory(workers[0].process.pid))
                self._assign(tasks, some)
        except BaseException:
            self.dismiss()
            raise

    def _assign(self, tasks: list[Task], places: range) -> None:
        """Let workers make their environments, all at once, and wait until they are made."""
        self._broken.update(places)  # until their environments are made
        for place in places:
            self.workers[place].assign(tasks[place])
        for place in places:
            self.facts = self.workers[place].facts()
            self._broken.discard(place)

    def tell(self, what: int, where: int = 0, message: Message = None) -> None:
        """Give all workers an order that is not answered."""
        for worker in self.workers:
            worker.tell(what, where, message)

    def bind(self, rollout: SharedRollout) -> None:
        """Let all workers write into a rollout from now on."""
        for worker in self.workers:
            worker.bind(rollout)

    def start(self, place: int, what: int, where: int, message: Message = None) -> None:
        """Give one worker an order that it will answer."""
        worker = self.workers[place]
        worker.tell(what, where, message)
        descriptor = worker.orders.fileno()
        self._places[descriptor] = place
        self._poll.register(descriptor, select.POLLIN)
        self.orders[place] = Order(what, where, monotonic() + self.step_timeout)

    def get(self, timeout: float | None = None) -> tuple[list[int], dict[int, Order]]:
        """Wait until a worker has answered, has died or hangs: the places of those that have answered, and the orders
        of lost ones. Both are empty where no order is open, or after `timeout` seconds.

        Raises the exception of a worker's environment.
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
        """Start another process in the place of a lost one."""
        self.workers[place].replace(rollouts, seed)
        self._broken.discard(place)

    def restarts(self) -> int:
        """Environments that had to be made again after a failure."""
        return sum(worker.lost + worker.restarts for worker in self.workers)

    def dismiss(self) -> None:
        """Let all workers close their environments; end those that are still at an order."""
        until = monotonic() + GRACE
        while self.orders and monotonic() < until:
            try:
                self.get(until - monotonic())
            except Exception:  # nothing is left to report it to
                continue
        for place, worker in enumerate(self.workers):
            if place in self._broken or place in self.orders:
                worker.end(0.0)
            elif worker.running:
                worker.dismiss()
