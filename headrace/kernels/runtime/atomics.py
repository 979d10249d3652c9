"""Words of memory that several threads read and write: int64 in arrays, sequentially consistent."""

from __future__ import annotations

from llvmlite import ir
from numba import types  # noqa: TID253

from headrace.kernels.runtime.intrinsics import ARRAY, X86, call_llvm, operation


@operation(types.void)
def rest(builder: ir.IRBuilder) -> None:
    """Tell the processor that this thread is only waiting."""
    if X86:
        call_llvm(builder, "x86.sse2.pause", ir.VoidType())


@operation(types.int64, ARRAY, types.uint64)
def read(builder: ir.IRBuilder, array: ir.Value, index: ir.Value) -> ir.Value:
    """Read array[index], as other threads left it."""
    return builder.load_atomic(builder.gep(array, [index]), "seq_cst", 8)


@operation(types.void, ARRAY, types.uint64, types.int64)
def write(builder: ir.IRBuilder, array: ir.Value, index: ir.Value, value: ir.Value) -> None:
    """Write array[index] = value, after all earlier writes."""
    builder.store_atomic(value, builder.gep(array, [index]), "seq_cst", 8)


@operation(types.void, ARRAY, types.uint64)
def increase(builder: ir.IRBuilder, array: ir.Value, index: ir.Value) -> None:
    """Increase array[index] by 1, after all earlier writes."""
    builder.atomic_rmw("add", builder.gep(array, [index]), ir.Constant(ir.IntType(64), 1), "seq_cst")


@operation(types.boolean, ARRAY, types.uint64, types.int64, types.int64)
def exchange(builder: ir.IRBuilder, array: ir.Value, index: ir.Value, old: ir.Value, new: ir.Value) -> ir.Value:
    """Set array[index] = new if it is old. True if it was."""
    return builder.extract_value(builder.cmpxchg(builder.gep(array, [index]), old, new, "seq_cst"), 1)
