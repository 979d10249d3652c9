"""Sums over rows as LLVM assembly: taken block by block within a phase, or after it in pieces, each over all rows; and
the accumulators of parts, added in order, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from headrace.kernels.rows import slots
from headrace.kernels.rows.row_plan import VECTOR, Phase, Plan, matrix, outer_form, padded, pieces
from headrace.kernels.rows.row_program import Outer, Reduce, Value, View
from headrace.kernels.rows.targets.cpu_calls import Caller
from headrace.kernels.rows.targets.cpu_rolled import Address
from headrace.kernels.rows.targets.llvm_expressions import Step
from headrace.kernels.rows.targets.llvm_products import Multiply, dots_step, multiply
from headrace.kernels.rows.targets.llvm_steps import COUNT, begin, combined, row_sum_step
from headrace.kernels.rows.targets.llvm_text import Body, Module
from headrace.kernels.rows.targets.llvm_tiles import add_on_tiles


def add_block(call: Caller, wide: bool, value: Value) -> None:
    """Call what adds a block's rows to the accumulators of a sum over rows."""
    if isinstance(value, Reduce):
        _add_along_lanes(call, value, row_sum_step(call.plan, call.module, value))
        return
    assert isinstance(value, Outer)
    if outer_form(value) == "dots":
        _add_along_lanes(call, value, dots_step(begin(call.plan, call.module, True), value))
        return
    sizes = _sizes(call.plan, value, matrix(value)[0].shape[-1], "target")
    for weight, source, more in _factors(call, value):
        name = _multiply(call, value, replace(sizes, **more), wide)
        call.do(name, [weight, source, call.sums(value), f"i64 {call.count}"])


def _add_along_lanes(call: Caller, value: Value, step: Step) -> None:
    call.step(step, f"ptr noalias %sums, {COUNT}", [call.sums(value), f"i64 {call.count}"])


def _sizes(plan: Plan, value: Outer, rows: int, start: str) -> Multiply:
    """The product that adds to so many rows of an Outer's accumulators."""
    own, _, pitch = matrix(value)
    lanes = plan.lanes
    return Multiply(rows, None, pitch, own.strides[-1] * lanes, 1, VECTOR, pitch, start, strip=VECTOR * lanes)


def _multiply(call: Caller, value: Outer, sizes: Multiply, wide: bool) -> str:
    """The function of an Outer's product."""
    if call.plan.transposed[value].packed:
        return add_on_tiles(call.module, replace(sizes, lanes=call.plan.lanes))
    return multiply(call.module, sizes, wide)


def _factors(call: Caller, value: Outer) -> Iterator[tuple[Address, Address, dict[str, Any]]]:
    """Addresses of an Outer's two factors in a block, and the sums that Multiply computes in turn: one matrix for each
    index of the first axes."""
    (own, _, pitch), lanes = matrix(value), call.plan.lanes
    together = own.shape[-2] if len(own.shape) > 1 else 1
    more = {"again": together, "next": (own.strides[-2] * lanes, pitch * lanes)} if together > 1 else {}
    for number, index in enumerate(indices(own.shape[:-2])):
        weight = call.at(own.value, place_in(own, index) * lanes)
        yield weight, call.at(call.plan.transposed[value], number * together * pitch * lanes), more


def divided(name: str, cuts: list[list[int]], make: Callable[[int, int, str], str]) -> list[str]:
    """Write the function of that name, which does one piece, and the functions that it calls. cuts: for each matrix,
    the rows of each piece. make: writes the function of a name that does so many rows of a matrix, from row %first
    on."""
    functions, b, begin = list[str](), Body(1), 0
    part = b.new(f"load i64, ptr {b.at('%slots', str(slots.PART), 'i64')}, align 8")
    for number, cut in enumerate(cuts):
        for rows in dict.fromkeys(cut):
            title = f"{name}_{number}_{rows}"
            functions.append(make(number, rows, title))
            end = begin + (len(cut) if rows == cut[-1] else len(cut) - 1)
            at = b.mul(b.new(f"sub i64 {part}, {begin}"), cut[0])
            inside, mark = b.new(f"icmp ult i64 {part}, {end}"), len(b.lines)
            b.do(f"br i1 {inside}, label %own{mark}, label %next{mark}")
            b.lines += [f"own{mark}:", f"  call void @{title}(ptr %slots, i64 {at})", "  ret void", f"next{mark}:"]
        begin += len(cut)
    return [*functions, function(name, b, "ptr %slots")]


def gradients(plan: Plan, module: Module, wide: bool, name: str, phase: Phase) -> list[str]:
    """Write the function of that name, which computes a piece of a phase's gradients, and the functions below it."""
    groups = phase.gradients

    def piece(group: int, rows: int, title: str) -> str:
        return _piece(plan, module, wide, groups[group], rows, title)

    return divided(name, [pieces(values[0]) for values in groups], piece)


