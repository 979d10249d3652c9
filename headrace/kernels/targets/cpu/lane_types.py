"""Numbers of several entities at once, as values that Numba code can name: `Lanes`, and `Entities`, some in a row.

Operators and the functions below take a number of Numba's as well, which then stands for the same number in each lane;
of such numbers alone they give one number. Every operation is that of LLVM on a single number, so that an entity's
result has the same bits whatever the number of lanes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core.base import BaseContext  # noqa: TID253
from numba.core.datamodel import DataModelManager  # noqa: TID253
from numba.core.imputils import lower_builtin, lower_cast  # noqa: TID253
from numba.core.typeconv import Conversion  # noqa: TID253
from numba.core.typing import Context, Signature, signature  # noqa: TID253
from numba.core.typing.templates import AbstractTemplate, infer_global  # noqa: TID253
from numba.extending import models, register_model  # noqa: TID253

WORDS = {"f32": ir.FloatType(), "b": ir.IntType(1), "u64": ir.IntType(64)}
WORDS |= dict.fromkeys(("i32", "u32"), ir.IntType(32))
SCALARS = {"f32": types.float32, "b": types.boolean, "u64": types.uint64, "i32": types.int32, "u32": types.uint32}


class Lanes(types.Type):
    """`size` numbers of one kind: f32, i32, u32, u64, or b for booleans."""

    def __init__(self, kind: str, size: int) -> None:
        super().__init__(f"Lanes({kind}, {size})")
        self.kind, self.size = kind, size

    def can_convert_from(self, context: Context, other: types.Type) -> Conversion | None:
        """Convert from one number of the same kind, which stands for all lanes."""
        return Conversion.safe if self._holds(kind_of(other)) else None

    def unify(self, context: Context, other: types.Type) -> types.Type | None:
        """Type of lanes together with one number of the same kind."""
        return self if self._holds(kind_of(other)) else None

    def _holds(self, kind: str | None) -> bool:
        # Numba makes an operation on two uint32 one of 64 bits; the upper ones are not wanted
        return kind == self.kind or (kind, self.kind) == ("u64", "u32")

    @property
    def vector(self) -> ir.VectorType:
        """LLVM's type of them."""
        return ir.VectorType(WORDS[self.kind], self.size)


class Entities(types.Type):
    """The numbers of `size` entities in a row; the value is the first one's."""

    def __init__(self, size: int) -> None:
        super().__init__(f"Entities({size})")
        self.size = size


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: DataModelManager, kind: Lanes) -> None:
        super().__init__(manager, kind, kind.vector)


@register_model(Entities)
class _EntitiesModel(models.PrimitiveModel):
    def __init__(self, manager: DataModelManager, kind: Entities) -> None:
        super().__init__(manager, kind, ir.IntType(64))


def kind_of(kind: types.Type) -> str | None:
    """The kind of a number or of lanes; None for other types."""
    kind = types.unliteral(kind)
    if isinstance(kind, Lanes):
        return kind.kind
    if isinstance(kind, Entities):
        return "i32"
    if isinstance(kind, types.Boolean):
        return "b"
    if isinstance(kind, types.Integer):
        return "i32" if kind.signed else "u64" if kind.bitwidth == 64 else "u32"
    return "f32" if kind == types.float32 else None


def number_kind(kind: types.Type) -> str:
    """The kind of a number or of lanes. Raises TypeError for other types."""
    found = kind_of(kind)
    if found is None:
        raise TypeError(f"{kind} is neither a number of 32 bits nor lanes of them")
    return found


def size_of(*given: types.Type) -> int:
    """Number of lanes of a result of these types; 0 for one number."""
    return max([kind.size for kind in given if isinstance(kind, (Lanes, Entities))], default=0)


def of_size(kind: str, size: int) -> types.Type:
    """Lanes of a kind, or the number where size is 0."""
    return Lanes(kind, size) if size else SCALARS[kind]


def broadcast(builder: ir.IRBuilder, value: ir.Value, size: int) -> ir.Value:
    """A vector of `size` times the same value."""
    vector = ir.VectorType(value.type, size)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), size), [0] * size)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def lane_numbers(size: int, word: ir.Type) -> ir.Constant:
    """0, 1, 2 ..."""
    return ir.Constant(ir.VectorType(word, size), list(range(size)))


def widened(
    context: BaseContext, builder: ir.IRBuilder, value: ir.Value, source: types.Type, kind: str, size: int
) -> ir.Value:
    """A value as `size` lanes of a kind; size 0: as one number. Not a conversion: the kind is its own, or a wider
    unsigned one."""
    source = types.unliteral(source)
    if isinstance(source, Entities):
        first = builder.trunc(value, ir.IntType(32))
        value = builder.add(broadcast(builder, first, source.size), lane_numbers(source.size, ir.IntType(32)))
        return value
    if isinstance(source, Lanes):
        wide = ir.VectorType(WORDS[kind], source.size)
        return builder.zext(value, wide) if kind == "u64" and source.kind == "u32" else value
    if source != SCALARS[kind]:
        value = context.cast(builder, value, source, SCALARS[kind])
    if kind == "b" and value.type != WORDS["b"]:
        value = builder.trunc(value, WORDS["b"])
    return broadcast(builder, value, size) if size else value


@lower_cast(types.Number, Lanes)
@lower_cast(types.Boolean, Lanes)
@lower_cast(Entities, Lanes)
def _cast(context: BaseContext, builder: ir.IRBuilder, source: types.Type, target: Lanes, value: ir.Value) -> ir.Value:
    return widened(context, builder, value, source, target.kind, target.size)


