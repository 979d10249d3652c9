"""A function for each step but products: loops over a value's numbers, and the lanes of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from headrace.kernels.rows.row_plan import VECTOR, Place, Plan
from headrace.kernels.rows.row_program import (
    BOOL,
    F32,
    I32,
    Input,
    Join,
    Map,
    Pick,
    Reduce,
    Shape,
    Sort,
    Value,
    View,
    contiguous,
)
from headrace.kernels.rows.targets.llvm_expressions import (
    ELEMENTS,
    Node,
    Reader,
    Step,
    expression,
    in_memory,
    leaves,
)
from headrace.kernels.rows.targets.llvm_math import compare, maximum, minimum, select
from headrace.kernels.rows.targets.llvm_text import Body, Module

COUNT = "i64 %count"  # the rows of a block
STARTS = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


def begin(plan: Plan, module: Module, rows: bool) -> Step:
    """Begin a step's function, with vectors for a value with rows, and single numbers otherwise."""
    return Step(plan, module, Body(plan.width if rows else 1))


def store(step: Step, value: Value, place: str, lane: str, found: str, offset: int = 0) -> None:
    """Store one of a value's numbers, so many behind `offset`."""
    b, (memory, further) = step.body, step.address(value, offset)
    place = b.plus(further, place)
    at = b.plus(b.times(place, step.pitch), lane) if step.plan.in_lanes(value) else place
    b.store(in_memory(b, found, value.dtype), memory, at, ELEMENTS[value.dtype])


def fewer_axes(shape: Shape, views: Sequence[Sequence[int]]) -> tuple[Shape, list[list[int]]]:
    """Merge axes of a loop along which all views run on from one to the next. Also gives the views' strides along the
    new axes."""
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in views]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if sizes and all(own[-1] == view[axis] * size for own, view in zip(strides, views, strict=True)):
            sizes[-1] *= size
            for own, view in zip(strides, views, strict=True):
                own[-1] = view[axis]
        else:
            sizes.append(size)
            for own, view in zip(strides, views, strict=True):
                own.append(view[axis])
    return tuple(sizes), strides


def restrided(node: Node, strides: list[list[int]], shape: Shape) -> Node:
    """An expression over other axes: leaves take these strides, in leaves' order."""
    if node.inner:
        inner = tuple(restrided(part, strides, shape) for part in node.inner)
        return Node(node.view, inner)
    return Node(View(node.view.value, shape, tuple(strides.pop(0)), node.view.offset))


def written(step: Step, value: Value, part: int | None = None) -> bool:
    """Write the step of a value that is no sum over rows, and no product. False where nothing is to do. part: of a
    Join, to write that part alone."""
    if isinstance(value, Join):
        return join_step(step, value, part)
    if isinstance(value, Map):
        map_step(step, value)
    elif isinstance(value, Reduce):
        reduce_step(step, value)
    elif isinstance(value, Pick):
        pick_step(step, value)
    else:
        assert isinstance(value, Sort), value
        sort_step(step, value)
    return True


def map_step(step: Step, value: Map) -> None:
    """A Map that is stored."""
    whole_view = View(value, value.shape, contiguous(value.shape))
    node = Node(whole_view, tuple(expression(step.plan, view) for view in value.operands))
    _loops(step, value, node, value.shape, contiguous(value.shape), 0)


def join_step(step: Step, value: Join, only: int | None = None) -> bool:
    """Copy parts, or one of them, to their places in the whole. False where they were computed there."""
    at, copied = 0, False
    strides = contiguous(value.shape)
    for number, part in enumerate(value.parts):
        if only in (None, number) and not _there(step.plan, part, value, at * strides[value.axis]):
            _loops(step, value, expression(step.plan, part), part.shape, strides, at * strides[value.axis])
            copied = True
        at += part.shape[value.axis]
    return copied


def _there(plan: Plan, part: View, join: Join, offset: int) -> bool:
    place, own = plan.places[join], plan.places.get(part.value)
    return own is not None and own == Place(place.space, place.offset + offset) and place.space == "tile"


def _loops(step: Step, value: Value, node: Node, shape: Shape, target: Sequence[int], offset: int) -> None:
    """Store an expression at each index of a shape."""
    merged, strides = fewer_axes(shape, [*(view.strides for view in leaves(node)), target])
    own = strides.pop()
    node = restrided(node, strides, merged)

    def write(index: list[str], lane: str, along: bool = False) -> None:
        found = Reader(step, index, lane, along).value(node)
        place = step.body.plus(*(step.body.times(i, s) for i, s in zip(index, own, strict=True)), 0)
        store(step, value, place, lane, found, offset)

    if (
        step.plan.in_lanes(value)
        or not step.along
        or own[-1:] != [1]
        or any(view.strides[-1] > 1 for view in leaves(node))
    ):
        with step.each(merged, value.rows) as (index, lane):
            write(index, lane)
        return
    whole = merged[-1] - merged[-1] % VECTOR
    for first, end, width in ((0, whole, VECTOR), (whole, merged[-1], 1)):
        if end > first:
            with step.each_along(merged, first, end, width) as index:
                write(index, "0", along=width > 1)


