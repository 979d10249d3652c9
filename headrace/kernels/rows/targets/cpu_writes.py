"""New numbers of the buffers that a loss writes to, from a program's outputs to where the buffers lie."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types  # noqa: TID253

from headrace.kernels.rows.targets.cpu_arguments import FLAGS, LONGS
from headrace.kernels.runtime.intrinsics import operation
from headrace.kernels.runtime.jit import INNER, njit

U = np.uint64
_WORD = U(4)


def _at(builder: ir.IRBuilder, address: ir.Value, bits: int) -> ir.Value:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


@operation(types.int32, types.uint64)
def _read(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """The word at an address."""
    return builder.load(_at(builder, address, 32), align=4)


@operation(types.void, types.uint64, types.int32)
def _write(builder: ir.IRBuilder, address: ir.Value, word: ir.Value) -> None:
    builder.store(word, _at(builder, address, 32), align=4)


@operation(types.void, types.uint64, types.int32)
def _write_long(builder: ir.IRBuilder, address: ir.Value, word: ir.Value) -> None:
    builder.store(builder.sext(word, ir.IntType(64)), _at(builder, address, 64), align=8)


@operation(types.void, types.uint64, types.int32)
def _write_byte(builder: ir.IRBuilder, address: ir.Value, word: ir.Value) -> None:
    builder.store(builder.trunc(word, ir.IntType(8)), _at(builder, address, 8), align=1)


@njit(**INNER)
def write_back(writes):
    """Write all: see cpu_arguments.Learning."""
    for n in range(U(0), U(len(writes))):
        source, target, count, kind = U(writes[n, 0]), U(writes[n, 1]), U(writes[n, 2]), writes[n, 3]
        for i in range(U(0), count):
            word = _read(source + _WORD * i)
            if kind == LONGS:
                _write_long(target + U(8) * i, word)
            elif kind == FLAGS:
                _write_byte(target + i, np.int32(word != 0))
            else:
                _write(target + _WORD * i, word)
