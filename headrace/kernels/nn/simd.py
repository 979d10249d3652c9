"""Sixteen float32 at once, as a value that Numba code can name: load, compute, add up.

LLVM's own vectoriser sums in an order that depends on the machine, and halves the width of AVX-512. A kernel that
computes `fma(w, load(x, i), total)` on `Lanes` does not. Where the machine has no 512-bit registers, LLVM splits each
value into two or four; results do not change.
"""

from __future__ import annotations

import operator

from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core.base import BaseContext  # noqa: TID253
from numba.core.datamodel import DataModelManager  # noqa: TID253
from numba.core.imputils import lower_builtin  # noqa: TID253
from numba.core.typing import Signature, signature  # noqa: TID253
from numba.core.typing.templates import AbstractTemplate, infer_global  # noqa: TID253
from numba.extending import models, register_model  # noqa: TID253

from headrace.kernels.runtime.intrinsics import ARRAY, call_llvm, operation

_float, _word = ir.FloatType(), ir.IntType(32)
vector = ir.VectorType(_float, 16)


class _Lanes(types.Type):
    """Sixteen float32."""


lanes = _Lanes("lanes")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: DataModelManager, kind: types.Type) -> None:
        super().__init__(manager, kind, vector)


def broadcast(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A vector of sixteen times the same float32."""
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(_word, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(_word, 16), [0] * 16))


def load_vector(builder: ir.IRBuilder, data: ir.Value, index: ir.Value) -> ir.Value:
    """The vector at data[index], of a pointer to float32."""
    return builder.load(builder.bitcast(builder.gep(data, [index]), vector.as_pointer()), align=4)


def fma_vector(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, rounded once."""
    return call_llvm(builder, f"fma.v{x.type.count}f32", x.type, x, y, z)


@infer_global(operator.add)
class _Add(AbstractTemplate):
    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Signature | None:
        return signature(lanes, lanes, lanes) if args == (lanes, lanes) else None


@lower_builtin(operator.add, lanes, lanes)
def _add(context: BaseContext, builder: ir.IRBuilder, call: Signature, args: tuple[ir.Value, ir.Value]) -> ir.Value:
    return builder.fadd(*args)


# load(array, index): the sixteen values from array[index] on, of a contiguous float32 array.
# splat(value): sixteen times the same float32. fma(x, y, z): x * y + z, rounded once.
load = operation(lanes, ARRAY, types.uint64)(load_vector)
splat, fma = operation(lanes, types.float32)(broadcast), operation(lanes, lanes, lanes, lanes)(fma_vector)


@operation(types.float32, lanes)
def total(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The sum of sixteen values, pairwise."""
    zero = ir.Constant(_float, -0.0)
    return call_llvm(builder, "vector.reduce.fadd.v16f32", _float, zero, x, fastmath=("reassoc",))
