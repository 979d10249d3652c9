"""What compiled code may ask for beside its own: to run another file's machine code, and how long things take."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core import cgutils  # noqa: TID253
from numba.extending import intrinsic  # noqa: TID253

_X86 = platform.machine().lower() in ("x86_64", "amd64")
_WORD = ir.IntType(64)


@intrinsic
def run(typing: Any, entry: Any, words: Any, first: Any) -> Any:
    """Run the entry point (kernels.runtime.native) at an address, with its arguments in words[first] and on. It must
    be one that raises nothing: its status is not looked at."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        array = context.make_array(call.args[1])(context, builder, args[1])
        place = builder.gep(array.data, [args[2]])
        kind = ir.FunctionType(ir.IntType(32), [place.type])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [place])
        return context.get_dummy_value()

    return types.void(types.uint64, words, types.uint64), generate


@intrinsic
def ticks(typing: Any) -> Any:
    """The processor's counter of time, in a unit of its own; always 0 where programs may not read it."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        if not _X86:
            return ir.Constant(_WORD, 0)
        counter = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_WORD, []), "llvm.readcyclecounter")
        return builder.call(counter, [])

    return types.uint64(), generate
