"""Expressions of Maps that are not stored, as part of the loop that reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from headrace.kernels.rows.row_plan import Place, Plan, inlined
from headrace.kernels.rows.row_program import BOOL, F32, I32, Constant, Count, Map, Value, View
from headrace.kernels.rows.targets.llvm_functions import FLOATS
from headrace.kernels.rows.targets.llvm_math import compare, select, to_integer
from headrace.kernels.rows.targets.llvm_text import Body, Module, literal

ELEMENTS = {F32: "float", I32: "i32", BOOL: "float"}  # in memory
_COMPARE = {"eq": ("oeq", "eq"), "ne": ("une", "ne"), "lt": ("olt", "slt"), "le": ("ole", "sle")} | {
    **{"gt": ("ogt", "sgt"), "ge": ("oge", "sge")}
}
PARAMETERS = 12  # of a step's function, before several parts of one value have the same
_INTEGERS = {"add": "add", "sub": "sub", "mul": "mul"}


@dataclass(frozen=True)
class Node:
    """Part of an expression: a function of others, or a view of what is in memory or constant."""

    view: View
    inner: tuple[Node, ...] = ()

    @property
    def function(self) -> str:
        """Function of the node's Map; empty for a view that is read."""
        value = self.view.value
        return value.function if self.inner and isinstance(value, Map) else ""


def expression(plan: Plan, view: View) -> Node:
    """Tree of the operations that compute a view, down to stored values and constants."""
    value = view.value
    if value in plan.places or not isinstance(value, Map):
        return Node(view)
    parts = [inlined(view, inner) for inner in value.operands]
    return Node(view, tuple(expression(plan, part) for part in parts if part is not None))


def leaves(node: Node) -> list[View]:
    """The views that an expression reads."""
    return [view for inner in node.inner for view in leaves(inner)] if node.inner else [node.view]


@dataclass
class Step:
    """Function that is being written for one step, with its parameters.

    pointers: parameters, by the places in memory that are read or written. places: for each pointer, the value that is
    there, and the number at which it begins. numbers: those that depend on the number of rows. along: whether uniform
    numbers are computed VECTOR at a time.
    """

    along: ClassVar[bool] = True
    plan: Plan
    module: Module
    body: Body
    pointers: dict[object, str] = field(default_factory=dict)
    places: list[tuple[Value, int]] = field(default_factory=list)
    numbers: dict[Count, str] = field(default_factory=dict)

    @property
    def pitch(self) -> int:
        """Distance between a value's tiles, in numbers."""
        return self.plan.lanes

    @contextmanager
    def each(self, shape: Sequence[int], rows: bool) -> Iterator[tuple[list[str], str]]:
        """Write a loop over the indices of a shape and, with rows, over all lanes of a block. Code that is written
        within this block is its body. Yields the index, and the first of the lanes."""
        with ExitStack() as stack:
            index = [stack.enter_context(self.body.loop(n)) for n in shape]
            yield index, stack.enter_context(self.body.loop(self.plan.lanes, self.body.width)) if rows else "0"

    @contextmanager
    def each_along(self, shape: Sequence[int], first: int, end: int, width: int) -> Iterator[list[str]]:
        """Write a loop over each index of a shape, `width` of the last axis at a time, where the last index goes from
        `first` to below `end`."""
        with ExitStack() as stack:
            index = [stack.enter_context(self.body.loop(n)) for n in shape[:-1]]
            before, self.body.width = self.body.width, width
            index += [stack.enter_context(self.body.loop(end, width, first))]
            yield index
        self.body.width = before

    @contextmanager
    def each_together(self, shape: Sequence[int], rows: bool) -> Iterator[tuple[list[str], list[str]]]:
        """Same as each(), but the body works on all lanes at once, so that sums do not wait for each other. Yields the
        index, and the first lane of each vector."""
        with self.each(shape, False) as (index, _):
            yield index, [str(lane) for lane in range(0, self.plan.lanes, self.body.width)] if rows else ["0"]

    def pointer(self, value: Value, offset: int = 0) -> str:
        """The parameter that is a value's memory, from so many numbers on."""
        key = self.plan.places[value], offset
        if key not in self.pointers:
            self.pointers[key] = f"%p{len(self.pointers)}"
            self.places.append((value, offset))
        return self.pointers[key]

    def address(self, value: Value, offset: int) -> tuple[str, int]:
        """Parameter for a value's memory, and the distance of number `offset` from it. The distance is 0, so that steps
        which differ only in `offset` are one function, unless the function has many parameters already."""
        if len(self.pointers) < PARAMETERS or (self.plan.places[value], offset) in self.pointers:
            return self.pointer(value, offset), 0
        return self.pointer(value), offset

    def count(self, number: Count) -> str:
        """The parameter that is a number which depends on the number of rows."""
        return self.numbers.setdefault(number, f"%n{len(self.numbers)}")

    def parameters(self, *others: str) -> str:
        """The function's parameters."""
        own = [f"ptr noalias {name}" for name in self.pointers.values()]
        return ", ".join([*own, *(f"float {name}" for name in self.numbers.values()), *others])


