"""A leader and its helpers share the parts of one job after another, without locks.

Parts are claimed one by one, so that a helper that has not come round yet delays nobody: the leader then does its parts
too. The leader takes them from the front, helpers from the back, so that what a thread wrote for one job is mostly what
it reads for the next. OpenMP's barriers, which wait for every thread, take milliseconds where other processes want the
same cores, and a second pool of threads beside torch's makes its own contention. Who does a part must not matter to its
result.

State: int64 [16], zeros at first. One word says which job is on, of how many parts, and how many are taken from the
front and from the back: each 16 bits. Worker 0 is the leader.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core import cgutils  # noqa: TID253
from numba.extending import intrinsic  # noqa: TID253

from headrace.kernels.runtime.jit import INNER, njit

_WORD, _DONE = np.uint64(0), np.uint64(8)  # on cache lines of their own
_JOB, _PARTS, _BACK, _MASK = 48, 32, 16, 0xFFFF  # bits of the word
_DISMISSED = -1
_X86 = platform.machine().lower() in ("x86_64", "amd64")


def _pointer(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
    array = context.make_array(call.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


@intrinsic
def rest(typing: Any) -> Any:
    """A word to the processor that this thread is only waiting."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        if _X86:
            pause = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, pause, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _read(typing: Any, array: Any, index: Any) -> Any:
    """array[index], as other threads left it."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        return builder.load_atomic(_pointer(context, builder, call, args), "seq_cst", 8)

    return types.int64(array, types.uint64), generate


@intrinsic
def _write(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] = value, after all that was written before."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        builder.store_atomic(args[2], _pointer(context, builder, call, args), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.int64), generate


@intrinsic
def _increase(typing: Any, array: Any, index: Any) -> Any:
    """array[index] += 1, after all that was written before."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        one = ir.Constant(ir.IntType(64), 1)
        builder.atomic_rmw("add", _pointer(context, builder, call, args), one, "seq_cst")
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


@intrinsic
def _exchange(typing: Any, array: Any, index: Any, old: Any, new: Any) -> Any:
    """array[index] = new if it is old; whether it was."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        pointer = _pointer(context, builder, call, args)
        return builder.extract_value(builder.cmpxchg(pointer, args[2], args[3], "seq_cst"), 1)

    return types.boolean(array, types.uint64, types.int64, types.int64), generate


@njit(**INNER)
def publish(state, parts):
    """The leader's: begin the next job. The one before must be finished."""
    job = ((_read(state, _WORD) >> _JOB) + 1) & 0x7FFF
    _write(state, _DONE, 0)
    _write(state, _WORD, (job << _JOB) | (np.int64(parts) << _PARTS))


@njit(**INNER)
def claim(state, worker):
    """A part of the job that is on, which is then the caller's to do; -1 where none is left."""
    while True:
        word = _read(state, _WORD)
        parts, back, front = (word >> _PARTS) & _MASK, (word >> _BACK) & _MASK, word & _MASK
        if word < 0 or front + back >= parts:
            return np.int64(-1)
        taken = word + (1 if worker == 0 else 1 << _BACK)
        if _exchange(state, _WORD, word, taken):
            return front if worker == 0 else parts - 1 - back


@njit(**INNER)
def finished(state):
    """Say that a claimed part is done."""
    _increase(state, _DONE)


@njit(**INNER)
def wait(state):
    """The leader's: until all parts of the job are done."""
    parts = (_read(state, _WORD) >> _PARTS) & _MASK
    while _read(state, _DONE) < parts:
        rest()


@njit(**INNER)
def dismiss(state):
    """The leader's: send the helpers home."""
    _write(state, _WORD, _DISMISSED)


@njit(**INNER)
def dismissed(state):
    """The helpers': whether to go home."""
    return _read(state, _WORD) < 0
