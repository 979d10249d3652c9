"""A step of a row program as a function of one of a block's threads."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

from headrace.kernels.rows.fuse import is_sum
from headrace.kernels.rows.gpu.gpu_text import (
    ADDED,
    GPU,
    GROUPS,
    MOST_REGISTERS,
    PAD,
    THREADS,
    WIDTH,
    Memory,
    ThreadBody,
)
from headrace.kernels.rows.row_program import I32, Input, Pick, Product, Reduce, Sort, Value, View
from headrace.kernels.rows.targets.llvm_expressions import ELEMENTS, Reader, Step, expression, in_memory
from headrace.kernels.rows.targets.llvm_math import select
from headrace.kernels.rows.targets.llvm_steps import GATHERED, STARTS, _next, combined, store

FEW = 16  # numbers of a row that the row's own thread computes, one after the other
SPLIT = 16  # numbers, from which several threads share a sum


@dataclass
class ThreadStep(Step):
    """The function of a step, for one thread.

    lanes: rows of a block. memory: kinds of addresses. alone: each thread takes a row, and reads no other's: such steps
    follow each other without waiting. tensor_cores: what products take, of gpu_tensor_cores.PARTS; "" for none.
    begin: lines with which the function begins. registers: that a thread can have.
    rolled: whether loops stay loops.
    """

    along: ClassVar[bool] = False
    lanes: int = 0
    memory: Memory = None  # type: ignore[assignment]
    alone: bool = False
    tiles_shared: bool = True
    tensor_cores: str = ""
    begin: tuple[str, ...] = ()
    registers: int = MOST_REGISTERS
    rolled: bool = False

    @property
    def pitch(self) -> int:
        return self.lanes + PAD

    @property
    def b(self) -> ThreadBody:
        assert isinstance(self.body, ThreadBody)
        return self.body

    @contextmanager
    def each(self, shape: Sequence[int], rows: bool) -> Iterator[tuple[list[str], str]]:
        if self.alone:
            with self.b.when(self.b.less("%tid", self.lanes)), super().each(shape, False) as (index, _):
                yield index, "%tid"
            return
        groups = self.lanes // self.b.width if rows else 1
        with self.b.share(math.prod(shape) * groups) as i:
            place, group = self.b.divided(i, groups)
            yield self.b.places(place, list(shape)), self.b.times(group, self.b.width)

    @contextmanager
    def each_together(self, shape: Sequence[int], rows: bool) -> Iterator[tuple[list[str], list[str]]]:
        with self.each(shape, rows) as (index, lane):
            yield index, [lane]

    def address(self, value: Value, offset: int) -> tuple[str, int]:
        return self.pointer(value), offset

    def kind(self, value: Value) -> str:
        """The type of the address of a value's memory."""
        space = self.plan.places[value].space
        return self.memory.shared if space == "tile" and self.tiles_shared else self.memory.device

    def typed(self) -> list[str]:
        """The types of the addresses that the function takes."""
        return [self.kind(value) for value, _ in self.places]

    def parameters(self, *others: str) -> str:
        names = self.pointers.values()
        own = [f"{kind} noalias {name}.in" for kind, name in zip(self.typed(), names, strict=True)]
        return ", ".join([*own, *(f"float {name}" for name in self.numbers.values()), *others, "i64 %tid"])

    def finished(self, extra: Sequence[tuple[str, str]] = ()) -> None:
        """Begin the function with addresses of no kind of memory in particular. extra: (type, name) of further ones."""
        pairs = [*zip(self.typed(), self.pointers.values(), strict=True), *extra]
        casts = [generic(kind, name) for kind, name in pairs]
        self.body.lines[:0] = [*self.begin, *casts]
        if self.memory is GPU and (
            self.rolled or not self.tiles_shared
        ):  # or else the assembler unrolls loops, for more registers than a thread has
            again = re.compile(r"  br i1 %\w+, label %(L\d+), label %\1[.]end")
            self.body.lines[:] = [f"{x}, !llvm.loop !0" if again.fullmatch(x) else x for x in self.body.lines]


def generic(kind: str, name: str) -> str:
    """The instruction that makes %name of %name.in."""
    if kind == "ptr":
        return f"  {name} = getelementptr i8, ptr {name}.in, i64 0"
    return f"  {name} = addrspacecast {kind} {name}.in to ptr"


def is_alone(value: Value) -> bool:
    """True if a row's own thread computes what a value has of it."""
    return value.rows and not isinstance(value, Product | Input) and value.size * _terms(value) <= FEW


def is_alone_sum(value: Value) -> bool:
    """True if a sum over rows is accumulated by each row's own thread first."""
    return isinstance(value, Reduce) and value.over_rows and value.size * _terms(value) <= FEW


