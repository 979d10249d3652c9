"""Ends of sums over rows as LLVM assembly: the parts' accumulators, added in order, as plain numbers."""

from __future__ import annotations

from headrace.kernels.rows.row_plan import VECTOR, outer_form, padded
from headrace.kernels.rows.row_program import Outer, Reduce, Value
from headrace.kernels.rows.targets.llvm_steps import combined
from headrace.kernels.rows.targets.llvm_text import Body, Module


def finish(module: Module, value: Value, rows: int | None = None) -> list[str]:
    """The functions of %sums, %target, %parts and %stride that write a sum. rows: of a matrix of accumulators, where
    these are not all."""
    if not isinstance(value, Outer) or outer_form(value) == "dots":
        b, function = Body(), value.function if isinstance(value, Reduce) else "sum"
        with b.loop(value.size) as i:
            total = _parts(b, b.times(i, VECTOR), function)
            b.do(f"store float {_across(b, total, function)}, ptr {b.at('%target', i)}, align 4")
        return [_function(module, b)]
    n, k = value.shape
    if outer_form(value) == "left":
        b = Body(1)
        with b.loop(n) as i, b.loop(rows or k) as j:
            total = _parts(b, b.plus(b.times(j, padded(n)), i))
            b.store(total, "%target", b.plus(b.times(i, k), j))
        return [_function(module, b)]
    found, whole = list[str](), k - k % VECTOR
    for first, end, width in ((0, whole, VECTOR), (whole, k, 1)):
        if end > first:
            b = Body(width)
            with b.loop(rows or n) as i, b.loop(end, width, first) as j:
                total = _parts(b, b.plus(b.times(i, padded(k)), j))
                b.store(total, "%target", b.plus(b.times(i, k), j))
            found.append(_function(module, b))
    return found


def _function(module: Module, b: Body) -> str:
    return module.function(b, "ptr noalias %sums, ptr noalias %target, i64 %parts, i64 %stride")


def _parts(b: Body, at: str, function: str = "sum") -> str:
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
        ends.append(combined(b, function, names[0], b.load("%sums", place)))
    after = b.block
    b.do(f"br label %sum{number}")
    b.lines.append(f"sum{number}:")
    b.block = f"sum{number}"
    return b.new(f"phi {b.f32} [ {first}, %{before} ], [ {ends[0]}, %{after} ]")


def _across(b: Body, x: str, function: str) -> str:
    """The sum, largest or smallest of a vector's numbers, pairwise."""
    width = b.width
    while b.width > 2:
        whole = b.f32
        b.width //= 2
        places = [", ".join(f"i32 {i + first}" for i in range(b.width)) for first in (0, b.width)]
        shuffle = f"shufflevector {whole} {x}, {whole} poison, <{b.width} x i32>"
        x = combined(b, function, *(b.new(f"{shuffle} <{own}>") for own in places))
    pair = [b.new(f"extractelement {b.f32} {x}, i64 {i}") for i in range(2)]
    b.width = 1
    found = combined(b, function, *pair)
    b.width = width
    return found