def reduce_step(step: Step, value: Reduce) -> None:
    """A reduction over inner axes."""
    b, kept = step.body, len(value.shape)
    node = expression(step.plan, value.source)
    starts = _starts(b, value)
    with step.each_together(value.shape, value.rows) as (index, firsts):
        place = b.plus(*(b.times(i, s) for i, s in zip(index, contiguous(value.shape), strict=True)), 0)
        results = _carry(step, value, node, index, list(value.source.shape[kept:]), firsts, [starts] * len(firsts))
        for lane, result in zip(firsts, results, strict=True):
            found = result[-1]
            if value.function in ("any", "all"):
                found = compare(b, "une", found, b.number(0))
            store(step, value, place, lane, found)


def _starts(b: Body, value: Reduce) -> list[tuple[str, str]]:
    """(type, first number) of each value that a reduction carries. The last one becomes the result."""
    if value.function in ("argmax", "argmin"):
        return [(b.f32, b.number(-math.inf if value.function == "argmax" else math.inf)), (b.i32, b.integer(0))]
    if value.function in ("any", "all"):
        return [(b.f32, b.number(float(value.function == "all")))]
    if value.dtype == I32:
        start = {"sum": 0, "prod": 1, "max": -(2**31), "min": 2**31 - 1}[value.function]
        return [(b.i32, b.integer(start))]
    return [(b.f32, b.number(STARTS[value.function]))]


def _carry(
    step: Step,
    value: Reduce,
    node: Node,
    index: list[str],
    inner: list[int],
    firsts: list[str],
    carried: list[list[tuple[str, str]]],
) -> list[list[str]]:
    """Write loops over the inner axes. Gives the values that each group of lanes carries at their end."""
    b = step.body
    if not inner:
        readers = [Reader(step, index, lane) for lane in firsts]
        return [
            _next(b, value, [name for _, name in own], reader.value(node), index, node)
            for own, reader in zip(carried, readers, strict=True)
        ]
    flat = [pair for own in carried for pair in own]
    with b.carrying(inner[0], flat) as (i, names, ends):
        again = iter(names)
        own = [[(kind, next(again)) for kind, _ in group] for group in carried]
        found = _carry(step, value, node, [*index, i], inner[1:], firsts, own)
        ends += [name for group in found for name in group]
    left = iter(ends)
    return [[next(left) for _ in group] for group in carried]


def _next(b: Body, value: Reduce, state: list[str], x: str, index: list[str], node: Node) -> list[str]:
    """Write the code that adds one more number to the values that a reduction carries."""
    name, dtype = value.function, node.view.value.dtype
    if name in ("any", "all"):
        number = in_memory(b, x, BOOL)
        return [(maximum if name == "any" else minimum)(b, state[0], number)]
    if name in ("argmax", "argmin"):
        number = x if dtype == F32 else b.new(f"sitofp {b.i32} {x} to {b.f32}")
        how = "ogt" if name == "argmax" else "olt"
        better = compare(b, how, number, state[0])
        nan = b.new(f"and {b.i1} {compare(b, 'uno', number, number)}, {compare(b, 'ord', state[0], state[0])}")
        better = b.new(f"or {b.i1} {better}, {nan}")
        at = index[-1]
        one = at if at.isdecimal() else b.new(f"trunc i64 {at} to i32")
        place = b.integer(int(one)) if one.isdecimal() else b.broadcast(one, "i32")
        return [select(b, better, number, state[0]), select(b, better, place, state[1], b.i32)]
    if dtype == I32:
        if name in ("max", "min"):
            return [b.intrinsic({"max": "smax", "min": "smin"}[name], "i32", state[0], x)]
        return [b.ints({"sum": "add", "prod": "mul"}[name], state[0], x)]
    return [combined(b, name, state[0], x)]


def combined(b: Body, function: str, x: str, y: str) -> str:
    """Two numbers of a reduction as one."""
    if function in ("sum", "prod"):
        return b.floats({"sum": "fadd", "prod": "fmul"}[function], x, y)
    return (maximum if function == "max" else minimum)(b, x, y)


