"""Calls of steps, from a function of a program: addresses of memory, and numbers that depend on the rows."""

from __future__ import annotations

from headrace.kernels.rows.fuse import is_sum
from headrace.kernels.rows.row_plan import Phase, Plan, accumulators
from headrace.kernels.rows.row_program import Constant, Count, Input, Reduce, Value
from headrace.kernels.rows.targets import slots
from headrace.kernels.rows.targets.llvm_expressions import Step
from headrace.kernels.rows.targets.llvm_steps import STARTS, filled
from headrace.kernels.rows.targets.llvm_text import Body, Module, double_literal


class Caller:
    """Calls of steps from a function of the program: addresses, from its slots."""

    def __init__(self, plan: Plan, module: Module, body: Body) -> None:
        self.plan, self.module, self.body = plan, module, body
        self.sizes = len(plan.program.columns), len(plan.program.uniforms)
        self.block = self.start = self.count = ""
        self._slots: dict[int, str] = {}
        self._numbers: dict[Count, str] = {}
        self._part = "0"
        for number in self._counts():
            self._number(number)
        columns, uniforms = self.sizes
        for i in range(slots.count(columns, uniforms, len(self.plan.program.outputs))):
            self.slot(i)

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
        """What a number is for these rows, in float64 until the end."""
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
        """Set the accumulators of a part to what they begin with."""
        self._part = part
        for value in filter(is_sum, phase.steps):
            self.clear(value)

    def clear(self, value: Value) -> None:
        """Set a sum's accumulators to what they begin with."""
        if isinstance(value, Reduce) and value.function != "sum":
            self.do(filled(self.module, accumulators(value), STARTS[value.function]), [f"ptr {self.sums(value)}"])
        else:
            size = 4 * accumulators(value)
            self.body.do(f"call void @llvm.memset.p0.i64(ptr {self.sums(value)}, i8 0, i64 {size}, i1 false)")
            self.module.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")

    def begin_block(self, block: str, rows: str) -> None:
        """Let what follows be for a block of so many rows in all."""
        b, lanes = self.body, self.plan.lanes
        self.block, self.start = block, b.mul(block, lanes)
        left = b.new(f"sub i64 {rows}, {self.start}")
        part = b.new(f"icmp ult i64 {left}, {lanes}")
        self.count = b.new(f"select i1 {part}, i64 {left}, i64 {lanes}")

    def sums(self, value: Value) -> str:
        """The address of a sum's accumulators, of this part; of a gradient that is taken by weights, of the call."""
        b = self.body
        if any(value in outers for phase in self.plan.phases for outers in phase.gradients):
            return b.at(self.pointer(self.slot(slots.UNIFORM)), str(self.plan.sums[value]))
        base = self.pointer(self.slot(slots.SUMS))
        part = b.mul(self._part, self.plan.accumulators) if self._part != "0" else "0"
        return b.at(base, b.plus(part, self.plan.sums[value]))

    def at(self, value: Value, offset: int) -> str:
        """The address of a value's memory, so many numbers from its begin."""
        b, place = self.body, self.plan.places[value]
        columns, uniforms = self.sizes
        if place.space == "given":
            return b.at(self.pointer(self.slot(slots.given(place.offset, columns))), str(offset))
        if place.space == "result":
            return b.at(self.pointer(self.slot(slots.result(place.offset, columns, uniforms))), str(offset))
        if place.space == "uniform":
            return b.at(self.pointer(self.slot(slots.UNIFORM)), str(place.offset + offset))
        if place.space == "tile":
            return b.at(self.pointer(self.slot(slots.SCRATCH)), str(place.offset * self.plan.lanes + offset))
        block = b.mul(self.block, self.plan.kept * self.plan.lanes)
        return b.at(self.pointer(self.slot(slots.KEPT)), b.plus(block, place.offset * self.plan.lanes + offset))

    def step(self, step: Step, parameters: str = "", arguments: str = "") -> None:
        """Add a step's function, and call it."""
        own = step.parameters(*([parameters] if parameters else []))
        name = self.module.function(step.body, own)
        given = [f"ptr {self.at(value, 0)}" for value in step.places]
        given += [f"float {self._number(number)}" for number in step.numbers]
        self.do(name, [*given, *([arguments] if arguments else [])])

    def do(self, name: str, arguments: list[str]) -> None:
        """Call a function."""
        self.body.do(f"call void @{name}({', '.join(arguments)})")

    def gather(self, name: str, value: Input) -> None:
        """Call the function that gathers a column."""
        first = slots.column(value.position)
        data, row, number = (self.slot(first + i) for i in range(3))
        order, begin_ = self.pointer(self.slot(slots.ORDER)), self.slot(slots.FIRST)
        start = self.body.add(self.start, begin_)
        arguments = [f"ptr {self.pointer(data)}", f"i64 {row}", f"i64 {number}", f"ptr {order}", f"i64 {start}"]
        self.do(name, [*arguments, f"i64 {self.count}", f"ptr {self.at(value, 0)}"])
