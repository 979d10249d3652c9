"""Arrays that several entities, or several environments, read and write at once: functions that Numba code can call.

As in kernels.targets.cpu.lane_ops their names begin with `lane_`.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core import cgutils  # noqa: TID253
from numba.extending import intrinsic  # noqa: TID253
from numba.np.arrayobj import populate_array  # noqa: TID253

from headrace.kernels.runtime.intrinsics import call_llvm
from headrace.kernels.targets.cpu.lane_types import (
    SCALARS,
    WORDS,
    Entities,
    Lanes,
    broadcast,
    lane_numbers,
    number_kind,
    of_size,
    size_of,
    widened,
)

LONG = ir.IntType(64)


def _stored(value: ir.Value, builder: ir.IRBuilder, word: ir.Type) -> ir.Value:
    """Lanes of numbers as they are stored: narrower, booleans as bytes."""
    vector = ir.VectorType(word, value.type.count)
    if value.type.element == word:
        return value
    return builder.zext(value, vector) if value.type.element == WORDS["b"] else builder.trunc(value, vector)


def _loaded(value: ir.Value, builder: ir.IRBuilder, dtype: types.Type) -> ir.Value:
    """Lanes as they are stored -> their value: booleans, and narrow integers as int32."""
    count, kind = value.type.count, number_kind(dtype)
    if kind == "b":
        return builder.trunc(value, ir.VectorType(WORDS["b"], count))
    if kind == "f32" or dtype.bitwidth == 32:
        return value
    vector = ir.VectorType(ir.IntType(32), count)
    return builder.sext(value, vector) if dtype.signed else builder.zext(value, vector)


def _read_kind(dtype: types.Type) -> str:
    """The kind that an array's entries have once read: small unsigned integers are int32."""
    kind = number_kind(dtype)
    return "i32" if kind == "u32" and dtype.bitwidth < 32 else kind


def _pointers(context, builder, array_type, array, index_types, indices, size):  # type: ignore
    """The places of array[indices], one for each lane; indices are kept within the array."""
    made = context.make_array(array_type)(context, builder, array)
    shape = [builder.extract_value(made.shape, k) for k in range(array_type.ndim)]
    strides = [builder.extract_value(made.strides, k) for k in range(array_type.ndim)]
    offset = ir.Constant(ir.VectorType(LONG, size), None)
    for index, kind, count, stride in zip(indices, index_types, shape, strides, strict=True):
        if isinstance(kind, Entities):
            lanes = builder.add(broadcast(builder, index, size), lane_numbers(size, LONG))
        elif isinstance(kind, Lanes):
            lanes = builder.sext(index, ir.VectorType(LONG, size))
        else:
            lanes = broadcast(builder, context.cast(builder, index, kind, types.int64), size)
        if not isinstance(kind, Entities):
            lanes = _within(builder, lanes, broadcast(builder, count, size))
        offset = builder.add(offset, builder.mul(lanes, broadcast(builder, stride, size)))
    base = broadcast(builder, builder.ptrtoint(made.data, LONG), size)
    return builder.inttoptr(builder.add(base, offset), ir.VectorType(made.data.type, size))


def _entry(context, builder, array_type, array, index_types, indices):  # type: ignore
    """array[indices] at one place, kept within the array."""
    made = context.make_array(array_type)(context, builder, array)
    offset = ir.Constant(LONG, 0)
    for k, (index, kind) in enumerate(zip(indices, index_types, strict=True)):
        place = context.cast(builder, index, kind, types.int64)
        place = _within(builder, place, builder.extract_value(made.shape, k))
        offset = builder.add(offset, builder.mul(place, builder.extract_value(made.strides, k)))
    bytes_ = builder.gep(builder.bitcast(made.data, ir.IntType(8).as_pointer()), [offset])
    value = builder.load(builder.bitcast(bytes_, made.data.type))
    return context.cast(builder, value, array_type.dtype, SCALARS[_read_kind(array_type.dtype)])


def _within(builder: ir.IRBuilder, index: ir.Value, count: ir.Value) -> ir.Value:
    """Keep an index, counted from the end if negative, within an array: in lanes that want no value it may be any."""
    zero = ir.Constant(index.type, None)
    index = builder.select(builder.icmp_signed("<", index, zero), builder.add(index, count), index)
    index = builder.select(builder.icmp_signed("<", index, zero), zero, index)
    last = builder.sub(count, ir.Constant(index.type, [1] * index.type.count if count.type != LONG else 1))
    return builder.select(builder.icmp_signed(">", index, last), last, index)