def row_sum_step(plan: Plan, module: Module, value: Reduce) -> Step:
    """Add numbers of the block's rows to VECTOR accumulators of each number, at %sums; or keep the larger of both."""
    step = begin(plan, module, True)
    b, node = step.body, expression(plan, value.source)
    kept = len(value.shape)
    inside = [_inside(b, first) for first in range(0, step.plan.lanes, VECTOR)]
    with ExitStack() as stack:
        index = [stack.enter_context(b.loop(n)) for n in value.shape]
        place = b.plus(*(b.times(i, s) for i, s in zip(index, contiguous(value.shape), strict=True)), 0)
        at = b.times(place, VECTOR)
        before = b.load("%sums", at)
        inner = list(value.source.shape[kept:])
        total = _row_sum(step, value, node, index, inner, inside, before)
        b.store(total, "%sums", at)
    return step


def _inside(b: Body, first: int) -> str:
    """Mask of the lanes from `first` on that are rows."""
    if b.width == 1:
        return "true"
    count = b.broadcast(b.new("trunc i64 %count to i32"), "i32")
    numbers = ", ".join(f"i32 {first + i}" for i in range(VECTOR))
    return b.new(f"icmp ult {b.i32} <{numbers}>, {count}")


def _row_sum(
    step: Step, value: Reduce, node: Node, index: list[str], inner: list[int], inside: list[str], total: str
) -> str:
    b = step.body
    if inner:
        with b.carrying(inner[0], [(b.f32, total)]) as (i, names, ends):
            ends.append(_row_sum(step, value, node, [*index, i], inner[1:], inside, names[0]))
        return ends[0]
    values = [Reader(step, index, str(first)).value(node) for first in range(0, step.plan.lanes, VECTOR)]
    start = b.number(STARTS[value.function])
    kept = [select(b, own, x, start) for own, x in zip(inside, values, strict=True)]
    while len(kept) > 1:
        kept = [combined(b, value.function, *kept[i : i + 2]) for i in range(0, len(kept), 2)]
    return combined(b, value.function, total, kept[0])


def pick_step(step: Step, value: Pick) -> None:
    """Pick the source's number at an index, for each number. Every index is compared, so one out of range gives NaN."""
    b = step.body
    source, number = Node(value.source), expression(step.plan, value.index)
    count, dtype = value.source.shape[-1], value.dtype
    kind = b.kind({F32: "float", I32: "i32", BOOL: "i1"}[dtype])
    start = {F32: b.number(math.nan), I32: b.integer(-1), BOOL: b.splat("i1 0")}[dtype]
    with step.each(value.shape, value.rows) as (index, lane):
        wanted = Reader(step, index, lane).value(number)
        with b.carrying(count, [(kind, start)]) as (i, names, ends):
            own = i if i.isdecimal() else b.new(f"trunc i64 {i} to i32")
            here = b.integer(int(own)) if own.isdecimal() else b.broadcast(own, "i32")
            found = Reader(step, [*index, i], lane).value(source)
            ends.append(select(b, b.new(f"icmp eq {b.i32} {wanted}, {here}"), found, names[0], kind))
        place = b.plus(*(b.times(i, s) for i, s in zip(index, contiguous(value.shape), strict=True)), 0)
        store(step, value, place, lane, ends[0])


def sort_step(step: Step, value: Sort) -> None:
    """Sort by a network of exchanges, the same for all lanes. Equals stay in order, NaN comes last."""
    b, count = step.body, value.shape[-1]
    numbers = b.new(f"alloca [{count} x {b.f32}], align 64")
    places = b.new(f"alloca [{count} x {b.i32}], align 64") if value.places else None
    pairs = network(count)
    lows, highs = (step.module.constant([str(pair[k]) for pair in pairs], "i32") for k in (0, 1))
    with step.each(value.shape[:-1], value.rows) as (index, lane):
        with b.loop(count) as i:
            x = Reader(step, [*index, i], lane).value(Node(value.source))
            if value.source.value.dtype == I32:
                x = b.new(f"sitofp {b.i32} {x} to {b.f32}")
            b.store(x, numbers, b.times(i, b.width))
            if places is not None:
                one = b.integer(int(i)) if i.isdecimal() else b.broadcast(b.new(f"trunc i64 {i} to i32"), "i32")
                b.store(one, places, b.times(i, b.width), "i32")
        if pairs:
            with b.loop(len(pairs)) as k:
                low, high = (b.times(_number(b, table, k), b.width) for table in (lows, highs))
                _exchange(b, numbers, places, low, high)
        with b.loop(count) as i:
            found = b.load(numbers if places is None else places, b.times(i, b.width), "i32" if places else "float")
            if not value.places and value.dtype == I32:
                found = b.new(f"fptosi {b.f32} {found} to {b.i32}")
            at = b.plus(*(b.times(k, s) for k, s in zip([*index, i], contiguous(value.shape), strict=True)), 0)
            store(step, value, at, lane, found)


