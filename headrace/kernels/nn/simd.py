"""Sixteen float32 at once, as a value that Numba code can name: load, compute, store.

LLVM's own vectoriser keeps the sums of a matrix product in memory and halves the width of AVX-512. A kernel that
computes `fma(w, load(x, i), total)` on `Lanes` keeps them in registers. Where the machine has no 512-bit registers,
LLVM splits each value into two or four; results do not change.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import llvmlite.binding
from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core.base import BaseContext  # noqa: TID253
from numba.core.datamodel import DataModelManager  # noqa: TID253
from numba.core.imputils import lower_builtin, lower_cast  # noqa: TID253
from numba.core.typeconv import Conversion  # noqa: TID253
from numba.core.typing import Context, Signature, signature  # noqa: TID253
from numba.core.typing.templates import AbstractTemplate, infer_global  # noqa: TID253
from numba.extending import models, register_model  # noqa: TID253

from headrace.kernels.runtime.intrinsics import ARRAY, X86, call_llvm, operation

_features = llvmlite.binding.get_host_cpu_features()
WIDE = bool(_features.get("avx512f", False))  # registers of 512 bits
_HALVES = X86 and _features.get("avx", False) and not WIDE  # of 256 bits
_float, _word = ir.FloatType(), ir.IntType(32)
vector, _words = ir.VectorType(_float, 16), ir.VectorType(_word, 16)
eight, _eight_words = ir.VectorType(_float, 8), ir.VectorType(_word, 8)


class _Lanes(types.Type):
    """Sixteen float32."""

    def can_convert_from(self, context: Context, other: types.Type) -> Conversion | None:
        """A float32 stands for sixteen of itself."""
        return context.can_convert(types.float32, types.float32) if other == types.float32 else None


class _Mask(types.Type):
    """Sixteen truth values."""


lanes = _Lanes("lanes")
mask = _Mask("mask")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: DataModelManager, kind: types.Type) -> None:
        super().__init__(manager, kind, vector)


@register_model(_Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager: DataModelManager, kind: types.Type) -> None:
        super().__init__(manager, kind, ir.VectorType(ir.IntType(1), 16))


@lower_cast(types.float32, lanes)
def _cast(
    context: BaseContext, builder: ir.IRBuilder, source: types.Type, target: types.Type, value: ir.Value
) -> ir.Value:
    return broadcast(builder, value)


def broadcast(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A vector of sixteen times the same float32."""
    return broadcast_as(builder, value, vector)


