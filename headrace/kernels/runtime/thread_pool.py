"""Threads for kernels that share their work (kernels.runtime.work_queue): one pool for the whole process."""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue

import numpy as np

from headrace.core.cores import cores
from headrace.core.device import processes_computing
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_choice import ThreadChoice

BUSY = 0.6  # fraction of a call in which the main thread ran, below which other processes are using the cores
MIN_MEASURED = 1e-3  # s: shorter calls are not measured
LONG = 5e-3  # s: threads wait to join a call that takes longer; starting one that waits costs 50 us
LEFT = 9  # the word of a state that counts helpers which have left the kernel: see work_queue
PATIENCE = 50  # times that the main thread asks for these before it lets the GIL go
AT_EXIT = 5.0  # s at most that the end of the process waits for each helper
ALONE = 8  # calls with one thread after one on a busy machine


def queue_state() -> np.ndarray:
    """The state of a work queue without a task, int64."""
    return np.zeros(16, np.int64)


class WorkQueue:
    """Runs one kernel on several threads, or on one while the machine is busy: a worker thread that is not scheduled
    delays the others. alone: calls with one thread that are left. seconds: of the last call that was worth several.
    alike: whether the calls do about the same; then they are also made on one thread where that takes less time.

    While other processes compute (core.device.cores_taken), each has a core. A thread joins the call once one of them
    has ended, where the call before was long enough for that.
    """

    def __init__(self, alike: bool = True) -> None:
        self.alone, self.seconds = 0, 0.0
        self.choice = ThreadChoice() if alike else None

    def run(self, call: Call, threads: int) -> None:
        """Run a call whose first arguments are 0 and queue_state(): worker 0 in this thread, and workers from 1
        in other threads. Returns once all have.

        The function must release the GIL, and return in worker threads once the main thread has closed the queue. Its
        results must not depend on the number of threads.
        """
        _state(call)[:] = 0
        if threads == 1:
            call()
            return
        others = processes_computing()
        free = cores() - _number_computing(others) if others else threads
        several = not self.alone and (bool(others) or self.choice is None or self.choice.next())
        wall, own = time.perf_counter(), time.thread_time()
        _run_threads(call, threads if several else 1, free, others if self.seconds > LONG else ())
        wall, own = time.perf_counter() - wall, time.thread_time() - own
        if self.choice is not None and not self.alone and not others:
            self.choice.took(several, wall)
        self.alone, self.seconds = max(self.alone - 1, 0), wall
        if wall > MIN_MEASURED and own < BUSY * wall and free > 0:  # else these processes are using the cores
            self.alone = ALONE


def _state(call: Call) -> np.ndarray:
    state = call.arguments[1]
    assert isinstance(state, np.ndarray)
    return state


class _Share:
    """A worker's share in a call. Whoever takes it first has it: a helper, or the main thread once it needs no help.

    wait: returns when a helper may take it; None for at once.
    """

    def __init__(self, call: Call, wait: Callable[[], None] | None = None) -> None:
        self._calls, self._wait, self.ended = [call], wait, False
        self.error: RuntimeError | None = None

    def take(self) -> Call | None:
        """The call, once; None after that."""
        try:
            return self._calls.pop()
        except IndexError:
            return None

    def help(self) -> None:
        """Do the share, unless it is taken."""
        if self._wait is not None:
            self._wait()
        call = self.take()
        try:
            if call is not None:
                call()
        except RuntimeError as error:
            self.error = error
        finally:
            self.ended = True


def _run_threads(call: Call, threads: int, free: int, others: Sequence[int]) -> None:
    """free: cores. others: processes for the end of which more threads wait, up to `threads`; empty for none."""
    first = max(1, min(threads, free))
    shares = [_Share(call.for_worker(worker)) for worker in range(1, first)]
    end: Connection | None = None
    if others and first < threads:
        ended, end = Pipe(duplex=False)
        for worker in range(first, threads):
            wait = partial(_until_free, others, cores() - 1 - worker, ended)
            shares.append(_Share(call.for_worker(worker), wait))
    for share in shares:
        _helpers(os.getpid()).put(share)
    try:
        call()
    finally:
        state = _state(call)
        state[0] = -1  # closed, however the main thread ended
        taken = [share for share in shares if share.take() is None]
        if end is not None:
            end.send_bytes(b"")  # no helper waits any longer
        _wait(state, taken)


def _number_computing(descriptors: Sequence[int]) -> int:
    """How many processes compute, of those with these descriptors."""
    return len(descriptors) - len(_polling(descriptors).poll(0))


def _until_free(descriptors: Sequence[int], most: int, ended: Connection) -> None:
    """Wait until at most `most` of these processes compute, or the call has ended. One that is gone does not."""
    poll, computing = _polling((*descriptors, ended.fileno())), len(descriptors)
    while computing > most:
        for descriptor, _ in poll.poll():
            if descriptor == ended.fileno():
                return
            poll.unregister(descriptor)
            computing -= 1


def _polling(descriptors: Sequence[int]) -> select.poll:
    """What waits until some of these can be read."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return poll


def _wait(state: np.ndarray, shares: list[_Share]) -> None:
    """Wait until the helpers that have these shares have left the kernel, which they do at once. The kernel counts
    them: what they still do in Python, for which they need the GIL, need not be waited for."""
    asked = 0
    while state[LEFT] < len(shares) and not all(share.ended for share in shares):
        asked += 1
        if asked > PATIENCE:  # without it for one that has taken its share and does not have the GIL yet
            time.sleep(0 if asked < 20 * PATIENCE else 50e-6)
    for share in shares:
        if share.error is not None:
            raise share.error


@cache
def _helpers(process: int) -> SimpleQueue[_Share | None]:
    """The queue of as many helpers as there are cores; one for each process: threads do not survive a fork."""
    shares: SimpleQueue[_Share | None] = SimpleQueue()
    threads = [
        threading.Thread(target=_help, args=(shares,), name=f"headrace_{number}", daemon=True)
        for number in range(cores())
    ]
    for thread in threads:
        thread.start()
    atexit.register(_end, process, shares, threads)
    return shares


def _end(process: int, shares: SimpleQueue[_Share | None], threads: Sequence[threading.Thread]) -> None:
    """Let helpers return before the interpreter ends: one that frees a tensor then would abort the process."""
    if process == os.getpid():
        for _ in threads:
            shares.put(None)
        for thread in threads:
            thread.join(AT_EXIT)


def _help(shares: SimpleQueue[_Share | None]) -> None:
    import torch

    torch.set_flush_denormal(True)  # as in the main thread
    while (share := shares.get()) is not None:
        share.help()
        del share  # frees what it holds
