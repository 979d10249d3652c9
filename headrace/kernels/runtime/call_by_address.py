"""Intrinsics of compiled code: call the machine code of another file by its address, and read the processor's clock."""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import types  # noqa: TID253

from headrace.kernels.runtime.intrinsics import ARRAY, call_llvm, operation

_X86 = platform.machine().lower() in ("x86_64", "amd64")


@operation(types.void, types.uint64, ARRAY, types.uint64)
def run(builder: ir.IRBuilder, entry: ir.Value, slots: ir.Value, first: ir.Value) -> None:
    """Call the entry point (kernels.runtime.native) at an address, with the argument slots from slots[first] on. It
    must be one that raises nothing: its status is ignored."""
    arguments = builder.gep(slots, [first])
    kind = ir.FunctionType(ir.IntType(32), [arguments.type])
    builder.call(builder.inttoptr(entry, kind.as_pointer()), [arguments])


@operation(types.uint64)
def ticks(builder: ir.IRBuilder) -> ir.Value:
    """The processor's time counter, in its own unit; always 0 where programs may not read it."""
    word = ir.IntType(64)
    return call_llvm(builder, "readcyclecounter", word) if _X86 else ir.Constant(word, 0)
