"""Threads for kernels that share their work (kernels.runtime.work_queue): one pool for the whole process."""

from __future__ import annotations

import atexit
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection, Pipe

import numpy as np

from headrace.core.cores import cores
from headrace.core.device import processes_computing
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import STOPPED, Call
from headrace.kernels.runtime.thread_choice import ThreadChoice

BUSY = 0.6  # fraction of a call in which the main thread ran, below which other processes are using the cores
MIN_MEASURED = 1e-3  # s: shorter calls are not measured, nor one on one thread that follows such a call
WORKERS = 16  # threads of a call at most, as kernels.nn.layout has it
ANNOUNCEMENT = "compiling the thread pool (once, about 1 s) ..."
LONG = 5e-3  # s: threads wait to join a call that takes longer; starting one that waits costs 50 us
BOARDS = 16  # calls at a time that have helpers; more wait
BETWEEN_LOOKS = 1e-3  # s between two looks for a board
LINE = 8  # words of a cache line
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}  # of the thread that gets them
AT_EXIT = 5.0  # s at most that the end of the process waits for each helper
ALONE = 8  # calls with one thread after one on a busy machine


def queue_state() -> np.ndarray:
    """The state of a work queue without a task, int64."""
    return np.zeros(16, np.int64)


class WorkQueue:
    """Runs a kernel on several threads.

    While the machine is busy, one thread is used: a thread that waits for a core would delay the others. While other
    processes compute (core.device.cores_taken), each keeps a core. Once such a process has finished, a thread joins the
    call, if the call before was long enough for that.

    alone: number of the next calls that use one thread. seconds: time of the last call that was worth several threads.
    choice: one thread is used if measurements show that it is faster.
    """

    def __init__(self) -> None:
        self.alone, self.seconds, self.choice = 0, 0.0, ThreadChoice()

    def run(self, call: Call, threads: int) -> None:
        """Run a call whose first arguments are 0 and queue_state(): worker 0 in this thread, and workers from 1 in
        other threads. Returns once all workers have returned.

        The function must release the GIL, and return in worker threads once the main thread has closed the queue. Its
        results must not depend on the number of threads.
        """
        if threads == 1:
            _alone(call)
            return
        threads, others = min(threads, WORKERS), processes_computing()
        free = cores() - _number_computing(others) if others else threads
        several = not self.alone and (bool(others) or self.choice.next())
        watched = several or self.seconds > MIN_MEASURED  # asking for a thread's time takes 1 us
        began, own = time.perf_counter(), time.thread_time() if watched else 0.0
        if several:
            _run_threads(call, threads, free, others if self.seconds > LONG else ())
        else:
            _alone(call)
        seconds = time.perf_counter() - began
        waited = watched and seconds > MIN_MEASURED and time.thread_time() - own < BUSY * seconds
        if not self.alone and not others:
            self.choice.took(several, seconds)
        self.alone, self.seconds = max(self.alone - 1, 0), seconds
        if waited and free > 0:  # else these processes are using the cores
            self.alone = ALONE


class CallInParts:
    """Call about a range that several threads make, each with a part of the range. The call's last three argument slots
    are the first number of the part, its last + 1, and a number that is the same for all parts."""

    def __init__(self, call: Call, cut: Sequence[int]) -> None:
        """Store the call. cut: the beginnings of the parts, and the end of the last one."""
        self.call, self._threads, self._queue = call, len(cut) - 1, WorkQueue()
        self._stopped = np.zeros(1, np.bool_)
        copies = np.zeros((WORKERS, len(call.slots)), np.uint64)
        about = (np.uint64(call.function.address), call.slots, np.array(cut, np.int64), copies, self._stopped)
        arguments = (0, queue_state(), *about)
        self._parts = Call(entry("runtime.helpers", "call_parts", arguments, ANNOUNCEMENT), arguments)

    def __call__(self) -> None:
        self._queue.run(self._parts, self._threads)
        if self._stopped[0]:
            raise RuntimeError(STOPPED)