def network(count: int) -> list[tuple[int, int]]:
    """Pairs of places that sort so many numbers: one pair after the other, numbers are exchanged where the first is
    larger. Batcher's merge exchange: Knuth, The Art of Computer Programming, 5.2.2, algorithm M."""
    pairs: list[tuple[int, int]] = []
    half = 1 << max(count - 1, 1).bit_length() - 1
    p = half
    while p and count > 1:
        q, r, d = half, 0, p
        while True:
            pairs += [(i, i + d) for i in range(count - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return pairs


def _number(b: Body, table: str, k: str) -> str:
    """A whole number of a constant table, as an index."""
    found = b.new(f"load i32, ptr {b.at(table, k, 'i32')}, align 4")
    return b.new(f"zext i32 {found} to i64")


def _exchange(b: Body, numbers: str, places: str | None, low: str, high: str) -> None:
    x, y = b.load(numbers, low), b.load(numbers, high)
    nan = b.new(f"and {b.i1} {compare(b, 'uno', x, x)}, {compare(b, 'ord', y, y)}")
    later = b.new(f"or {b.i1} {compare(b, 'ogt', x, y)}, {nan}")
    if places is not None:
        p, q = b.load(places, low, "i32"), b.load(places, high, "i32")
        nans = b.new(f"and {b.i1} {compare(b, 'uno', x, x)}, {compare(b, 'uno', y, y)}")
        equal = b.new(f"or {b.i1} {compare(b, 'oeq', x, y)}, {nans}")
        turned = b.new(f"and {b.i1} {equal}, {b.new(f'icmp ugt {b.i32} {p}, {q}')}")
        later = b.new(f"or {b.i1} {later}, {turned}")
        b.store(select(b, later, q, p, b.i32), places, low, "i32")
        b.store(select(b, later, p, q, b.i32), places, high, "i32")
    b.store(select(b, later, y, x), numbers, low)
    b.store(select(b, later, x, y), numbers, high)


GATHERED = {"float32": ("float", ""), "int32": ("i32", ""), "int64": ("i64", "trunc i64 {} to i32")} | {
    **{"bool": ("i8", "uitofp i8 {} to float"), "uint8": ("i8", "zext i8 {} to i32")},
    "float64": ("double", "fptrunc double {} to float"),
}


def gather_step(module: Module, value: Input, dtype: str, lanes: int) -> str:
    """Gather a column's numbers of a block's rows. Lanes after the last row repeat that row. dtype: numpy's name."""
    b = Body(1)
    element, conversion = GATHERED[dtype]
    made = "i32" if value.dtype == I32 else "float"
    begins = b.new(f"alloca [{lanes} x i64], align 64")
    last = b.new("sub i64 %count, 1")
    ordered = b.new("icmp ne ptr %order, null")
    with b.loop(lanes) as lane:
        inside = b.new(f"icmp ult i64 {lane}, %count")
        place = b.new(f"add i64 %first, {b.new(f'select i1 {inside}, i64 {lane}, i64 {last}')}")
        # of rows in their own order, any address that can be read
        where = b.new(f"select i1 {ordered}, ptr {b.at('%order', place, 'i64')}, ptr {begins}")
        given = b.new(f"load i64, ptr {where}, align 8")
        row = b.new(f"select i1 {ordered}, i64 {given}, i64 {place}")
        b.do(f"store i64 {b.new(f'mul i64 {row}, %row_stride')}, ptr {b.at(begins, lane, 'i64')}, align 8")
    with b.loop(value.size) as i:
        number = b.new(f"mul i64 {b.plus(i, value.first)}, %number_stride")
        with b.loop(lanes) as lane:
            begin_ = b.new(f"load i64, ptr {b.at(begins, lane, 'i64')}, align 8")
            at = b.new(f"add i64 {begin_}, {number}")
            x = b.new(f"load {element}, ptr {b.at('%data', at, element)}, align 1")
            if conversion:
                x = b.new(conversion.format(x))
            target = b.at("%tile", b.plus(b.times(i, lanes), lane))
            b.do(f"store {made} {x}, ptr {target}, align 4")
    parameters = "ptr %data, i64 %row_stride, i64 %number_stride, ptr %order, i64 %first, i64 %count"
    return module.function(b, f"{parameters}, ptr noalias %tile")
