"""What runs in a worker process: some of the environments, on their part of the shared rollouts."""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import threading
import traceback
from contextlib import suppress
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, NamedTuple

ORDER = struct.Struct("<iq")  # what to do, and with which rollout and row
ANSWER = struct.Struct("<i")  # how many environments it has made anew, or that it has failed and tells how
FAILED = -1
ENGAGE, BIND, RESET, STEP, BEGIN_ANEW, ADOPT, DISMISS, CLOSE = range(8)
ROWS = 2**32  # a rollout's number is written above its row
GONE = (EOFError, BrokenPipeError, ConnectionResetError)  # what it looks like when the other process is gone


class Task(NamedTuple):
    """Which environments a worker is to run. Functions are pickled by cloudpickle."""

    factory: bytes  # gives an environment
    set_up: bytes | None  # called with the worker's place before anything else
    clean_up: bytes | None  # likewise at the end
    name: str
    place: int  # which worker it is
    workers: int  # of so many
    first: int  # its environments among all
    size: int
    of: int
    restart: bool
    group_by: Any = "spaces"

    def envs(self) -> slice:
        """Its environments among all."""
        return slice(self.first, self.first + self.size)

    def cores(self, allowed: list[int]) -> list[int]:
        """Its share of the cores, all of them where there are more workers.

        Workers that are woken together may land on one core while another idles, and wait there for milliseconds.
        """
        number = len(allowed)
        share = allowed[number * self.place // self.workers : number * (self.place + 1) // self.workers]
        return share if self.workers <= number else allowed


class Facts(NamedTuple):
    """What a worker says once its environments are made."""

    observation_space: Any
    action_space: Any
    max_steps: int | None
    agent_groups: Any  # headrace.envs.gym.agent_groups.AgentGroups, where several agents share a world; else None


class Failure(NamedTuple):
    """An exception, as the parent can raise it again."""

    error: bytes | None  # pickled, where it can be
    text: str  # its traceback


def run(orders: Connection, spin: float) -> None:
    """Run one set of environments after another, until told to close or the parent is gone. spin: see Waiting."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then tells
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    torch.set_num_threads(1)
    inbox = _Inbox(orders, spin)
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    with suppress(*GONE):
        while inbox.order()[0] == ENGAGE and _serve(inbox, orders.recv(), allowed):
            pass


def _serve(inbox: _Inbox, task: Task, allowed: list[int]) -> bool:
    """Run environments until told to stop: whether there may be others after them. allowed: cores, [] if unknown."""
    worker: _Worker | None = None
    try:
        if allowed:
            os.sched_setaffinity(0, task.cores(allowed))
        if task.set_up is not None:
            pickle.loads(task.set_up)(task.place)
        worker = _Worker(task, inbox)
        inbox.orders.send(Facts(*worker.facts()))
        while (last := worker.obey()) is None:
            pass
        return last == DISMISS
    except GONE:
        raise
    except BaseException as error:
        _report(inbox.orders, error, asked=worker is not None)
        return False
    finally:
        if worker is not None:
            worker.env.close()
        if task.clean_up is not None:
            pickle.loads(task.clean_up)(task.place)


class _Inbox:
    """Where a worker's orders come in."""

    def __init__(self, orders: Connection, spin: float) -> None:
        from headrace.envs.workers.spin_wait import Waiting

        self.orders, self._waiting = orders, Waiting(spin)
        self._poll = select.poll()
        self._poll.register(orders.fileno(), select.POLLIN)

    def order(self) -> tuple[int, int]:
        """The next order: what to do, and with which rollout and row. Raises EOFError where the parent is gone."""
        while not self._waiting.poll(self._poll, 3600.0):
            pass
        what, where = ORDER.unpack(read(self.orders.fileno(), ORDER.size))
        return what, where


class _Worker:
    """Environments and the rollouts they write into."""

    def __init__(self, task: Task, inbox: _Inbox) -> None:
        from headrace.envs.gym.in_process import inline

        factory = pickle.loads(task.factory)
        self.task, self.inbox, self.orders = task, inbox, inbox.orders
        part = {"first_env": task.first, "of": task.of, "restart": task.restart}
        self.env = inline(factory, task.size, task.name, group_by=task.group_by, **part)
        self.rollouts: list[Any] = []

    def facts(self) -> tuple[Any, ...]:
        agent_groups = getattr(self.env, "agent_groups", None)
        return self.env.observation_space, self.env.action_space, self.env.max_steps, agent_groups

    def obey(self) -> int | None:
        """Carry out one order, and answer where one is expected: the order if it is the last, else None."""
        what, where = self.inbox.order()
        rollout, t = divmod(where, ROWS)
        if what == STEP:
            self.env.step(self.rollouts[rollout], t)
        elif what == RESET:
            self.env.reset(self.rollouts[rollout], self.orders.recv())
        elif what == BIND:
            self._bind()
        elif what == BEGIN_ANEW:
            self.env.load_state_dict({})
        elif what == ADOPT:
            self.env.adopt(*self.orders.recv())
        else:
            return what
        if what in (STEP, RESET):
            os.write(self.orders.fileno(), ANSWER.pack(self.env.restarts))
        return None

    def _bind(self) -> None:
        from headrace.data.shared_memory import Memory, shared_rollout

        num_steps, num_envs, columns, size = self.orders.recv()
        memory = Memory(size, recv_handle(self.orders))
        rollout = shared_rollout(num_steps, num_envs, columns, memory)
        memory.close()
        self.rollouts.append(self.env.part(rollout))


def _report(orders: Connection, error: BaseException, asked: bool) -> None:
    """Send an exception to the parent, with its notes and traceback. asked: in the place of an answer."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # some cannot be sent, or not be made again
        pickled = None
    with suppress(*GONE):
        if asked:
            os.write(orders.fileno(), ANSWER.pack(FAILED))
        orders.send(Failure(pickled, text))


def _end_with_the_parent() -> None:
    """A step that hangs must not outlive those who wait for it."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def read(descriptor: int, size: int) -> bytes:
    """Exactly so many bytes. Raises EOFError where the other end is closed."""
    content = b""
    while len(content) < size:
        more = os.read(descriptor, size - len(content))
        if not more:
            raise EOFError
        content += more
    return content