def _terms(value: Value) -> int:
    if isinstance(value, Reduce):
        return math.prod(value.inner)
    if isinstance(value, Pick):
        return value.source.shape[-1]
    return value.shape[-1] ** 2 if isinstance(value, Sort) else 1


def width_of(value: Value, lanes: int) -> int:
    """Number of lanes that a thread takes at a time."""
    if not value.rows or isinstance(value, Sort | Pick):
        return 1
    return WIDTH if value.size * lanes // WIDTH >= THREADS else 1


def split_of(value: Value, lanes: int) -> int:
    """Number of threads that share each of a reduction's numbers; 1 where none does."""
    if not isinstance(value, Reduce) or is_sum(value) or len(value.inner) != 1 or value.inner[0] < SPLIT:
        return 1
    if value.function not in STARTS or value.dtype == I32:
        return 1
    items, found = value.size * (lanes if value.rows else 1), 1
    while 2 * found * items <= THREADS and 4 * found <= value.inner[0]:
        found *= 2
    return found


def split_step(step: ThreadStep, value: Reduce, threads: int) -> None:
    """The first half of a reduction by several threads: each one's part, to %scratch."""
    b, lanes = step.b, step.lanes if value.rows else 1
    node, count, items = expression(step.plan, value.source), value.inner[0], value.size * lanes
    with b.when(b.less("%tid", items * threads)):
        number, item = b.divided("%tid", items)
        place, lane = b.divided(item, lanes)
        index = b.places(place, list(value.shape))
        with b.carrying(count, [(b.f32, b.number(STARTS[value.function]))], threads, number) as (i, names, ends):
            x = Reader(step, [*index, i], lane).value(node)
            ends += _next(b, value, names, x, [*index, i], node)
        b.store(ends[0], "%scratch", "%tid")


def joined_step(step: ThreadStep, value: Reduce, threads: int) -> None:
    """The second half: the parts in order."""
    b, lanes = step.b, step.lanes if value.rows else 1
    items = value.size * lanes
    with b.when(b.less("%tid", items)):
        total = b.load("%scratch", "%tid")
        for part in range(1, threads):
            total = combined(b, value.function, total, b.load("%scratch", b.plus("%tid", part * items)))
        place, lane = b.divided("%tid", lanes)
        store(step, value, place, lane, total)


def gather_step(step: ThreadStep, value: Input, dtype: str) -> None:
    """A column's numbers of a block's rows, each lane beyond them being that of the last. Neighbouring threads read
    neighbouring numbers of a row."""
    b = step.b
    element, conversion = GATHERED[dtype]
    made, target = "i32" if value.dtype == I32 else "float", step.pointer(value)
    last = b.new("sub i64 %count, 1")
    ordered = b.new("icmp ne ptr %order, null")
    with b.share(value.size * step.lanes) as i:
        lane, number = b.divided(i, value.size)
        inside = b.less(lane, "%count")
        place = b.add("%first", b.new(f"select i1 {inside}, i64 {lane}, i64 {last}"))
        row = _row(b, ordered, place)
        at = b.add(b.mul(row, "%row_stride"), b.mul(b.plus(number, value.first), "%number_stride"))
        x = b.new(f"load {element}, ptr {b.at('%data', at, element)}, align 1")
        if conversion:
            x = b.new(conversion.format(x))
        b.do(f"store {made} {x}, ptr {b.at(target, b.plus(b.times(number, step.pitch), lane))}, align 4")


def _row(b: ThreadBody, ordered: str, place: str) -> str:
    """The row at a place of the order, where there is one."""
    before = b.block
    b._names += 1
    yes, no = f"ordered{b._names}", f"found{b._names}"
    b.do(f"br i1 {ordered}, label %{yes}, label %{no}")
    b.lines.append(f"{yes}:")
    given = b.new(f"load i64, ptr {b.at('%order', place, 'i64')}, align 8")
    b.do(f"br label %{no}")
    b.lines.append(f"{no}:")
    b.block = no
    return b.new(f"phi i64 [ {place}, %{before} ], [ {given}, %{yes} ]")


def store_step(step: ThreadStep, view: View) -> None:
    """An output with rows, into the caller's column."""
    b, element = step.b, ELEMENTS[view.value.dtype]
    groups = step.lanes
    with b.share(view.size * groups) as i:
        place, lane = b.divided(i, groups)
        index = b.places(place, list(view.shape))
        with b.when(b.less(lane, "%count")):
            found = in_memory(b, Reader(step, index, lane).value(expression(step.plan, view)), view.value.dtype)
            at = b.add(b.mul(place, "%number_stride"), b.mul(b.add(lane, "%first"), "%row_stride"))
            b.store(found, "%data", at, element)


