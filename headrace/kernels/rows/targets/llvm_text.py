"""LLVM assembly as text: functions whose lines are appended, values that are names, and loops.

Text rather than objects: a program of a thousand lines is written in a few milliseconds, and reads as what it is.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.kernels.rows.row_plan import VECTOR


class Body:
    """The lines of a function that is being written. width: numbers of a value, VECTOR or 1."""

    def __init__(self, width: int = VECTOR) -> None:
        self.width, self.lines, self.block = width, list[str](), "entry"
        self.intrinsics: set[str] = set()
        self._names = 0

    @property
    def f32(self) -> str:
        return self.kind("float")

    @property
    def i32(self) -> str:
        return self.kind("i32")

    @property
    def i1(self) -> str:
        return self.kind("i1")

    def kind(self, element: str) -> str:
        """The type of a value of these elements."""
        return element if self.width == 1 else f"<{self.width} x {element}>"

    def new(self, text: str) -> str:
        """Append an instruction; its result's name."""
        self._names += 1
        name = f"%v{self._names}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def number(self, number: float) -> str:
        """A float32 in all places."""
        return self.splat(f"float {literal(number)}")

    def integer(self, number: int) -> str:
        """An int32 in all places."""
        return self.splat(f"i32 {number}")

    def splat(self, element: str) -> str:
        """A constant, such as "float 0x0", in all places."""
        return element.split(" ", 1)[1] if self.width == 1 else f"splat ({element})"

    def floats(self, operation: str, *values: str) -> str:
        """An instruction on float32 values."""
        return self.new(f"{operation} {self.f32} {', '.join(values)}")

    def ints(self, operation: str, *values: str) -> str:
        """An instruction on int32 values."""
        return self.new(f"{operation} {self.i32} {', '.join(values)}")

    def intrinsic(self, name: str, kind: str, *values: str) -> str:
        """A call of one of LLVM's intrinsics whose operands are all of its result's type."""
        suffix = {"float": "f32", "i32": "i32"}[kind]
        full = f"llvm.{name}.{suffix if self.width == 1 else f'v{self.width}{suffix}'}"
        own = self.kind(kind)
        self.intrinsics.add(f"declare {own} @{full}({', '.join([own] * len(values))})")
        return self.new(f"call {own} @{full}({', '.join(f'{own} {value}' for value in values)})")

    def fma(self, x: str, y: str, z: str) -> str:
        """x * y + z, rounded once."""
        return self.intrinsic("fma", "float", x, y, z)

    def broadcast(self, number: str, element: str = "float") -> str:
        """A number of the function's in all places."""
        if self.width == 1:
            return number
        kind = self.kind(element)
        one = self.new(f"insertelement {kind} poison, {element} {number}, i64 0")
        return self.new(f"shufflevector {kind} {one}, {kind} poison, <{self.width} x i32> zeroinitializer")

    def at(self, base: str, index: str, element: str = "float") -> str:
        """The address of base[index]."""
        return base if index == "0" else self.new(f"getelementptr {element}, ptr {base}, i64 {index}")

    def load(self, base: str, index: str, element: str = "float", one: bool = False) -> str:
        """The numbers from base[index] on; or that one number."""
        kind = element if one else self.kind(element)
        return self.new(f"load {kind}, ptr {self.at(base, index, element)}, align 4")

    def store(self, value: str, base: str, index: str, element: str = "float") -> None:
        """base[index] and what follows = value."""
        self.do(f"store {self.kind(element)} {value}, ptr {self.at(base, index, element)}, align 4")

    def times(self, index: str, factor: int) -> str:
        """index * factor."""
        if index == "0" or factor == 0:
            return "0"
        if factor == 1:
            return index
        return str(int(index) * factor) if index.isdecimal() else self.new(f"mul nuw nsw i64 {index}, {factor}")

    def plus(self, *indices: str | int) -> str:
        """The sum of indices."""
        fixed = sum(int(i) for i in indices if isinstance(i, int) or i.isdecimal())
        found = [i for i in indices if isinstance(i, str) and not i.isdecimal()]
        if not found:
            return str(fixed)
        total = found[0]
        for other in [*found[1:], *([str(fixed)] if fixed else [])]:
            total = self.new(f"add nuw nsw i64 {total}, {other}")
        return total

    def mul(self, x: str, y: str | int) -> str:
        """The product of two indices."""
        return self.new(f"mul i64 {x}, {y}")

    def add(self, x: str, y: str | int) -> str:
        """The sum of two indices."""
        return self.new(f"add i64 {x}, {y}")

    @contextmanager
    def loop(self, end: str | int, step: str | int = 1, begin: str | int = 0) -> Iterator[str]:
        """Lines within this run for an index from `begin` to below `end`, at least once."""
        with self.carrying(end, [], step, begin) as (index, _, _):
            yield index

    @contextmanager
    def carrying(
        self, end: str | int, starts: list[tuple[str, str]], step: str | int = 1, begin: str | int = 0
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """A loop that carries values on, given as (type, first value): their names within it, and a list for what they
        are at its end. After the loop these are the last ones."""
        known = isinstance(end, int) and isinstance(begin, int) and isinstance(step, int)
        if known and end <= begin + step:  # type: ignore[operator]  # once
            last: list[str] = []
            yield str(begin), [value for _, value in starts], last
            return
        self._names += 1
        label, before = f"L{self._names}", self.block
        index, names = f"%i{self._names}", [f"%c{self._names}.{k}" for k in range(len(starts))]
        self.lines += [f"  br label %{label}", f"{label}:"]
        where = len(self.lines)
        self.block, ends = label, list[str]()
        yield index, names, ends
        again = self.new(f"add nuw nsw i64 {index}, {step}")
        more = self.new(f"icmp ult i64 {again}, {end}")
        self.do(f"br i1 {more}, label %{label}, label %{label}.end")
        phis = [f"  {index} = phi i64 [ {begin}, %{before} ], [ {again}, %{self.block} ]"]
        for (kind, first), name, value in zip(starts, names, ends, strict=True):
            phis.append(f"  {name} = phi {kind} [ {first}, %{before} ], [ {value}, %{self.block} ]")
        self.lines[where:where] = phis
        self.block = f"{label}.end"
        self.lines.append(f"{self.block}:")


class Module:
    """Functions, each different one once, and what they declare."""

    def __init__(self, attributes: str = "noinline nounwind") -> None:
        self.attributes = attributes  # of each function
        self.functions: dict[str, str] = {}
        self.declared: set[str] = set()
        self.constants: dict[str, str] = {}

    def function(self, body: Body, parameters: str) -> str:
        """Add a function of no result; its name, by its text."""
        text = "\n".join([*body.lines, "  ret void", "}"])
        name = f"step_{hashlib.sha256(f'{parameters}{text}'.encode()).hexdigest()[:16]}"
        self.functions[name] = f"define internal void @{name}({parameters}) {self.attributes} {{\nentry:\n{text}"
        self.declared |= body.intrinsics
        return name

    def constant(self, words: list[str], element: str) -> str:
        """The address of constant numbers."""
        text = f"[{len(words)} x {element}] [{', '.join(f'{element} {word}' for word in words)}]"
        name = f"@data_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.constants[name] = f"{name} = internal constant {text}, align 64"
        return name

    def __str__(self) -> str:
        return "\n".join([*self.constants.values(), *sorted(self.declared), *self.functions.values()])


def literal(number: float) -> str:
    """A float32 as LLVM writes it: the bits of the float64 that equals it."""
    return double_literal(struct.unpack("<f", struct.pack("<f", number))[0])


def double_literal(number: float) -> str:
    """A float64 as LLVM writes it: its bits."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