def _gather(builder: ir.IRBuilder, places: ir.Value, mask: ir.Value, other: ir.Value) -> ir.Value:
    word, size = places.type.element.pointee, places.type.count
    vector = ir.VectorType(word, size)
    name = f"masked.gather.v{size}{_short(word)}.v{size}p0"
    return call_llvm(builder, name, vector, places, ir.Constant(ir.IntType(32), _width(word)), mask, other)


def _scatter(builder: ir.IRBuilder, value: ir.Value, places: ir.Value, mask: ir.Value) -> None:
    word, size = value.type.element, value.type.count
    name = f"masked.scatter.v{size}{_short(word)}.v{size}p0"
    call_llvm(builder, name, ir.VoidType(), value, places, ir.Constant(ir.IntType(32), _width(word)), mask)


def _short(word: ir.Type) -> str:
    return "f32" if word == WORDS["f32"] else f"i{word.width}"


def _width(word: ir.Type) -> int:
    return 4 if word == WORDS["f32"] else max(1, word.width // 8)


def _all(size: int) -> ir.Constant:
    return ir.Constant(ir.VectorType(ir.IntType(1), size), [1] * size)


def _row(context, builder, array_type, array, index_types, indices, size):  # type: ignore
    """The address of `size` neighbouring entries of an array, as that of a vector. All indices but the last are kept
    within the array."""
    made = context.make_array(array_type)(context, builder, array)
    word, place = made.data.type.pointee, made.data
    for k, (index, kind) in enumerate(zip(indices[:-1], index_types[:-1], strict=True)):
        inside = _within(builder, context.cast(builder, index, kind, types.int64), builder.extract_value(made.shape, k))
        stride = builder.extract_value(made.strides, k)
        place = cgutils.pointer_add(builder, place, builder.mul(inside, stride))
    place = builder.gep(place, [indices[-1]])
    return builder.bitcast(place, ir.VectorType(word, size).as_pointer()), _width(word)


def _indices(index: types.Type) -> list[types.Type]:
    return list(index) if isinstance(index, types.BaseTuple) else [index]


def _unpacked(builder: ir.IRBuilder, index: types.Type, value: ir.Value) -> list[ir.Value]:
    if isinstance(index, types.BaseTuple):
        return [builder.extract_value(value, k) for k in range(len(index))]
    return [value]


def _contiguous(array: types.Array, kinds: list[types.Type]) -> bool:
    return array.layout == "C" and isinstance(kinds[-1], Entities) and not size_of(*kinds[:-1])


@intrinsic
def lane_get(typing, array, index):  # type: ignore
    """array[index]: of several entities, or at one place."""
    if not isinstance(array, types.Array) or array.ndim != len(_indices(index)):
        return None
    kinds = _indices(types.unliteral(index))
    size, dtype = size_of(*kinds), array.dtype

    def generate(context, builder, call, args):  # type: ignore
        kinds, given = _indices(call.args[1]), _unpacked(builder, call.args[1], args[1])
        if _contiguous(array, kinds):
            place, align = _row(context, builder, array, args[0], kinds, given, size)
            return _loaded(builder.load(place, align=align), builder, dtype)
        if not size:
            return _entry(context, builder, array, args[0], kinds, given)
        places = _pointers(context, builder, array, args[0], kinds, given, size)
        vector = ir.VectorType(places.type.element.pointee, size)
        return _loaded(_gather(builder, places, _all(size), ir.Constant(vector, ir.Undefined)), builder, dtype)

    return of_size(_read_kind(dtype), size)(array, types.unliteral(index)), generate


@intrinsic
def lane_set(typing, array, index, value):  # type: ignore
    """array[index] = value, of several entities."""
    kinds = _indices(types.unliteral(index))
    size = size_of(*kinds)
    if not size:
        return None

    def generate(context, builder, call, args):  # type: ignore
        kinds, given = _indices(call.args[1]), _unpacked(builder, call.args[1], args[1])
        value = widened(context, builder, args[2], call.args[2], number_kind(call.args[2]), size)
        if _contiguous(array, kinds):
            place, align = _row(context, builder, array, args[0], kinds, given, size)
            builder.store(_stored(value, builder, place.type.pointee.element), place, align=align)
        else:
            places = _pointers(context, builder, array, args[0], kinds, given, size)
            _scatter(builder, _stored(value, builder, places.type.element.pointee), places, _all(size))
        return context.get_dummy_value()

    return types.void(array, types.unliteral(index), types.unliteral(value)), generate


def _columns(context, builder, array_type, array, agents, stride, size):  # type: ignore
    """The places of the entries of `size` agents, `stride` entries apart. agents: the first one's number, or lanes of
    numbers."""
    made = context.make_array(array_type)(context, builder, array)
    if isinstance(agents.type, ir.VectorType):
        numbers = builder.sext(agents, ir.VectorType(LONG, size))
    else:
        numbers = builder.add(broadcast(builder, agents, size), lane_numbers(size, LONG))
    offset = builder.mul(numbers, broadcast(builder, stride, size))
    offset = builder.mul(offset, ir.Constant(offset.type, [_width(made.data.type.pointee)] * size))
    base = broadcast(builder, builder.ptrtoint(made.data, LONG), size)
    return builder.inttoptr(builder.add(base, offset), ir.VectorType(made.data.type, size)), numbers


@intrinsic
def lane_column(typing, column, entities, stride, count, other):  # type: ignore
    """column[e * stride] for each of the entities e that is below count, `other` elsewhere."""
    size, kind = entities.size, number_kind(column.dtype)

    def generate(context, builder, call, args):  # type: ignore
        places, numbers = _columns(context, builder, column, args[0], args[1], args[2], size)
        mask = builder.icmp_unsigned("<", numbers, broadcast(builder, args[3], size))
        return _gather(builder, places, mask, widened(context, builder, args[4], call.args[4], kind, size))

    return Lanes(kind, size)(column, entities, types.uint64, types.uint64, types.unliteral(other)), generate


@intrinsic
def lane_to_column(typing, column, entities, stride, count, value):  # type: ignore
    """column[e * stride] = value, for each of the entities e that is below count."""
    size = entities.size

    def generate(context, builder, call, args):  # type: ignore
        places, numbers = _columns(context, builder, column, args[0], args[1], args[2], size)
        mask = builder.icmp_unsigned("<", numbers, broadcast(builder, args[3], size))
        value = widened(context, builder, args[4], call.args[4], number_kind(call.args[4]), size)
        _scatter(builder, value, places, mask)
        return context.get_dummy_value()

    return types.void(column, entities, types.uint64, types.uint64, types.unliteral(value)), generate


@intrinsic(prefer_literal=True)
def lane_entities(typing, first, size):  # type: ignore
    """`size` entities in a row, from the first on. size: known when compiling."""
    kind = Entities(size.literal_value)
    return kind(types.uint64, size), lambda context, builder, call, args: args[0]


@intrinsic
def lane_first(typing, array, first, other):  # type: ignore
    """The entries of a one-dimensional array from a place on, PARTS of them, `other` past its end."""
    kind = _read_kind(array.dtype)

    def generate(context, builder, call, args):  # type: ignore
        made = context.make_array(array)(context, builder, args[0])
        places, numbers = _columns(context, builder, array, args[0], args[1], LONG(1), 16)
        mask = builder.icmp_unsigned("<", numbers, broadcast(builder, builder.extract_value(made.shape, 0), 16))
        word = places.type.element.pointee
        loaded = _gather(builder, places, mask, ir.Constant(ir.VectorType(word, 16), None))
        other = widened(context, builder, args[2], call.args[2], kind, 16)
        return builder.select(mask, _loaded(loaded, builder, array.dtype), other)

    return Lanes(kind, 16)(array, types.uint64, types.unliteral(other)), generate


@intrinsic(prefer_literal=True)
def lane_shifted(typing, values, by):  # type: ignore
    """Move lanes: lane k gets the number of lane k + by; the last ones get any."""
    size, count = values.size, by.literal_value

    def generate(context, builder, call, args):  # type: ignore
        numbers = [min(k + count, size - 1) for k in range(size)]
        order = ir.Constant(ir.VectorType(ir.IntType(32), size), numbers)
        return builder.shuffle_vector(args[0], args[0], order)

    return values(values, by), generate


@intrinsic
def lane_number(typing, values):  # type: ignore
    """The number of the first lane."""

    def generate(context, builder, call, args):  # type: ignore
        return builder.extract_element(args[0], ir.Constant(ir.IntType(32), 0))

    return SCALARS[values.kind](values), generate


@intrinsic(prefer_literal=True)
def lane_stack(typing, like, size):  # type: ignore
    """An array on the stack with the dtype and the shape of `like`, and behind that a dimension of 16 lanes. size: of
    its entries in all, known when compiling."""
    made_type = types.Array(like.dtype, like.ndim + 1, "C")

    def generate(context, builder, call, args):  # type: ignore
        given = context.make_array(like)(context, builder, args[0])
        word = given.data.type.pointee
        shape = [*(builder.extract_value(given.shape, k) for k in range(like.ndim)), LONG(16)]
        strides = [LONG(_width(word))]
        for count in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], count))
        room = cgutils.alloca_once(builder, ir.ArrayType(word, size.literal_value))
        made = context.make_array(made_type)(context, builder)
        data, width = builder.bitcast(room, given.data.type), LONG(_width(word))
        populate_array(made, data=data, shape=shape, strides=strides, itemsize=width, meminfo=None)
        return made._getvalue()

    return made_type(like, size), generate