def broadcast_as(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    """A vector of this kind, of the same float32 throughout."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_word, 0))
    zeros = ir.Constant(ir.VectorType(_word, kind.count), [0] * kind.count)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)


def constant(number: int) -> ir.Constant:
    """A vector of sixteen times the same 32-bit word."""
    return ir.Constant(_words, [number] * 16)


def load_vector(builder: ir.IRBuilder, data: ir.Value, index: ir.Value) -> ir.Value:
    """The vector at data[index], of a pointer to float32."""
    return load_as(builder, data, index, vector)


def load_as(builder: ir.IRBuilder, data: ir.Value, index: ir.Value, kind: ir.VectorType) -> ir.Value:
    """The vector of this kind at data[index]."""
    return builder.load(builder.bitcast(builder.gep(data, [index]), kind.as_pointer()), align=4)


def store_vector(builder: ir.IRBuilder, data: ir.Value, index: ir.Value, value: ir.Value) -> None:
    """Store a vector at data[index], of a pointer to float32."""
    builder.store(value, builder.bitcast(builder.gep(data, [index]), value.type.as_pointer()), align=4)


def fma_vector(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, rounded once."""
    return call_llvm(builder, f"fma.v{x.type.count}f32", x.type, x, y, z)


def _binary(symbol: Callable[..., object], result: types.Type, emit: Callable[..., ir.Value]) -> None:
    """Define `symbol` for two lanes, and for lanes and a float32."""

    @infer_global(symbol)
    class Template(AbstractTemplate):
        def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Signature | None:
            if lanes in args and all(arg in (lanes, types.float32) for arg in args):
                return signature(result, lanes, lanes)
            return None

    @lower_builtin(symbol, lanes, lanes)
    def lower(
        context: BaseContext, builder: ir.IRBuilder, call: Signature, args: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        return emit(builder, *args)


_binary(operator.add, lanes, lambda b, x, y: b.fadd(x, y))
_binary(operator.sub, lanes, lambda b, x, y: b.fsub(x, y))
_binary(operator.mul, lanes, lambda b, x, y: b.fmul(x, y))
_binary(operator.truediv, lanes, lambda b, x, y: b.fdiv(x, y))
_binary(operator.lt, mask, lambda b, x, y: b.fcmp_ordered("<", x, y))
_binary(operator.le, mask, lambda b, x, y: b.fcmp_ordered("<=", x, y))
_binary(operator.gt, mask, lambda b, x, y: b.fcmp_ordered(">", x, y))
_binary(operator.eq, mask, lambda b, x, y: b.fcmp_ordered("==", x, y))


# load(array, index): the sixteen values from array[index] on, of a contiguous float32 array.
# store(array, index, value): array[index], array[index + 1] ... = value.
# splat(value): sixteen times the same float32. fma(x, y, z): x * y + z, rounded once.
load = operation(lanes, ARRAY, types.uint64)(load_vector)
store = operation(types.void, ARRAY, types.uint64, lanes)(store_vector)
splat, fma = operation(lanes, types.float32)(broadcast), operation(lanes, lanes, lanes, lanes)(fma_vector)


@operation(types.void, ARRAY, *[types.uint64] * 4)
def transpose_16x16(builder, array, source, source_row, target, target_row):  # type: ignore
    """array[target + j * target_row + i] = array[source + i * source_row + j], for i and j below 16; source may be
    target.

    Four perfect shuffles of row i with row i + 8: each exchanges a bit of i with a bit of j. In registers of 256 bits,
    which hold half a row: four blocks of 8 x 8, of which two may take each other's place.
    """

    def at(first: ir.Value, row: ir.Value, number: int) -> ir.Value:
        return builder.add(first, builder.mul(row, ir.Constant(row.type, number)))

    def moved(first: ir.Value, number: int) -> ir.Value:
        return builder.add(first, ir.Constant(first.type, number))

    if _HALVES:
        for blocks in ((0, 0),), ((0, 8), (8, 0)), ((8, 8),):
            taken = [
                [load_as(builder, array, moved(at(source, source_row, i + k), j), eight) for k in range(8)]
                for j, i in blocks
            ]
            for (j, i), rows in zip(blocks, taken, strict=True):
                for k, row in enumerate(_transposed_8x8(builder, rows)):
                    store_vector(builder, array, moved(at(target, target_row, j + k), i), row)
        return
    halves = [[j + half + 16 * row for j in range(8) for row in (0, 1)] for half in (0, 8)]
    rows = [load_vector(builder, array, at(source, source_row, i)) for i in range(16)]
    for _ in range(4):
        pairs = zip(rows[:8], rows[8:], strict=True)
        rows = [builder.shuffle_vector(x, y, ir.Constant(_words, half)) for x, y in pairs for half in halves]
    for j, row in enumerate(rows):
        store_vector(builder, array, at(target, target_row, j), row)


def _transposed_8x8(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """The columns of eight rows of eight, by shuffles that AVX has: within halves, then of halves."""

    def shuffled(x: ir.Value, y: ir.Value, *places: int) -> ir.Value:
        return builder.shuffle_vector(x, y, ir.Constant(_eight_words, places))

    pairs = [
        (shuffled(x, y, 0, 8, 1, 9, 4, 12, 5, 13), shuffled(x, y, 2, 10, 3, 11, 6, 14, 7, 15))
        for x, y in zip(rows[::2], rows[1::2], strict=True)
    ]
    fours = [
        [
            shuffled(a[n], b[n], *part)
            for n in (0, 1)
            for part in ((0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
        ]
        for a, b in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    low, high = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)
    return [shuffled(x, y, *half) for half in (low, high) for x, y in zip(*fours, strict=True)]


@operation(lanes, lanes)
def sqrt(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Square root, correctly rounded."""
    return call_llvm(builder, "sqrt.v16f32", vector, x)


@operation(lanes, mask, lanes, lanes)
def select(builder: ir.IRBuilder, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
    """`yes` where condition, else `no`."""
    return builder.select(condition, yes, no)


@operation(lanes, lanes, lanes)
def largest(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The larger of two; y where one is NaN, or both are 0.

    Without AVX-512, LLVM makes a masked store of a select() that is stored where it was loaded, which takes ten times
    as long as this on some processors.
    """
    if not _HALVES:
        return builder.select(builder.fcmp_ordered(">", x, y), x, y)
    halves = []
    for first in (0, 8):
        part = ir.Constant(_eight_words, [*range(first, first + 8)])
        xs, ys = (builder.shuffle_vector(value, ir.Constant(vector, ir.Undefined), part) for value in (x, y))
        halves.append(call_llvm(builder, "x86.avx.max.ps.256", eight, xs, ys))
    return builder.shuffle_vector(*halves, ir.Constant(_words, [*range(16)]))


@operation(mask, mask, mask)
def either(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Where one of two conditions holds, or both."""
    return builder.or_(x, y)


@operation(types.float32, lanes)
def total(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The sum of sixteen values, pairwise."""
    zero = ir.Constant(_float, -0.0)
    return call_llvm(builder, "vector.reduce.fadd.v16f32", _float, zero, x, fastmath=("reassoc",))


def _totals(builder: ir.IRBuilder, rows: list[ir.Value]) -> ir.Value:
    """The sums of sixteen vectors, each pairwise as in total(): in every step two vectors become one, which takes a
    third of the instructions of sixteen sums."""
    size = 8  # numbers that are left of each row after the step
    while len(rows) > 1:
        half, low = len(rows) // 2, [i for i in range(16) if i % (2 * size) < size]
        parts = [[first + i for begin in low[::size] for i in range(begin, begin + size)] for first in (0, size)]
        places = [
            [x for b in range(0, 8, size) for x in (*part[b : b + size], *(i + 16 for i in part[b : b + size]))]
            for part in parts
        ]
        rows = [
            builder.fadd(*(builder.shuffle_vector(x, y, ir.Constant(_words, place)) for place in places))
            for x, y in zip(rows[:half], rows[half:], strict=True)
        ]
        size //= 2
    return rows[0]


def _row(builder: ir.IRBuilder, array: ir.Value, first: ir.Value, row: ir.Value, number: int) -> list[ir.Value]:
    """The four vectors of row `number`, of rows that begin at array[first] and are `row` apart."""
    start = builder.add(first, builder.mul(row, ir.Constant(row.type, number)))
    return [load_vector(builder, array, builder.add(start, ir.Constant(row.type, 16 * v))) for v in range(4)]


@operation(lanes, ARRAY, *[types.uint64] * 2)
def row_sums(builder, array, first, row):  # type: ignore
    """The sums of sixteen rows of 64 numbers, which begin at array[first] and are `row` apart."""
    rows = [_row(builder, array, first, row, number) for number in range(16)]
    return _totals(builder, [builder.fadd(builder.fadd(a, b), builder.fadd(c, d)) for a, b, c, d in rows])


@operation(lanes, ARRAY, *[types.uint64] * 2, *[lanes] * 4)
def dots(builder, array, first, row, x0, x1, x2, x3):  # type: ignore
    """The products of sixteen such rows with one of 64 numbers, x0 to x3."""
    found = []
    for number in range(16):
        a, b, c, d = _row(builder, array, first, row, number)
        even = fma_vector(builder, c, x2, builder.fmul(a, x0))
        odd = fma_vector(builder, d, x3, builder.fmul(b, x1))
        found.append(builder.fadd(even, odd))
    return _totals(builder, found)


@operation(types.void, ARRAY, *[types.uint64] * 2, lanes)
def add_apart(builder, array, first, row, value):  # type: ignore
    """Add the sixteen numbers of a vector to array[first], array[first + row] ..."""
    for number in range(16):
        place = builder.gep(array, [builder.add(first, builder.mul(row, ir.Constant(row.type, number)))])
        one = builder.extract_element(value, ir.Constant(_word, number))
        builder.store(builder.fadd(builder.load(place), one), place)


@operation(lanes, lanes)
def power_of_two(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2^n, where x = 1.5 * 2^23 + n: the low bits of x are n, and become an exponent. n from -126 to 127."""
    shifted = builder.shl(builder.bitcast(x, _words), constant(23))
    return builder.bitcast(builder.add(shifted, constant(0x3F800000)), vector)


@operation(lanes, lanes)
def exponent(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The binary exponent e of x = m * 2^e, m in [1, 2); x positive and normal."""
    bits = builder.lshr(builder.bitcast(x, _words), constant(23))
    return builder.sitofp(builder.sub(bits, constant(127)), vector)


@operation(lanes, lanes)
def mantissa(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The mantissa m of x = m * 2^e, m in [1, 2); x positive and normal."""
    fraction = builder.and_(builder.bitcast(x, _words), constant(0x007FFFFF))
    return builder.bitcast(builder.or_(fraction, constant(0x3F800000)), vector)