def copy_step(step: ThreadStep, view: View) -> None:
    """A uniform output that lies elsewhere, or is a view of something."""
    b, dtype = step.b, view.value.dtype
    with b.share(view.size) as i:
        found = Reader(step, b.places(i, list(view.shape)), "0").value(expression(step.plan, view))
        b.store(in_memory(b, found, dtype), "%data", i, ELEMENTS[dtype])


def lane_sum_step(step: ThreadStep, value: Reduce) -> None:
    """Add each row's numbers to accumulators of its thread, at %lanes."""
    b, node = step.b, expression(step.plan, value.source)
    with b.when(b.less("%tid", "%count")):
        for number, index in enumerate(_indices(value.shape)):
            at = b.plus("%tid", number * step.lanes)
            total = b.load("%lanes", at)
            for inner in _indices(value.inner):
                x = Reader(step, [*index, *inner], "%tid").value(node)
                total = combined(b, value.function, total, x)
            b.store(total, "%lanes", at)


def lanes_added_step(step: ThreadStep, value: Reduce) -> None:
    """Write the sum, largest or smallest of the accumulators of rows' own threads, at %lanes, to %sums."""
    b = step.b
    with b.share(value.size) as i:
        first = b.at("%lanes", b.times(i, step.lanes))
        with b.carrying(step.lanes, [(b.f32, b.number(STARTS[value.function]))]) as (lane, names, ends):
            ends.append(combined(b, value.function, names[0], b.load(first, lane)))
        b.store(ends[0], "%sums", i)


def row_sum_step(step: ThreadStep, value: Reduce) -> None:
    """Add to each number, at %sums, what the block's rows have; or keep the larger of both."""
    step.rolled = True
    b, node = step.b, expression(step.plan, value.source)
    start = b.number(STARTS[value.function])
    with b.share(value.size) as i:
        index = b.places(i, list(value.shape))
        total = _over_rows(step, value, node, index, list(value.inner), start)
        parts = [b.part(total, lane) for lane in range(b.width)]
        with b.single():
            before = b.load("%sums", i)
            b.store(reduce(lambda x, y: combined(b, value.function, x, y), [before, *parts]), "%sums", i)


def _over_rows(step: ThreadStep, value: Reduce, node: object, index: list[str], inner: list[int], total: str) -> str:
    b = step.b
    if inner:
        with b.carrying(inner[0], [(b.f32, total)]) as (i, names, ends):
            ends.append(_over_rows(step, value, node, [*index, i], inner[1:], names[0]))
        return ends[0]
    start = b.number(STARTS[value.function])
    with b.carrying(step.lanes, [(b.f32, total)], b.width) as (lane, names, ends):
        x = select(b, inside(b, lane), Reader(step, index, lane).value(node), start)  # type: ignore[arg-type]
        ends.append(combined(b, value.function, names[0], x))
    return ends[0]


def inside(b: ThreadBody, lane: str) -> str:
    """The mask of those lanes, from one on, that are rows."""
    if b.width == 1:
        return b.less(lane, "%count")
    short = [b.new(f"trunc i64 {x} to i32") for x in ("%count", lane)]
    left = b.broadcast(b.new(f"sub i32 {short[0]}, {short[1]}"), "i32")
    numbers = ", ".join(f"i32 {i}" for i in range(b.width))
    return b.new(f"icmp slt {b.i32} <{numbers}>, {left}")


def filled_step(step: ThreadStep, count: int, start: float) -> None:
    """Set so many numbers at %sums to one."""
    with step.b.share(count) as i:
        step.b.store(step.b.number(start), "%sums", i)


def parts_step(step: ThreadStep, size: int, function: str, stride: int) -> None:
    """The first half of adding parts: of ADDED numbers, those of each group of parts in order."""
    b = step.b
    group, number = b.divided("%tid", ADDED)
    at = b.plus("%first", number)
    with b.when(b.less(at, size)):
        some = b.less(group, "%parts")
        b.store(b.number(STARTS[function]), "%scratch", "%tid")
        with b.when(some):
            with b.carrying("%parts", [(b.f32, b.number(STARTS[function]))], GROUPS, group) as (part, names, ends):
                x = b.load("%sums", b.add(b.mul(part, stride), at))
                ends.append(combined(b, function, names[0], x))
            b.store(ends[0], "%scratch", "%tid")


def total_step(step: ThreadStep, size: int, function: str) -> None:
    """The second half: the groups in order."""
    b = step.b
    at = b.plus("%first", "%tid")
    with b.when(b.less("%tid", ADDED)), b.when(b.less(at, size)):
        total = b.load("%scratch", "%tid")
        for group in range(1, GROUPS):
            total = combined(b, function, total, b.load("%scratch", b.plus("%tid", group * ADDED)))
        b.store(total, "%target", at)


def _indices(shape: Sequence[int]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for n in shape:
        found = [[*index, str(i)] for index in found for i in range(n)]
    return found
