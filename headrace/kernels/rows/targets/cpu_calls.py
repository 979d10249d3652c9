"""Calls of steps, from a function of a program: addresses of memory, and numbers that depend on the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.kernels.rows import slots
from headrace.kernels.rows.fuse import is_sum
from headrace.kernels.rows.row_plan import VECTOR, Phase, Plan, accumulators
from headrace.kernels.rows.row_program import Constant, Count, Input, Reduce, Value
from headrace.kernels.rows.targets import cpu_rolled
from headrace.kernels.rows.targets.cpu_rolled import Address, Calls, Given
from headrace.kernels.rows.targets.llvm_expressions import Step
from headrace.kernels.rows.targets.llvm_steps import STARTS
from headrace.kernels.rows.targets.llvm_text import Body, Module, double_literal


class Caller:
    """Calls of steps from a function of the program: addresses, from its slots."""

    def __init__(self, plan: Plan, module: Module, body: Body) -> None:
        self.plan, self.module, self.body = plan, module, body
        self.sizes = len(plan.program.columns), len(plan.program.uniforms)
        self.start = self.count = ""
        self._slots: dict[int, str] = {}
        self._numbers: dict[Count, str] = {}
        self._bases: dict[object, str] = {}
        self._together: Calls | None = None
        for number in self._counts():
            self._number(number)
        columns, uniforms = self.sizes
        for i in range(slots.count(columns, uniforms, len(self.plan.program.outputs))):
            self._bases[i] = self.pointer(self.slot(i))
        self._sums, self._kept = self._bases[slots.SUMS], self._bases[slots.KEPT]

    def _counts(self) -> list[Count]:
        constants = [value for value in self.plan.program.values() if isinstance(value, Constant)]
        return [number for value in constants for number in value.numbers if isinstance(number, Count)]

    def slot(self, number: int) -> str:
        """The number in a slot."""
        if number not in self._slots:
            b = self.body
            self._slots[number] = b.new(f"load i64, ptr {b.at('%slots', str(number), 'i64')}, align 8")
        return self._slots[number]

    def pointer(self, number: str) -> str:
        """A number of a slot as an address."""
        return self.body.new(f"inttoptr i64 {number} to ptr")

    def _number(self, number: Count) -> str:
        """Write the code for a number that depends on the count of rows: in float64, and rounded at the end."""
        if number not in self._numbers:
            b = self.body
            rows = b.new(f"uitofp i64 {self.slot(slots.ROWS)} to double")
            rows = b.new(f"fsub double {rows}, {double_literal(number.less)}")
            power = double_literal(1.0)
            for _ in range(abs(number.power)):
                power = b.new(f"fmul double {power}, {rows}")
            if number.power < 0:
                power = b.new(f"fdiv double {double_literal(1.0)}, {power}")
            product = b.new(f"fmul double {power}, {double_literal(number.factor)}")
            total = b.new(f"fadd double {product}, {double_literal(number.plus)}")
            self._numbers[number] = b.new(f"fptrunc double {total} to float")
        return self._numbers[number]

    def begin_part(self, part: str, phase: Phase) -> None:
        """Set the accumulators of a part to their first numbers."""
        self._sums = self.body.at(self._bases[slots.SUMS], self.body.mul(part, self.plan.accumulators))
        for value in {self.plan.sums[value]: value for value in filter(is_sum, phase.steps)}.values():
            self.clear(value)

    def clear(self, value: Value) -> None:
        """Set a sum's accumulators to their first numbers."""
        if isinstance(value, Reduce) and value.function != "sum":
            self.do(_filled(self.module, accumulators(value), STARTS[value.function]), [self.sums(value)])
        else:
            size, (base, offset) = 4 * accumulators(value), self.sums(value)
            at = self.body.at(base, str(offset))
            self.body.do(f"call void @llvm.memset.p0.i64(ptr {at}, i8 0, i64 {size}, i1 false)")
            self.module.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")

    def begin_block(self, block: str, rows: str) -> None:
        """Begin the code for a block of so many rows in all."""
        b, lanes = self.body, self.plan.lanes
        self.start = b.mul(block, lanes)
        self._kept = b.at(self._bases[slots.KEPT], b.mul(block, self.plan.kept * lanes))
        left = b.new(f"sub i64 {rows}, {self.start}")
        part = b.new(f"icmp ult i64 {left}, {lanes}")
        self.count = b.new(f"select i1 {part}, i64 {left}, i64 {lanes}")

    def sums(self, value: Value) -> Address:
        """Address of a sum's accumulators: of this part, or of the call for a gradient that is taken by weights."""
        by_weights = any(value in outers for phase in self.plan.phases for outers in phase.gradients)
        return Address(self._bases[slots.UNIFORM] if by_weights else self._sums, self.plan.sums[value])

    def at(self, value: Value, offset: int) -> Address:
        """Address of a value's memory, `offset` numbers from its beginning."""
        place, (columns, uniforms), lanes = self.plan.places[value], self.sizes, self.plan.lanes
        if place.space == "given":
            return Address(self._bases[slots.given(place.offset, columns)], offset)
        if place.space == "result":
            return Address(self._bases[slots.result(place.offset, columns, uniforms)], offset)
        if place.space == "uniform":
            return Address(self._bases[slots.UNIFORM], place.offset + offset)
        if place.space == "tile":
            return Address(self._bases[slots.SCRATCH], place.offset * lanes + offset)
        return Address(self._kept, place.offset * lanes + offset)

    def moved(self, at: Address, index: str, times: int) -> Address:
        """Address that is `times` * `index` further on, where `index` is a value of the function."""
        key = at.base, index, times
        if key not in self._bases:
            self._bases[key] = self.body.at(at.base, self.body.times(index, times))
        return Address(self._bases[key], at.offset)

    def step(self, step: Step, parameters: str = "", arguments: Given = ()) -> None:
        """Add a step's function, and call it. arguments: of further parameters."""
        own = step.parameters(*([parameters] if parameters else []))
        name = self.module.function(step.body, own)
        numbers = [f"float {self._number(number)}" for number in step.numbers]
        lanes = self.plan.lanes
        memory = [self.at(value, offset * (lanes if value.rows else 1)) for value, offset in step.places]
        self.do(name, [*memory, *numbers, *arguments])

    def do(self, name: str, given: Given) -> None:
        """Call a function."""
        if self._together is None:
            cpu_rolled.write(self.body, self.module, [(name, given)])
        else:
            self._together.append((name, given))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write calls of this block at its end, in order. Many calls of few kinds are written as a loop."""
        calls: Calls = []
        self._together = calls
        yield
        self._together = None
        cpu_rolled.write(self.body, self.module, calls)

    def gather(self, name: str, value: Input) -> None:
        """Call the function that gathers a column."""
        first = slots.column(value.position)
        row, number = (self.slot(first + i) for i in (1, 2))
        start = self.body.add(self.start, self.slot(slots.FIRST))
        data, order = Address(self._bases[first]), Address(self._bases[slots.ORDER])
        numbers = [f"i64 {row}", f"i64 {number}"]
        self.do(name, [data, *numbers, order, f"i64 {start}", f"i64 {self.count}", self.at(value, 0)])


def _filled(module: Module, count: int, number: float) -> str:
    """The function that sets so many numbers, whole vectors, to one."""
    b = Body()
    with b.loop(count, VECTOR) as i:
        b.store(b.number(number), "%sums", i)
    return module.function(b, "ptr noalias %sums")
