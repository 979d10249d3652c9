"""Queue of tasks, each cut into parts, that the main thread and worker threads work off together without locks.

Threads claim parts one by one, so that a worker thread that is not scheduled delays no other: the main thread does its
parts too. The main thread takes parts from the front and worker threads take them from the back. So a thread reads in
one task what it has written in the task before, and the data stay in one core's cache. A thread that has finished its
share waits a while before it takes parts of other threads (_PATIENCE), so that a short delay does not move these parts.
It does not wait for threads that have taken no part yet: they are late. OpenMP's barriers, which wait for every thread,
take milliseconds where other processes use the same cores. A part's result must not depend on the thread that computes
it.

State: int64 [16], zeros at first, then see open_for(). One word holds the number of the current task, the count of its
parts, and the counts of parts taken from the front and from the back: 16 bits each. A task of more parts is run as
several tasks, each of which begins at part _FIRST. Worker 0 is the main thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.kernels.runtime.atomics import exchange, increase, read, rest, write
from headrace.kernels.runtime.intrinsics import ticks
from headrace.kernels.runtime.jit import INNER, MERGED, njit

_WORD, _FIRST, _THREADS = (np.uint64(i) for i in range(3))
_DONE = np.uint64(8)  # on a cache line of its own
_TASK, _PARTS, _BACK, _MASK = 48, 32, 16, 0xFFFF  # bits of the word
_CLOSED = -1
_PATIENCE = np.uint64(2)  # the time of a thread's share is divided by 2^2: so long it waits for the others


@njit(**INNER)
def open_for(state, threads):
    """Open a queue without a task for so many threads, which share its parts."""
    for i in range(np.uint64(0), np.uint64(len(state))):
        state[i] = 0
    write(state, _THREADS, np.int64(threads))


@njit(**INNER)
def take_threads(state, other):
    """Share a queue's parts among as many threads as another queue does."""
    write(state, _THREADS, read(other, _THREADS))


@njit(**INNER)
def _publish(state, first, parts):
    """Begin the next task, of at most _MASK parts from `first` on; the one before must be finished."""
    task = ((read(state, _WORD) >> _TASK) + 1) & 0x7FFF
    write(state, _FIRST, first)
    write(state, _DONE, 0)
    write(state, _WORD, (task << _TASK) | (np.int64(parts) << _PARTS))


@njit(**INNER)
def _share(state, worker, parts):
    """Number of parts that belong to the main thread (worker 0), or to all worker threads together."""
    threads = max(read(state, _THREADS), 1)
    mine = (parts + threads - 1) // threads
    return mine if worker == 0 else parts - mine


@njit(**INNER)
def _claim(state, worker, turn):
    """Claim a part of the current task, which the caller then has to do. Returns the part, or -1 where none is left,
    and the new turn.

    turn: (task, began, until). task: the number of the task that this thread works on, which the main thread may have
    ended since. began: the time when the thread began that task. until: the time up to which the thread waits before it
    takes parts of other threads; 0 while it has parts of its own.
    """
    task, began, until = turn
    while True:
        word = read(state, _WORD)
        parts, back, front = (word >> _PARTS) & _MASK, (word >> _BACK) & _MASK, word & _MASK
        if word < 0 or front + back >= parts:
            return np.int64(-1), (task, began, until)
        if task != word >> _TASK:
            task, began, until = word >> _TASK, ticks(), np.uint64(0)
        mine, others = (front, back) if worker == 0 else (back, front)
        if others > 0 and mine >= _share(state, worker, parts):
            now = ticks()
            if until == 0:
                until = now + ((now - began) >> _PATIENCE)
            if now < until:
                rest()
                continue
        taken = word + (1 if worker == 0 else 1 << _BACK)
        if exchange(state, _WORD, word, taken):
            return read(state, _FIRST) + (front if worker == 0 else parts - 1 - back), (task, began, until)


@njit(**INNER)
def _wait(state):
    """Wait until all parts of the task are done."""
    parts = (read(state, _WORD) >> _PARTS) & _MASK
    while read(state, _DONE) < parts:
        rest()


@njit(**INNER)
def is_open(state):
    """Tell whether the queue is open: the main thread has not closed it, or has begun a task since."""
    return read(state, _WORD) >= 0


@njit(**INNER)
def close(state):
    """Let worker threads return: there are no more tasks. Called by the main thread."""
    write(state, _WORD, _CLOSED)


def work_loop(do: Callable[..., None]) -> tuple[Callable[..., None], Callable[..., None]]:
    """The one loop of all kernels that share work: (run_task, serve).

    do(part, worker, arguments) does a part, given as uint64, of the current task. The main thread calls run_task(state,
    parts, arguments) for each task, then close(state); worker threads call serve(worker, state, arguments), which
    returns after close(). Numba inlines the three, which are small.
    """

    @njit(**MERGED)
    def work(worker, state, arguments):
        part, turn = _claim(state, worker, (np.int64(-1), np.uint64(0), np.uint64(0)))
        while part >= 0:
            do(np.uint64(part), np.uint64(worker), arguments)
            increase(state, _DONE)
            part, turn = _claim(state, worker, turn)

    @njit(**MERGED)
    def run_task(state, parts, arguments):
        for first in range(0, parts, _MASK):
            _publish(state, first, min(parts - first, _MASK))
            work(np.int64(0), state, arguments)
            _wait(state)

    @njit(**MERGED)
    def serve(worker, state, arguments):
        while is_open(state):
            rest()
            work(np.int64(worker), state, arguments)

    return run_task, serve


def single_task(do: Callable[..., None]) -> Callable[..., None]:
    """The body of a kernel that consists of one task: run(worker, state, parts, arguments), called by all threads."""
    run_task, serve = work_loop(do)

    @njit(**MERGED)
    def run(worker, state, parts, arguments):
        if worker == 0:
            run_task(state, parts, arguments)
            close(state)
        else:
            serve(worker, state, arguments)

    return run
