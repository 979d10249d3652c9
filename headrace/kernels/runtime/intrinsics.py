"""Functions of LLVM instructions that Numba code can call: to call another file's machine code by its address, to read
the processor's clock, and to set how a thread rounds."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable

from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core import cgutils  # noqa: TID253
from numba.core.base import BaseContext  # noqa: TID253
from numba.core.typing import Signature  # noqa: TID253
from numba.extending import intrinsic  # noqa: TID253

# operands of operation(): an array of any type, given to emit() as the pointer to its data; a number known when
# compiling, given as an int
ARRAY, LITERAL = "array", "literal"
X86 = platform.machine().lower() in ("x86_64", "amd64")
_ARM = platform.machine().lower() in ("aarch64", "arm64")
Emit = Callable[..., ir.Value | None]


def operation(result: types.Type, *operands: types.Type | str) -> Callable[[Emit], Callable[..., ir.Value]]:
    """Make an intrinsic of emit(builder, *values), which gives the result's value, or None for types.void.

    Arguments are converted to the operands' types.
    """

    def decorate(emit: Emit) -> Callable[..., ir.Value]:
        def define(typing: types.Type, *given: types.Type) -> tuple[Signature, Callable[..., ir.Value]]:
            kinds = [own if isinstance(kind, str) else kind for kind, own in zip(operands, given, strict=True)]

            def generate(
                context: BaseContext, builder: ir.IRBuilder, call: Signature, args: tuple[ir.Value, ...]
            ) -> ir.Value:
                values = list(args)
                for i, (kind, own) in enumerate(zip(operands, call.args, strict=True)):
                    if kind is ARRAY:
                        values[i] = context.make_array(own)(context, builder, args[i]).data
                    elif kind is LITERAL:
                        values[i] = own.literal_value
                found = emit(builder, *values)
                return context.get_dummy_value() if found is None else found

            return result(*kinds), generate

        # Numba reads names and number of the arguments from here
        parameters = [p.replace(annotation=p.empty) for p in inspect.signature(emit).parameters.values()]
        parameters[0] = parameters[0].replace(name="typing")
        define.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        define.__name__, define.__doc__ = emit.__name__, emit.__doc__
        return intrinsic(prefer_literal=LITERAL in operands)(define)  # type: ignore[no-any-return]

    return decorate


def call_llvm(
    builder: ir.IRBuilder, name: str, result: ir.Type, *values: ir.Value, fastmath: tuple[str, ...] = ()
) -> ir.Value:
    """Call an intrinsic of LLVM's."""
    kind = ir.FunctionType(result, [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")
    return builder.call(function, values, fastmath=fastmath)


@operation(types.void, types.uint64, ARRAY, types.uint64)
def run(builder: ir.IRBuilder, entry: ir.Value, slots: ir.Value, first: ir.Value) -> None:
    """Call the entry point (kernels.runtime.native) at an address, with the argument slots from slots[first] on. It
    must be one that raises nothing: its status is ignored."""
    arguments = builder.gep(slots, [first])
    kind = ir.FunctionType(ir.IntType(32), [arguments.type])
    builder.call(builder.inttoptr(entry, kind.as_pointer()), [arguments])


@operation(types.int32, types.uint64, types.uint64, types.uint64, types.uint64, types.uint64)
def call_with_words(
    builder: ir.IRBuilder, function: ir.Value, a: ir.Value, b: ir.Value, c: ir.Value, d: ir.Value
) -> ir.Value:
    """Call a function of four words of 64 bits at an address, which returns an int32."""
    kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)] * 4)
    return builder.call(builder.inttoptr(function, kind.as_pointer()), [a, b, c, d])


@operation(types.float64, types.uint64)
def double_at(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """The float64 at an address."""
    return builder.load(builder.inttoptr(address, ir.DoubleType().as_pointer()))


@operation(types.void, types.uint64, types.float64)
def put_double(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Write a float64 to an address."""
    builder.store(value, builder.inttoptr(address, ir.DoubleType().as_pointer()))


@operation(types.uint64)
def ticks(builder: ir.IRBuilder) -> ir.Value:
    """The processor's time counter, in its own unit; always 0 where programs may not read it."""
    word = ir.IntType(64)
    return call_llvm(builder, "readcyclecounter", word) if X86 else ir.Constant(word, 0)


@operation(types.int64)
def float_mode(builder: ir.IRBuilder) -> ir.Value:
    """Mode of floating-point numbers in this thread: their rounding, and whether denormal ones are flushed to 0."""
    word = ir.IntType(64)
    if X86:
        return builder.zext(builder.load(_control(builder, "stmxcsr")), word)
    return call_llvm(builder, "aarch64.get.fpcr", word) if _ARM else ir.Constant(word, 0)


@operation(types.void, types.int64)
def set_float_mode(builder: ir.IRBuilder, mode: ir.Value) -> None:
    """Set this thread's float mode to one that float_mode() returned in another thread."""
    if X86:
        _control(builder, "ldmxcsr", mode)
    elif _ARM:
        call_llvm(builder, "aarch64.set.fpcr", ir.VoidType(), mode)


def _control(builder: ir.IRBuilder, name: str, mode: ir.Value | None = None) -> ir.Value:
    """Memory that an instruction has filled with the control register of SSE, or has filled it from."""
    place = cgutils.alloca_once(builder, ir.IntType(32))
    if mode is not None:
        builder.store(builder.trunc(mode, ir.IntType(32)), place)
    call_llvm(builder, f"x86.sse.{name}", ir.VoidType(), builder.bitcast(place, cgutils.voidptr_t))
    return place