class _Board:
    """Board on which calls are laid out for helpers, one after the other: see kernels.runtime.helpers."""

    def __init__(self, pipe: int, jobs: np.ndarray, first: int) -> None:
        self._pipe, self._first = pipe, first
        self._numbers, self._copies = np.zeros(WORKERS, np.int64), np.zeros(1, np.uint64)
        zero, slots = np.uint64(0), np.zeros(1, np.uint64)  # in place of what a call puts in
        given = (pipe, jobs, np.uint64(first), self._numbers)
        arguments = (*given, zero, slots, zero, queue_state(), self._copies, zero, zero)
        self._share = Call(entry("runtime.helpers", "share", arguments, ANNOUNCEMENT), arguments)
        self._places = [self._share.slot(number) for number in range(len(given), len(arguments))]

    def run(self, call: Call, threads: int, announced: int) -> None:
        """Run a call on this thread and helpers: so many threads at once, the others after announce()."""
        count = len(call.slots)
        if len(self._copies) < threads * count:
            self._copies = np.zeros(threads * count, np.uint64)
            self._share.point(self._places[4], self._copies.ctypes.data)
        share = self._share
        function, slots, number, state, _, number_of_threads, number_now = self._places
        share.slots[function], share.slots[number] = call.function.address, count
        share.slots[number_of_threads], share.slots[number_now] = threads, announced
        share.point(slots, call.address)
        share.point(state, call.array_address(1))
        share()
        if self._numbers[0]:
            raise RuntimeError(STOPPED)

    def announce(self, worker: int) -> None:
        """Let a helper take a worker's share."""
        _write(self._pipe, self._first + worker)


class _Helpers:
    """The helpers of one process, as many as cores: threads that wait in compiled code for shares of calls."""

    def __init__(self, process: int) -> None:
        reads, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        jobs = np.zeros((BOARDS * WORKERS, LINE), np.int64)
        self._boards = [_Board(self._pipe, jobs, number * WORKERS) for number in range(BOARDS)]  # that no call is using
        self._threads: list[threading.Thread] = []
        for number in range(cores()):
            arguments = (reads, jobs, np.zeros(1, np.int64))
            serve = Call(entry("runtime.helpers", "serve", arguments, ANNOUNCEMENT), arguments)
            thread = threading.Thread(target=_help, args=(serve,), name=f"headrace_{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        atexit.register(self._end, process)

    def take_board(self) -> _Board:
        """Take the board that was used last, whose rows a helper may watch."""
        while True:
            try:
                return self._boards.pop()
            except IndexError:  # as many calls as boards; a LifoQueue would take longer where there is one
                time.sleep(BETWEEN_LOOKS)

    def give_back(self, board: _Board) -> None:
        """Let other calls have a board."""
        self._boards.append(board)

    def _end(self, process: int) -> None:
        """Let helpers return before the interpreter ends."""
        if process == os.getpid():
            for _ in self._threads:
                _write(self._pipe, -1)
            for thread in self._threads:
                thread.join(AT_EXIT)


@cache
def _helpers(process: int) -> _Helpers:
    """Helpers of this process: threads do not survive a fork."""
    return _Helpers(process)


def _help(serve: Call) -> None:
    # a signal would end the wait for shares; the main thread, which Python lets handle them, gets them all
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
    serve()


def _write(pipe: int, number: int) -> None:
    with suppress(BlockingIOError):  # it is full: helpers have enough to do
        os.write(pipe, np.int64(number).tobytes())


def _state(call: Call) -> np.ndarray:
    state = call.arguments[1]
    assert isinstance(state, np.ndarray)
    return state


def _alone(call: Call) -> None:
    _state(call).fill(0)
    call()


def _run_threads(call: Call, threads: int, free: int, others: Sequence[int]) -> None:
    """Run a call on as many threads as cores are free. free: number of such cores. others: processes; each one that
    ends lets another thread join, up to `threads`. Empty for none."""
    first = max(1, min(threads, free))
    helpers = _helpers(os.getpid())
    board = helpers.take_board()
    end: Connection | None = None
    try:
        if others and first < threads:
            ended, end = Pipe(duplex=False)
            for worker in range(first, threads):
                waiting = (board, worker, others, cores() - 1 - worker, ended)
                threading.Thread(target=_announce_once_free, args=waiting, daemon=True).start()
        board.run(call, first if end is None else threads, first)
    finally:
        helpers.give_back(board)
        if end is not None:
            end.send_bytes(b"")  # no thread waits any longer


def _announce_once_free(board: _Board, worker: int, descriptors: Sequence[int], most: int, ended: Connection) -> None:
    _until_free(descriptors, most, ended)
    board.announce(worker)


def _number_computing(descriptors: Sequence[int]) -> int:
    """Count the processes that compute among those with these descriptors."""
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
    """Make a poll object that waits until one of these descriptors can be read."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return poll
