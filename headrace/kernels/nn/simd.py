"""Sixteen float32 at once, as a value that Numba code can name: load, compute, store.

LLVM's own vectoriser keeps the sums of a matrix product in memory and halves the width of AVX-512. A kernel that says
`fma(w, load(x, i), total)` on `Lanes` keeps them in registers. Where the machine has no 512-bit registers, LLVM splits
each value into two or four; results do not change.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core import cgutils  # noqa: TID253
from numba.core.imputils import lower_builtin, lower_cast  # noqa: TID253
from numba.core.typing.templates import AbstractTemplate, infer_global, signature  # noqa: TID253
from numba.extending import intrinsic, models, register_model  # noqa: TID253

_float = ir.FloatType()
_floats = ir.VectorType(_float, 16)
_words = ir.VectorType(ir.IntType(32), 16)


class _Lanes(types.Type):
    """Sixteen float32."""

    def can_convert_from(self, context: Any, other: types.Type) -> Any:
        """A float32 stands for sixteen of itself."""
        return context.can_convert(types.float32, types.float32) if other == types.float32 else None


class _Mask(types.Type):
    """Sixteen truth values."""


lanes = _Lanes("lanes")
mask = _Mask("mask")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, _floats)


@register_model(_Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, ir.VectorType(ir.IntType(1), 16))


@lower_cast(types.float32, lanes)
def _cast(context: Any, builder: ir.IRBuilder, source: Any, target: Any, value: ir.Value) -> ir.Value:
    return _splat(builder, value)


def _splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    one = builder.insert_element(ir.Constant(_floats, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, ir.Constant(_floats, ir.Undefined), ir.Constant(_words, [0] * 16))


def _binary(symbol: Any, result: types.Type, emit: Any) -> None:
    """Let `symbol` work on two lanes, or on lanes and a float32."""

    @infer_global(symbol)
    class Template(AbstractTemplate):
        def generic(self, args: tuple[types.Type, ...], kws: Any) -> Any:
            if lanes in args and all(arg in (lanes, types.float32) for arg in args):
                return signature(result, lanes, lanes)
            return None

    @lower_builtin(symbol, lanes, lanes)
    def lower(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        return emit(builder, *args)


_binary(operator.add, lanes, lambda b, x, y: b.fadd(x, y))
_binary(operator.sub, lanes, lambda b, x, y: b.fsub(x, y))
_binary(operator.mul, lanes, lambda b, x, y: b.fmul(x, y))
_binary(operator.truediv, lanes, lambda b, x, y: b.fdiv(x, y))
_binary(operator.lt, mask, lambda b, x, y: b.fcmp_ordered("<", x, y))
_binary(operator.le, mask, lambda b, x, y: b.fcmp_ordered("<=", x, y))
_binary(operator.gt, mask, lambda b, x, y: b.fcmp_ordered(">", x, y))
_binary(operator.eq, mask, lambda b, x, y: b.fcmp_ordered("==", x, y))


def _address(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
    array = context.make_array(call.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), _floats.as_pointer())


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """The sixteen values from array[index] on, of a contiguous float32 array."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        return builder.load(_address(context, builder, call, args), align=4)

    return lanes(array, types.uint64), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index], array[index + 1] ... = value."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        builder.store(args[2], _address(context, builder, call, args), align=4)
        return context.get_dummy_value()

    return types.void(array, types.uint64, lanes), generate


@intrinsic
def turn(typing: Any, array: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> Any:
    """array[target + j * target_row + i] = array[source + i * source_row + j], for i and j below 16.

    In four rounds row i is shuffled with row i + 8, card by card, which brings a bit of i to where one of j was.
    """

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        array, source, source_row, target, target_row = args

        def place(first: ir.Value, row: ir.Value, number: int) -> ir.Value:
            index = builder.add(first, builder.mul(row, ir.Constant(row.type, number)))
            return _address(context, builder, call, (array, index))

        halves = [[j + half + 16 * card for j in range(8) for card in (0, 1)] for half in (0, 8)]
        rows = [builder.load(place(source, source_row, i), align=4) for i in range(16)]
        for _ in range(4):
            pairs = zip(rows[:8], rows[8:], strict=True)
            rows = [builder.shuffle_vector(x, y, ir.Constant(_words, half)) for x, y in pairs for half in halves]
        for j, row in enumerate(rows):
            builder.store(row, place(target, target_row, j), align=4)
        return context.get_dummy_value()

    return types.void(array, *[types.uint64] * 4), generate


@intrinsic
def splat(typing: Any, value: Any) -> Any:
    """Sixteen times the same float32."""
    return lanes(types.float32), lambda context, builder, call, args: _splat(builder, args[0])


@intrinsic
def fma(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        kind = ir.FunctionType(_floats, [_floats] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32"), args)

    return lanes(lanes, lanes, lanes), generate


@intrinsic
def sqrt(typing: Any, x: Any) -> Any:
    """Square root, correctly rounded."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        kind = ir.FunctionType(_floats, [_floats])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.sqrt.v16f32"), args)

    return lanes(lanes), generate


@intrinsic
def select(typing: Any, condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where condition, else `no`."""
    return lanes(mask, lanes, lanes), lambda context, builder, call, args: builder.select(*args)


@intrinsic
def either(typing: Any, x: Any, y: Any) -> Any:
    """Where one of two conditions holds, or both."""
    return mask(mask, mask), lambda context, builder, call, args: builder.or_(*args)


@intrinsic
def total(typing: Any, x: Any) -> Any:
    """The sum of sixteen values, as a tree."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        kind = ir.FunctionType(_float, [_float, _floats])
        reduce = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.fadd.v16f32")
        return builder.call(reduce, [ir.Constant(_float, -0.0), args[0]], fastmath=("reassoc",))

    return types.float32(lanes), generate


@intrinsic
def power_of_two(typing: Any, x: Any) -> Any:
    """2^n, where x = 1.5 * 2^23 + n: the low bits of x are n, and become an exponent. n from -126 to 127."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        shifted = builder.shl(builder.bitcast(args[0], _words), ir.Constant(_words, [23] * 16))
        return builder.bitcast(builder.add(shifted, ir.Constant(_words, [0x3F800000] * 16)), _floats)

    return lanes(lanes), generate


@intrinsic
def exponent(typing: Any, x: Any) -> Any:
    """The binary exponent e of x = m * 2^e, m in [1, 2); x positive and normal."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        bits = builder.lshr(builder.bitcast(args[0], _words), ir.Constant(_words, [23] * 16))
        return builder.sitofp(builder.sub(bits, ir.Constant(_words, [127] * 16)), _floats)

    return lanes(lanes), generate


@intrinsic
def mantissa(typing: Any, x: Any) -> Any:
    """The mantissa m of x = m * 2^e, m in [1, 2); x positive and normal."""

    def generate(context: Any, builder: ir.IRBuilder, call: Any, args: Any) -> ir.Value:
        fraction = builder.and_(builder.bitcast(args[0], _words), ir.Constant(_words, [0x007FFFFF] * 16))
        return builder.bitcast(builder.or_(fraction, ir.Constant(_words, [0x3F800000] * 16)), _floats)

    return lanes(lanes), generate