Emit = Callable[[ir.IRBuilder, str, ir.Value, ir.Value], ir.Value]


def _operand_kind(args: Sequence[types.Type]) -> str | None:
    """Kind in which lanes and lanes, or lanes and a number, are combined. None for two kinds that do not combine."""
    kinds = {kind_of(arg) for arg in args}
    if kinds == {"u32", "u64"}:  # a number with lanes of 32 bits has no more of its own
        kinds = {kind_of(arg) for arg in args if size_of(arg)}
    return max(kinds) if len(kinds) == 1 or kinds == {"u32", "u64"} else None  # type: ignore[type-var]


def _binary(symbol: Callable[..., object], emit: Emit, result: str | None = None) -> None:
    """Define an operator of lanes and of lanes with a number. result: its kind, if not the operands'."""

    @infer_global(symbol)
    class Template(AbstractTemplate):
        def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Signature | None:
            kinds = {kind_of(arg) for arg in args}
            if len(args) != 2 or not size_of(*args) or None in kinds:
                return None
            kind = _operand_kind(args)
            return kind and signature(Lanes(result or kind, size_of(*args)), *map(types.unliteral, args))

    def lower(context: BaseContext, builder: ir.IRBuilder, call: Signature, args: tuple[ir.Value, ...]) -> ir.Value:
        kind = _operand_kind(call.args) or ""
        values = [
            widened(context, builder, x, t, kind, call.return_type.size) for x, t in zip(args, call.args, strict=True)
        ]
        return emit(builder, kind, *values)

    for one in (Lanes, Entities):
        lower_builtin(symbol, one, types.Any)(lower)
        lower_builtin(symbol, types.Any, one)(lower)
        for other in (Lanes, Entities):
            lower_builtin(symbol, one, other)(lower)


def _arithmetic(of_floats: str | None, of_integers: str) -> Emit:
    def emit(builder: ir.IRBuilder, kind: str, a: ir.Value, b: ir.Value) -> ir.Value:
        return getattr(builder, of_floats if kind == "f32" else of_integers)(a, b)  # type: ignore[arg-type,no-any-return]

    return emit


def _comparison(symbol: str) -> Emit:
    def emit(builder: ir.IRBuilder, kind: str, a: ir.Value, b: ir.Value) -> ir.Value:
        if kind == "f32":
            return (builder.fcmp_unordered if symbol == "!=" else builder.fcmp_ordered)(symbol, a, b)
        return (builder.icmp_signed if kind == "i32" else builder.icmp_unsigned)(symbol, a, b)

    return emit


def _shifted_right(builder: ir.IRBuilder, kind: str, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.ashr(a, b) if kind == "i32" else builder.lshr(a, b)


def _floored(of_quotient: bool) -> Emit:
    """a // b and a % b of integers, rounded down as in Python; b is not 0."""

    def emit(builder: ir.IRBuilder, kind: str, a: ir.Value, b: ir.Value) -> ir.Value:
        if kind != "i32":
            return (builder.udiv if of_quotient else builder.urem)(a, b)
        quotient, rest = builder.sdiv(a, b), builder.srem(a, b)
        zero = ir.Constant(a.type, None)
        past = builder.icmp_signed("<", builder.xor(rest, b), zero)
        past = builder.and_(past, builder.icmp_signed("!=", rest, zero))
        one = builder.sext(past, a.type)  # -1 where the quotient was rounded up
        return builder.add(quotient, one) if of_quotient else builder.add(rest, builder.and_(one, b))

    return emit


_binary(operator.add, _arithmetic("fadd", "add"))
_binary(operator.sub, _arithmetic("fsub", "sub"))
_binary(operator.mul, _arithmetic("fmul", "mul"))
_binary(operator.truediv, _arithmetic("fdiv", "fdiv"))
_binary(operator.floordiv, _floored(True))
_binary(operator.mod, _floored(False))
_binary(operator.and_, _arithmetic(None, "and_"))
_binary(operator.or_, _arithmetic(None, "or_"))
_binary(operator.xor, _arithmetic(None, "xor"))
_binary(operator.lshift, _arithmetic(None, "shl"))
_binary(operator.rshift, _shifted_right)
_binary(operator.lt, _comparison("<"), "b")
_binary(operator.le, _comparison("<="), "b")
_binary(operator.gt, _comparison(">"), "b")
_binary(operator.ge, _comparison(">="), "b")
_binary(operator.eq, _comparison("=="), "b")
_binary(operator.ne, _comparison("!="), "b")


def _unary(symbol: Callable[..., object], emit: Callable[[ir.IRBuilder, str, ir.Value], ir.Value]) -> None:
    """Define an operator of one operand."""

    @infer_global(symbol)
    class Template(AbstractTemplate):
        def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Signature | None:
            return signature(Lanes(number_kind(args[0]), args[0].size), args[0]) if size_of(*args) else None

    def lower(context: BaseContext, builder: ir.IRBuilder, call: Signature, args: tuple[ir.Value, ...]) -> ir.Value:
        kind, size = call.return_type.kind, call.return_type.size
        return emit(builder, kind, widened(context, builder, args[0], call.args[0], kind, size))

    for one in (Lanes, Entities):
        lower_builtin(symbol, one)(lower)


_unary(operator.neg, lambda builder, kind, x: builder.fneg(x) if kind == "f32" else builder.neg(x))
_unary(operator.invert, lambda builder, kind, x: builder.not_(x))
