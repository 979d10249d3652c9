"""Calls that other threads help with. Neither the calls nor the helpers need Python and its lock (GIL).

A helper that held a Python object would wait for the lock after each call, and the main thread would wait for the
helper: 50 to 150 us a call, on a machine of two cores.

Jobs: int64 [J, LINE], a row for a worker of a call: its state, the address of the entry point, that of its argument
slots (kernels.runtime.native), whether a helper watches the row, and the main thread's float mode. Helpers take over
this mode; otherwise the thread that does a job would decide which numbers are flushed to 0. Helpers read numbers of
rows from a pipe. A job is done by the thread that takes it: a helper, or the main thread, which needs no help once it
has done its own job. A number that is read later leads to a job that is not open, or to another one. After a job a
helper watches its row for a while before it waits for the pipe: waking it takes longer than a step of many
environments.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core import cgutils  # noqa: TID253

from headrace.kernels.runtime.atomics import exchange, read, rest, write
from headrace.kernels.runtime.intrinsics import ARRAY, float_mode, operation, set_float_mode
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import close, open_for, single_task

U = np.uint64
_0, _1 = U(0), U(1)
_STATE, _ENTRY, _SLOTS, _WATCHED, _MODE = U(0), U(1), U(2), U(3), U(4)  # words of a job
_CLOSED, _OPEN, _TAKEN, _DONE, _FAILED = 0, 1, 2, 3, 4  # its states
_WORD = 8  # bytes
PATIENCE = 4_000  # times that the main thread looks for the end of a job before it lets other processes have the core
WATCH = 4_000  # times that a helper looks for another job in the row of the one that it has done


def _system(builder: ir.IRBuilder, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
    """Call a function of the C library."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


@operation(types.int64, types.int32, ARRAY, types.uint64)
def _receive(builder: ir.IRBuilder, pipe: ir.Value, words: ir.Value, size: ir.Value) -> ir.Value:
    """Wait for bytes from a pipe. Returns how many have come, or -1."""
    return _system(builder, "read", ir.IntType(64), pipe, words, size)


@operation(types.int64, types.int32, ARRAY, types.uint64)
def _send(builder: ir.IRBuilder, pipe: ir.Value, words: ir.Value, size: ir.Value) -> ir.Value:
    """Write so many bytes to a pipe; -1 where it is full."""
    return _system(builder, "write", ir.IntType(64), pipe, words, size)


@operation(types.int32)
def _yield(builder: ir.IRBuilder) -> ir.Value:
    """Let another thread have this core."""
    return _system(builder, "sched_yield", ir.IntType(32))


@operation(types.uint64, ARRAY, types.uint64)
def _address(builder: ir.IRBuilder, array: ir.Value, index: ir.Value) -> ir.Value:
    """Address of array[index]."""
    return builder.ptrtoint(builder.gep(array, [index]), ir.IntType(64))


@operation(types.int32, types.uint64, types.uint64)
def _call(builder: ir.IRBuilder, entry: ir.Value, slots: ir.Value) -> ir.Value:
    """Call an entry point. Returns its status, 0 where it has raised nothing."""
    kind = ir.FunctionType(ir.IntType(32), [slots.type])
    return builder.call(builder.inttoptr(entry, kind.as_pointer()), [slots])


@njit(**INNER)
def _watch(job):
    """Look for another job in this row, for a while."""
    write(job, _WATCHED, 1)
    looked = 0
    while looked < WATCH and read(job, _STATE) != _OPEN:
        rest()
        looked += 1
    write(job, _WATCHED, 0)  # whoever opens a job after this writes to the pipe; one opened before is taken


@njit(**ENTRY)
def serve(pipe, jobs, received):
    """Do jobs whose numbers come from a pipe, until -1 comes. received: int64 [1], of this thread alone."""
    while _receive(pipe, received, _WORD) == _WORD and received[0] >= 0:
        job = jobs[received[0]]
        while exchange(job, _STATE, _OPEN, _TAKEN):
            set_float_mode(job[_MODE])
            status = _call(U(job[_ENTRY]), U(job[_SLOTS]))
            write(job, _STATE, _DONE if status == 0 else _FAILED)
            _watch(job)


@njit(**INNER)
def _open(jobs, first, entry, slots, count, copies, threads):
    """Open a job for each worker from 1. Each has a copy of the slots, whose first is its number."""
    for worker in range(_1, threads):
        base = (worker - _1) * count
        for k in range(_0, count):
            copies[base + k] = slots[k]
        copies[base] = worker
        job = jobs[first + worker]
        job[_ENTRY], job[_SLOTS] = np.int64(entry), np.int64(_address(copies, base))
        job[_MODE] = float_mode()
        write(job, _STATE, _OPEN)


@njit(**INNER)
def _announce(pipe, jobs, first, numbers, announced):
    """Write the numbers of workers' jobs to the pipe, except jobs that a helper watches."""
    unseen = _0
    for worker in range(_1, announced):
        if not read(jobs[first + worker], _WATCHED):
            numbers[unseen] = first + worker
            unseen += _1
    if unseen:
        _send(pipe, numbers, unseen * U(_WORD))


@njit(**INNER)
def _close(job):
    """Take a job back, or wait until the helper that has it is done. True if it failed."""
    if exchange(job, _STATE, _OPEN, _CLOSED):
        return False
    looked = 0
    while read(job, _STATE) == _TAKEN:
        rest()
        looked += 1
        if looked > PATIENCE:
            _yield()
    return read(job, _STATE) == _FAILED


@njit(**ENTRY)
def share(pipe, jobs, first, numbers, entry, slots, count, state, copies, threads, announced):
    """Call an entry point whose first arguments are a worker's number and a queue's state, as worker 0 in this thread
    and as workers 1 .. threads - 1 in helpers. Returns once all have returned.

    jobs: those of this call are rows first + 1 and on. slots: worker 0's, `count` of them. copies: uint64, memory for
    those of the other workers. announced: the pipe gets the jobs of so many threads, this one included;
    _Board.announce() gives it the other jobs later. numbers: int64 [threads]; the first is then 1 where a worker has
    stopped with an exception, else 0.
    """
    open_for(state, threads)
    _open(jobs, first, entry, slots, count, copies, threads)
    _announce(pipe, jobs, first, numbers, announced)
    failed = _call(entry, _address(slots, _0)) != 0
    close(state)  # however it ended
    for worker in range(_1, threads):
        failed |= _close(jobs[first + worker])
    numbers[0] = failed


@njit(**INNER)
def _call_part(part, worker, arguments):
    entry, slots, cut, copies, stopped = arguments
    count = U(len(slots))
    own = copies[worker]
    for k in range(_0, count):
        own[k] = slots[k]
    own[count - U(3)], own[count - U(2)] = U(cut[part]), U(cut[part + _1])
    if _call(entry, _address(own, _0)) != 0:
        stopped[0] = True


_call_parts = single_task(_call_part)


@njit(**ENTRY)
def call_parts(worker, state, entry, slots, cut, copies, stopped):
    """Call an entry point for each part cut[k] .. cut[k + 1] of a range. The part goes into the third-last and the
    second-last slot.

    copies: uint64 [WORKERS, slots]. stopped: bool [1], true where a call has stopped with an exception.
    """
    _call_parts(worker, state, len(cut) - 1, (entry, slots, cut, copies, stopped))
