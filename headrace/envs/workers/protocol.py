"""The code of a worker process: it runs some of the environments, on their part of the shared rollouts."""

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
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gymnasium.spaces import Space

    from headrace.data.rollout import Rollout
    from headrace.envs.gym.agent_groups import AgentGroups, Grouping

ORDER = struct.Struct("<iq")  # operation, and rollout and row
ANSWER = struct.Struct("<i")  # how many environments it has made again, or FAILED, followed by a Failure
FAILED = -1
ASSIGN, BIND, RESET, STEP, RESET_ALL, TAKE_OVER, DISMISS, CLOSE = range(8)
ROWS = 2**32  # a rollout's number is stored in the bits above its row
Message = int | tuple | None  # what follows an order
GONE = (EOFError, BrokenPipeError, ConnectionResetError)  # raised where the other process is gone


class Task(NamedTuple):
    """The environments that a worker runs. Functions are pickled by cloudpickle."""

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
    group_by: Grouping = "spaces"

    def envs(self) -> slice:
        """Its environments among all."""
        return slice(self.first, self.first + self.size)

    def cores(self, allowed: list[int]) -> list[int]:
        """Its part of the cores; all of them where there are more workers than cores.

        Workers woken at the same time may be put on one core while another is idle, and wait for milliseconds.
        """
        number = len(allowed)
        share = allowed[number * self.place // self.workers : number * (self.place + 1) // self.workers]
        return share if self.workers <= number else allowed


class EnvFacts(NamedTuple):
    """What a worker reports once its environments are made."""

    observation_space: Space
    action_space: Space
    max_steps: int | None
    agent_groups: AgentGroups | None  # of several agents


class Failure(NamedTuple):
    """An exception, as the parent can raise it again."""

    error: bytes | None  # pickled, where it can be
    text: str  # its traceback


def run(orders: Connection, spin: float) -> None:
    """Run one task after another, until CLOSE or the end of the parent. spin: see spin_wait.Waiting."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    torch.set_num_threads(1)
    inbox = _Inbox(orders, spin)
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    with suppress(*GONE):
        while inbox.order()[0] == ASSIGN and _serve(inbox, orders.recv(), allowed):
            pass


def _serve(inbox: _Inbox, task: Task, allowed: list[int]) -> bool:
    """Run a task until it ends: whether there may be another one. allowed: cores, [] if unknown."""
    worker: _Worker | None = None
    try:
        if allowed:
            os.sched_setaffinity(0, task.cores(allowed))
        if task.set_up is not None:
            pickle.loads(task.set_up)(task.place)
        worker = _Worker(task, inbox)
        inbox.orders.send(worker.facts())
        while (last := worker.carry_out()) is None:
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
    """Receives a worker's orders."""

    def __init__(self, orders: Connection, spin: float) -> None:
        from headrace.envs.workers.spin_wait import Waiting

        self.orders, self._waiting = orders, Waiting(spin)
        self._poll = select.poll()
        self._poll.register(orders.fileno(), select.POLLIN)

    def order(self) -> tuple[int, int]:
        """The next order: operation, and rollout and row. Raises EOFError where the parent is gone."""
        while not self._waiting.poll(self._poll, 3600.0):
            pass
        what, where = ORDER.unpack(read(self.orders.fileno(), ORDER.size))
        return what, where


class _Worker:
    """Environments and the rollouts they write into."""

    def __init__(self, task: Task, inbox: _Inbox) -> None:
        from headrace.envs.gym.pettingzoo import inline

        factory = pickle.loads(task.factory)
        self.task, self.inbox, self.orders = task, inbox, inbox.orders
        part = {"first_env": task.first, "of": task.of, "restart": task.restart}
        self.env = inline(factory, task.size, task.name, group_by=task.group_by, **part)
        self.rollouts: list[Rollout] = []

    def facts(self) -> EnvFacts:
        env = self.env
        return EnvFacts(env.observation_space, env.action_space, env.max_steps, env.agent_groups)

    def carry_out(self) -> int | None:
        """Carry out one order, and answer where that is expected. Returns the order if it is the last, else None."""
        what, where = self.inbox.order()
        rollout, t = divmod(where, ROWS)
        if what == STEP:
            self.env.step(self.rollouts[rollout], t)
        elif what == RESET:
            self.env.reset(self.rollouts[rollout], self.orders.recv())
        elif what == BIND:
            self._bind()
        elif what == RESET_ALL:
            self.env.load_state_dict({})
        elif what == TAKE_OVER:
            self.env.take_over(*self.orders.recv())
        else:
            return what
        if what in (STEP, RESET):
            os.write(self.orders.fileno(), ANSWER.pack(self.env.restarts))
        return None

    def _bind(self) -> None:
        from headrace.data.shared_memory import Memory, SharedRollout

        num_steps, num_envs, columns, size = self.orders.recv()
        memory = Memory(size, recv_handle(self.orders))
        rollout = SharedRollout(num_steps, num_envs, columns, memory)
        memory.close()
        self.rollouts.append(self.env.part(rollout))


def _report(orders: Connection, error: BaseException, asked: bool) -> None:
    """Send an exception to the parent, with its notes and traceback. asked: instead of an answer."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # some exceptions cannot be pickled or unpickled
        pickled = None
    with suppress(*GONE):
        if asked:
            os.write(orders.fileno(), ANSWER.pack(FAILED))
        orders.send(Failure(pickled, text))


def _end_with_the_parent() -> None:
    """End this process with its parent, even in a step that hangs."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def read(descriptor: int, size: int) -> bytes:
    """Exactly `size` bytes. Raises EOFError where the other end is closed."""
    content = b""
    while len(content) < size:
        more = os.read(descriptor, size - len(content))
        if not more:
            raise EOFError
        content += more
    return content