class Reader:
    """Writes an expression for one place of a loop. index: of each of the loop's axes; lane: the first of the lanes.

    Lanes are rows; if `along`, they are numbers of the loop's last axis instead, and nothing has rows.
    """

    def __init__(self, step: Step, index: list[str], lane: str, along: bool = False) -> None:
        self.step, self.body, self.index, self.lane, self.along = step, step.body, index, lane, along
        self.known: dict[tuple[int, tuple[int, ...], int], str] = {}

    def value(self, node: Node) -> str:
        """The numbers of an expression."""
        key = (id(node.view.value), node.view.strides, node.view.offset)
        if key not in self.known:
            self.known[key] = self._map(node) if node.inner else self._read(node.view)
        return self.known[key]

    def place(self, view: View, offset: int, factor: int) -> str:
        """Place of the number at this index of a view that begins with `offset`. Each of its numbers takes `factor`
        places."""
        b = self.body
        return b.plus(offset * factor, *(b.times(i, s * factor) for i, s in zip(self.index, view.strides, strict=True)))

    def _read(self, view: View) -> str:
        value, b = view.value, self.body
        if isinstance(value, Constant):
            return self._constant(value, view)
        element, (memory, offset) = ELEMENTS[value.dtype], self.step.address(value, view.offset)
        if self.step.plan.in_lanes(value):
            found = b.load(memory, b.plus(self.place(view, offset, self.step.pitch), self.lane), element)
        else:
            found = self._uniform(memory, view, offset, element)
        return compare(b, "une", found, b.number(0)) if value.dtype == BOOL else found

    def _uniform(self, memory: str, view: View, offset: int, element: str) -> str:
        """A number in all lanes, or numbers side by side, one a lane."""
        b, place = self.body, self.place(view, offset, 1)
        if self.along and view.strides[-1] == 1:
            return b.load(memory, place, element)
        return b.broadcast(b.load(memory, place, element, one=True), element)

    def _constant(self, value: Constant, view: View) -> str:
        b = self.body
        if value.size == 1:
            number = value.numbers[0]
            if isinstance(number, Count):
                return b.broadcast(self.step.count(number))
            if value.dtype == BOOL:
                return b.splat(f"i1 {int(bool(number))}")
            return b.number(number) if value.dtype == F32 else b.integer(int(number))
        element = ELEMENTS[value.dtype]
        numbers = [_plain(n) for n in value.numbers]
        words = [str(int(n)) if value.dtype == I32 else literal(n) for n in numbers]
        found = self._uniform(self.step.module.constant(words, element), view, view.offset, element)
        return compare(b, "une", found, b.number(0)) if value.dtype == BOOL else found

    def _map(self, node: Node) -> str:
        value, b, inner = node.view.value, self.body, node.inner
        assert isinstance(value, Map)
        name, dtype = value.function, inner[-1].view.value.dtype
        if name in ("add", "sub") and dtype == F32:
            for i, j in ((0, 1), (1, 0)):
                if inner[i].function == "mul":
                    return self._contracted(name, inner[i], inner[j], product_first=i == 0)
        values = [self.value(part) for part in inner]
        if name == "where":
            condition, yes, no = values
            return select(b, condition, yes, no, b.kind({F32: "float", I32: "i32", BOOL: "i1"}[dtype]))
        if name in ("float", "int", "bool"):
            return convert(b, values[0], dtype, value.dtype)
        if name in _COMPARE:
            return self._comparison(name, dtype, values)
        if dtype == BOOL:
            return (
                b.new(f"xor {b.i1} {values[0]}, {b.splat('i1 1')}")
                if name == "not"
                else b.new(f"{name} {b.i1} {values[0]}, {values[1]}")
            )
        if name in ("isnan", "isinf"):
            return self._special(name, values[0])
        return FLOATS[name](b, *values) if dtype == F32 else self._integers(name, values)

    def _contracted(self, name: str, product: Node, other: Node, product_first: bool) -> str:
        """x * y + z, and the three with minus, rounded once."""
        b = self.body
        x, y = (self.value(part) for part in product.inner)
        z = self.value(other)
        if name == "sub" and product_first:
            z = FLOATS["neg"](b, z)
        elif name == "sub":
            x = FLOATS["neg"](b, x)
        return b.fma(x, y, z)

    def _comparison(self, name: str, dtype: str, values: list[str]) -> str:
        b, (floats, integers) = self.body, _COMPARE[name]
        if dtype == F32:
            return compare(b, floats, *values)
        kind = b.i32 if dtype == I32 else b.i1
        return b.new(f"icmp {integers if dtype == I32 else integers.replace('s', 'u')} {kind} {values[0]}, {values[1]}")

    def _special(self, name: str, x: str) -> str:
        b = self.body
        if name == "isnan":
            return compare(b, "uno", x, x)
        return compare(b, "oeq", b.intrinsic("fabs", "float", x), b.number(float("inf")))

    def _integers(self, name: str, values: list[str]) -> str:
        b = self.body
        if name in _INTEGERS:
            return b.ints(_INTEGERS[name], *values)
        if name == "neg":
            return b.ints("sub", b.integer(0), values[0])
        if name == "abs":
            return b.intrinsic("smax", "i32", values[0], b.ints("sub", b.integer(0), values[0]))
        if name in ("maximum", "minimum"):
            return b.intrinsic({"maximum": "smax", "minimum": "smin"}[name], "i32", *values)
        raise NotImplementedError(f"{name} of integers")


def _plain(number: float | Count) -> float:
    assert not isinstance(number, Count), "one of several numbers depends on the number of rows"
    return number


def convert(b: Body, x: str, dtype: str, wanted: str) -> str:
    """A value in another dtype."""
    if dtype == wanted:
        return x
    if wanted == BOOL:
        return compare(b, "une", x, b.number(0)) if dtype == F32 else b.new(f"icmp ne {b.i32} {x}, {b.integer(0)}")
    if wanted == F32:
        return b.new(f"{'sitofp ' + b.i32 if dtype == I32 else 'uitofp ' + b.i1} {x} to {b.f32}")
    if dtype == BOOL:
        return b.new(f"zext {b.i1} {x} to {b.i32}")
    return to_integer(b, x)


def in_memory(b: Body, x: str, dtype: str) -> str:
    """A value as it is stored: a bool as 0 or 1."""
    return convert(b, x, BOOL, F32) if dtype == BOOL else x


__all__ = ["ELEMENTS", "Node", "Place", "Reader", "Step", "expression", "in_memory", "leaves"]