def _piece(plan: Plan, module: Module, wide: bool, values: list[Value], rows: int, name: str) -> str:
    """The function that computes so many rows of a sum, from row %first on."""
    b = Body(1)
    call, value, lanes = Caller(plan, module, b), values[0], plan.lanes
    all_rows = call.slot(slots.ROWS)
    blocks = b.new(f"udiv i64 {b.add(all_rows, lanes - 1)}, {lanes}")
    sums, target = call.sums(value), next(call.at(own, 0) for own in values if own in plan.places)
    if isinstance(value, Outer) and outer_form(value) != "dots":
        sums = call.moved(sums, "%first", matrix(value)[2])
        target = call.moved(target, "%first", 1 if outer_form(value) == "left" else value.shape[-1])
        last = b.new(f"sub i64 {all_rows}, {b.mul(b.add(blocks, -1), lanes)}")
        with call.together():
            _multiply_blocks(call, wide, values, rows, sums, [f"i64 {last}", f"i64 {blocks}"])
    else:
        call.clear(value)
        with b.loop(blocks) as block:
            call.begin_block(block, all_rows)
            with call.together():
                for own in values:
                    add_block(call, wide, own)
    for ending in finish(module, value, rows):
        call.do(ending, [sums, target, "i64 1", "i64 0"])
    return function(name, b, "ptr %slots, i64 %first")


def _multiply_blocks(
    call: Caller, wide: bool, values: list[Value], rows: int, sums: Address, counts: list[str]
) -> None:
    """Call the function that computes rows of a matrix over all blocks, from row %first on. counts: rows of the last
    block, and blocks."""
    plan, start = call.plan, "zero"
    for value in values:
        assert isinstance(value, Outer)
        sizes = replace(_sizes(plan, value, rows, start), blocks=plan.kept * plan.lanes, lanes=plan.lanes)
        for weight, source, more in _factors(call, value):
            name = _multiply(call, value, replace(sizes, start=start, **more), wide)
            call.do(name, [call.moved(weight, "%first", sizes.row), source, sums, *counts])
            start = "target"


def finish(module: Module, value: Value, rows: int | None = None) -> list[str]:
    """Write the functions of %sums, %target, %parts and %stride that write a sum. rows: of a matrix of accumulators, if
    not all."""
    if not isinstance(value, Outer) or outer_form(value) == "dots":
        b, how = Body(), value.function if isinstance(value, Reduce) else "sum"
        with b.loop(value.size) as i:
            total = _of_parts(b, b.times(i, VECTOR), how)
            b.do(f"store float {_across(b, total, how)}, ptr {b.at('%target', i)}, align 4")
        return [_ending(module, b)]
    n, k = value.shape
    if outer_form(value) == "left":
        b = Body(1)
        with b.loop(n) as i, b.loop(rows or k) as j:
            total = _of_parts(b, b.plus(b.times(j, padded(n)), i))
            b.store(total, "%target", b.plus(b.times(i, k), j))
        return [_ending(module, b)]
    found, whole = list[str](), k - k % VECTOR
    for first, end, width in ((0, whole, VECTOR), (whole, k, 1)):
        if end > first:
            b = Body(width)
            with b.loop(rows or n) as i, b.loop(end, width, first) as j:
                total = _of_parts(b, b.plus(b.times(i, padded(k)), j))
                b.store(total, "%target", b.plus(b.times(i, k), j))
            found.append(_ending(module, b))
    return found


def _ending(module: Module, b: Body) -> str:
    return module.function(b, "ptr noalias %sums, ptr noalias %target, i64 %parts, i64 %stride")


def _of_parts(b: Body, at: str, how: str = "sum") -> str:
    """The sum, largest or smallest over parts of the numbers from `at` on."""
    first = b.load("%sums", at)
    more = b.new("icmp ugt i64 %parts, 1")
    before = b.block
    number = len(b.lines)
    b.do(f"br i1 {more}, label %more{number}, label %sum{number}")
    b.lines.append(f"more{number}:")
    b.block = f"more{number}"
    with b.carrying("%parts", [(b.f32, first)], begin=1) as (part, names, ends):
        place = b.add(b.mul(part, "%stride"), at)
        ends.append(combined(b, how, names[0], b.load("%sums", place)))
    after = b.block
    b.do(f"br label %sum{number}")
    b.lines.append(f"sum{number}:")
    b.block = f"sum{number}"
    return b.new(f"phi {b.f32} [ {first}, %{before} ], [ {ends[0]}, %{after} ]")


def _across(b: Body, x: str, how: str) -> str:
    """The sum, largest or smallest of a vector's numbers, pairwise."""
    width = b.width
    while b.width > 2:
        whole = b.f32
        b.width //= 2
        places = [", ".join(f"i32 {i + first}" for i in range(b.width)) for first in (0, b.width)]
        shuffle = f"shufflevector {whole} {x}, {whole} poison, <{b.width} x i32>"
        x = combined(b, how, *(b.new(f"{shuffle} <{own}>") for own in places))
    pair = [b.new(f"extractelement {b.f32} {x}, i64 {i}") for i in range(2)]
    b.width = 1
    found = combined(b, how, *pair)
    b.width = width
    return found


def indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All indices of an array of this shape, in row-major order."""
    found: list[tuple[int, ...]] = [()]
    for n in shape:
        found = [(*index, i) for index in found for i in range(n)]
    return found


def place_in(view: View, index: tuple[int, ...]) -> int:
    """The place of a view's numbers at an index of its first axes."""
    return view.offset + sum(i * s for i, s in zip(index, view.strides, strict=False))


def function(name: str, b: Body, parameters: str) -> str:
    """A function of the program, as text."""
    text = "\n".join(b.lines)
    return f"define internal void @{name}({parameters}) noinline nounwind {{\nentry:\n{text}\n  ret void\n}}"
