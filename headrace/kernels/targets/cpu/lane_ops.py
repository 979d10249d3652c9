"""Functions of the numbers of several entities at once (kernels.targets.cpu.lane_types) that Numba code can call.

Their names have `lane_` before those of the functions of one number that they stand for: the lane versions of an
environment's functions (kernels.targets.cpu.lane_functions) call them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core.base import BaseContext  # noqa: TID253
from numba.core.typing import Context, Signature  # noqa: TID253
from numba.extending import intrinsic  # noqa: TID253

from headrace.kernels.runtime.intrinsics import call_llvm
from headrace.kernels.targets.cpu.lane_types import (
    SCALARS,
    WORDS,
    number_kind,
    of_size,
    size_of,
    widened,
)

Generate: TypeAlias = Callable[[BaseContext, ir.IRBuilder, Signature, tuple[ir.Value, ...]], ir.Value]
Intrinsic: TypeAlias = Any  # what Numba makes of a function that emits LLVM instructions
Defined: TypeAlias = tuple[Signature, Generate]


def _as(kind: str) -> Intrinsic:
    """The conversion to a kind."""

    def define(typing: Context, x: types.Type) -> Defined:
        x = types.unliteral(x)

        def generate(context: BaseContext, builder: ir.IRBuilder, call: Signature, args: tuple) -> ir.Value:
            source, size = call.args[0], size_of(call.args[0])
            if not size:
                return context.cast(builder, args[0], source, SCALARS[kind])
            value = widened(context, builder, args[0], source, number_kind(source), size)
            return _converted(builder, value, number_kind(source), kind)

        return of_size(kind, size_of(x))(x), generate

    define.__name__ = f"lane_{kind}"
    return intrinsic(define)


def _converted(builder: ir.IRBuilder, value: ir.Value, source: str, kind: str) -> ir.Value:
    vector = ir.VectorType(WORDS[kind], value.type.count)
    if source == kind:
        return value
    if kind == "b":
        zero = ir.Constant(value.type, None)
        return builder.fcmp_unordered("!=", value, zero) if source == "f32" else builder.icmp_signed("!=", value, zero)
    if kind == "f32":
        return builder.sitofp(value, vector) if source == "i32" else builder.uitofp(value, vector)
    if source == "f32":
        return builder.fptosi(value, vector) if kind == "i32" else builder.fptoui(value, vector)
    if WORDS[source].width > WORDS[kind].width:
        return builder.trunc(value, vector)
    if WORDS[source].width < WORDS[kind].width:
        return builder.sext(value, vector) if source == "i32" else builder.zext(value, vector)
    return value  # i32 and u32 have the same bits


lane_F32, lane_I32, lane_U32, lane_U64, lane_BOOL = (_as(kind) for kind in ("f32", "i32", "u32", "u64", "b"))


@intrinsic
def lane_select(typing, condition, a, b):  # type: ignore
    """a where the condition holds, b elsewhere; both are computed."""
    condition, a, b = (types.unliteral(x) for x in (condition, a, b))
    kind, size = number_kind(a), size_of(condition, a, b)

    def generate(context, builder, call, args):  # type: ignore
        pairs = list(zip(args[1:], call.args[1:], strict=True))
        values = [widened(context, builder, x, t, kind, size) for x, t in pairs]
        test = widened(context, builder, args[0], call.args[0], "b", size if size_of(call.args[0]) else 0)
        return builder.select(test, *values)

    return of_size(kind, size)(condition, a, b), generate


def _of_one(name: str, emit: Callable[[ir.IRBuilder, str, ir.Value], ir.Value], result: str | None = None) -> Intrinsic:
    """A function of one number. result: the kind it gives, if not its argument's."""

    def define(typing: Context, x: types.Type) -> Defined:
        x = types.unliteral(x)
        kind, size = number_kind(x), size_of(x)

        def generate(context: BaseContext, builder: ir.IRBuilder, call: Signature, args: tuple) -> ir.Value:
            return emit(builder, kind, widened(context, builder, args[0], call.args[0], kind, size))

        return of_size(result or kind, size)(x), generate

    define.__name__ = name
    return intrinsic(define)


def _llvm_name(value: ir.Value) -> str:
    return f"v{value.type.count}f32" if isinstance(value.type, ir.VectorType) else "f32"


def _absolute(builder: ir.IRBuilder, kind: str, x: ir.Value) -> ir.Value:
    if kind == "f32":
        return call_llvm(builder, f"fabs.{_llvm_name(x)}", x.type, x)
    return builder.select(builder.icmp_signed("<", x, ir.Constant(x.type, None)), builder.neg(x), x)


def _with_bits(kind: str) -> Callable[[ir.IRBuilder, str, ir.Value], ir.Value]:
    def emit(builder: ir.IRBuilder, source: str, x: ir.Value) -> ir.Value:
        word = WORDS[kind]
        return builder.bitcast(x, ir.VectorType(word, x.type.count) if isinstance(x.type, ir.VectorType) else word)

    return emit


lane_sqrt = _of_one("lane_sqrt", lambda b, kind, x: call_llvm(b, f"sqrt.{_llvm_name(x)}", x.type, x))
lane_abs = _of_one("lane_abs", _absolute)
lane__as_int = _of_one("lane__as_int", _with_bits("i32"), "i32")
lane__as_float = _of_one("lane__as_float", _with_bits("f32"), "f32")
