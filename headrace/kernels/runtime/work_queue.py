"""A queue of tasks, each cut into parts, that the main thread and worker threads work off together without locks.

Threads claim parts one by one, so that a worker thread that is not scheduled delays no other: the main thread does its
parts too. The main thread takes them from the front and worker threads from the back, so that what a thread wrote in
one task is mostly what it reads in the next. OpenMP's barriers, which wait for every thread, take milliseconds where
other processes use the same cores. A part's result must not depend on the thread that computes it.

State: int64 [16], zeros at first. One word holds the number of the current task, of its parts, and of the parts that
are taken from the front and from the back: 16 bits each. A task of more parts is run as several, of which each begins
at part _FIRST. _LEFT counts worker threads that have returned. Worker 0 is the main thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types  # noqa: TID253

from headrace.kernels.runtime.intrinsics import ARRAY, X86, call_llvm, operation
from headrace.kernels.runtime.jit import INNER, MERGED, njit

_WORD, _FIRST = np.uint64(0), np.uint64(1)
_DONE, _LEFT = np.uint64(8), np.uint64(9)  # on a cache line of their own
_TASK, _PARTS, _BACK, _MASK = 48, 32, 16, 0xFFFF  # bits of the word
_CLOSED = -1


@operation(types.void)
def rest(builder: ir.IRBuilder) -> None:
    """Tell the processor that this thread is only waiting."""
    if X86:
        call_llvm(builder, "x86.sse2.pause", ir.VoidType())


@operation(types.int64, ARRAY, types.uint64)
def _read(builder: ir.IRBuilder, array: ir.Value, index: ir.Value) -> ir.Value:
    """array[index], as other threads left it."""
    return builder.load_atomic(builder.gep(array, [index]), "seq_cst", 8)


@operation(types.void, ARRAY, types.uint64, types.int64)
def _write(builder: ir.IRBuilder, array: ir.Value, index: ir.Value, value: ir.Value) -> None:
    """array[index] = value, after all that was written before."""
    builder.store_atomic(value, builder.gep(array, [index]), "seq_cst", 8)


@operation(types.void, ARRAY, types.uint64)
def _increase(builder: ir.IRBuilder, array: ir.Value, index: ir.Value) -> None:
    """array[index] += 1, after all that was written before."""
    builder.atomic_rmw("add", builder.gep(array, [index]), ir.Constant(ir.IntType(64), 1), "seq_cst")


@operation(types.boolean, ARRAY, types.uint64, types.int64, types.int64)
def _exchange(builder: ir.IRBuilder, array: ir.Value, index: ir.Value, old: ir.Value, new: ir.Value) -> ir.Value:
    """array[index] = new if it is old; whether it was."""
    return builder.extract_value(builder.cmpxchg(builder.gep(array, [index]), old, new, "seq_cst"), 1)


@njit(**INNER)
def _publish(state, first, parts):
    """Begin the next task, of at most _MASK parts from `first` on; the one before must be finished."""
    task = ((_read(state, _WORD) >> _TASK) + 1) & 0x7FFF
    _write(state, _FIRST, first)
    _write(state, _DONE, 0)
    _write(state, _WORD, (task << _TASK) | (np.int64(parts) << _PARTS))


@njit(**INNER)
def _claim(state, worker):
    """A part of the current task, which is then the caller's to do; -1 where none is left."""
    while True:
        word = _read(state, _WORD)
        parts, back, front = (word >> _PARTS) & _MASK, (word >> _BACK) & _MASK, word & _MASK
        if word < 0 or front + back >= parts:
            return np.int64(-1)
        taken = word + (1 if worker == 0 else 1 << _BACK)
        if _exchange(state, _WORD, word, taken):
            return _read(state, _FIRST) + (front if worker == 0 else parts - 1 - back)


@njit(**INNER)
def _wait(state):
    """Wait until all parts of the task are done."""
    parts = (_read(state, _WORD) >> _PARTS) & _MASK
    while _read(state, _DONE) < parts:
        rest()


@njit(**INNER)
def is_open(state):
    """Whether the main thread has not closed the queue yet, or has begun a task again since."""
    return _read(state, _WORD) >= 0


@njit(**INNER)
def close(state):
    """Let worker threads return: there are no more tasks. Called by the main thread."""
    _write(state, _WORD, _CLOSED)


@njit(**INNER)
def leave(state):
    """What a worker thread does last: the main thread then waits no longer for it."""
    _increase(state, _LEFT)


def work_loop(do: Callable[..., None]) -> tuple[Callable[..., None], Callable[..., None]]:
    """The one loop of all kernels that share work: (run_task, serve).

    do(part, worker, arguments) does a part, given as uint64, of the current task. The main thread calls run_task(state,
    parts, arguments) for each task, then close(state); worker threads call serve(worker, state, arguments), which
    returns after close(). Numba inlines the three, which are small.
    """

    @njit(**MERGED)
    def work(worker, state, arguments):
        part = _claim(state, worker)
        while part >= 0:
            do(np.uint64(part), np.uint64(worker), arguments)
            _increase(state, _DONE)
            part = _claim(state, worker)

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
        leave(state)

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
