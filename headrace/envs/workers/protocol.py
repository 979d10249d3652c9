"""The code of a worker process: it receives a task from its parent, and carries out orders with the task's role.

The role determines the work, such as stepping environments. Transport has the operations that a parent can do with any
process.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from headrace.core.text import is_message
from headrace.core.trust import code_of
from headrace.envs.workers import lifetime

ORDER = struct.Struct("<iq")  # operation, and a number that it needs
ANSWER = struct.Struct("<i")  # 0 or more; or RESULT, followed by an object, or FAILED, followed by a Failure
FAILED, RESULT = -1, -2
ASSIGN, DISMISS, CLOSE = -1, -2, -3  # operations of every process; those of roles are 0 or more
Message = int | tuple | bytes | None  # what follows an order
# raised where the other process is gone; the last one where it stopped in the middle of a message
GONE = (EOFError, BrokenPipeError, ConnectionResetError, BlockingIOError)


class Role(Protocol):
    """The work of a process while it has a task."""

    facts: Any  # sent to the parent once the role is ready for orders

    def carry_out(self, what: int, where: int) -> Any:
        """Carry out an order. Returns the answer, a number from 0 on or an object that can be pickled, if the parent
        waits for one; otherwise None."""

    def close(self) -> None:
        """Free what the role holds."""


class Task(NamedTuple):
    """A task for a process. Functions of users are pickled by cloudpickle."""

    role: Callable[[Connection], Role]  # makes it, in the process; messages of orders are read from the connection
    name: str  # what the role is about, for messages
    place: int  # the worker's number
    workers: int  # number of workers
    set_up: bytes | None = None  # called with the worker's place before anything else
    clean_up: bytes | None = None  # likewise at the end
    kind: str = "worker"  # what such a process is called
    refused: tuple[str, ...] = ()  # folders whose code the parent would not run

    def cores(self, allowed: list[int]) -> list[int]:
        """The worker's part of the cores; all of them if there are more workers than cores.

        Workers woken at the same time may be put on one core while another is idle, and wait for milliseconds.
        """
        number = len(allowed)
        share = allowed[number * self.place // self.workers : number * (self.place + 1) // self.workers]
        return share if self.workers <= number else allowed


NO_TASK = Task(lambda orders: None, "", 0, 1)  # type: ignore[arg-type, return-value]


class Failure(NamedTuple):
    """An exception in a form that the parent can raise again."""

    error: bytes | None  # pickled, where it can be
    text: str  # its traceback
    is_message: bool = False  # see core.text.is_message(): the user needs no traceback


def run(orders: Connection, spin: float) -> None:
    """Run one task after another, until CLOSE or the end of the parent. spin: see spin_wait.Waiting."""
    import torch

    lifetime.begin()
    torch.set_num_threads(1)
    receive = _receiver(orders, spin)

    def serve() -> bool:
        state, refused, pickled = orders.recv()
        state.enter()
        with code_of(*refused):
            return _serve(orders, receive, pickled, list(state.cores))

    with suppress(*GONE):
        while receive()[0] == ASSIGN and serve():
            pass


def _serve(orders: Connection, receive: Callable[[], tuple[int, int]], pickled: bytes, allowed: list[int]) -> bool:
    """Run a task until it ends. Returns whether another one may follow. allowed: cores, [] if unknown."""
    role: Role | None = None
    task = NO_TASK
    try:
        task = pickle.loads(pickled)
        if allowed:
            os.sched_setaffinity(0, task.cores(allowed))
        if task.set_up is not None:
            pickle.loads(task.set_up)(task.place)
        role = task.role(orders)
        orders.send(role.facts)
        while True:
            what, where = receive()
            if what in (DISMISS, CLOSE):
                return what == DISMISS
            answer = role.carry_out(what, where)
            if isinstance(answer, int):
                os.write(orders.fileno(), ANSWER.pack(answer))
            elif answer is not None:
                os.write(orders.fileno(), ANSWER.pack(RESULT))
                orders.send(answer)
    except GONE:
        raise
    except BaseException as error:
        _report(orders, error, asked=role is not None)
        return False
    finally:
        if role is not None:
            role.close()
        if task.clean_up is not None:
            pickle.loads(task.clean_up)(task.place)


def _receiver(orders: Connection, spin: float) -> Callable[[], tuple[int, int]]:
    """Make a function that waits for the next order, operation and number. It raises EOFError if the parent is gone."""
    from headrace.envs.workers.spin_wait import Waiting

    waiting, poll = Waiting(spin), select.poll()
    poll.register(orders.fileno(), select.POLLIN)

    def receive() -> tuple[int, int]:
        while not waiting.poll(poll, 3600.0):
            pass
        what, where = ORDER.unpack(read(orders.fileno(), ORDER.size))
        return what, where

    return receive


def _report(orders: Connection, error: BaseException, asked: bool) -> None:
    """Send an exception to the parent, with its notes and traceback. asked: instead of an answer."""
    text, message = "".join(traceback.format_exception(error)), _is_whole_message(error)
    if not isinstance(error, Exception):  # it would end the parent without a word
        error = RuntimeError(f"{error!r} was raised in a worker process")
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # some exceptions cannot be pickled or unpickled
        pickled = None
    with suppress(*GONE):
        if asked:
            os.write(orders.fileno(), ANSWER.pack(FAILED))
        orders.send(Failure(pickled, text, message and pickled is not None))


def _is_whole_message(error: BaseException) -> bool:
    """Tell whether an error's message is enough for the user. It is not for exceptions of the environment's code, whose
    position matters."""
    cause = error.__cause__
    return is_message(error) and (cause is None or isinstance(cause, ImportError) or is_message(cause))


def read(descriptor: int, size: int) -> bytes:
    """Exactly `size` bytes. Raises EOFError where the other end is closed."""
    content = b""
    while len(content) < size:
        more = os.read(descriptor, size - len(content))
        if not more:
            raise EOFError
        content += more
    return content
