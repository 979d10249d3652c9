"""A plan as LLVM assembly for the CPU: a function for each step, one for each phase, and the entry point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.kernels.rows import slots
from headrace.kernels.rows.floors import floors
from headrace.kernels.rows.fuse import is_sum
from headrace.kernels.rows.row_plan import VECTOR, Phase, Plan, Transposed, packed_words, padded
from headrace.kernels.rows.row_program import (
    Input,
    Join,
    Product,
    Value,
    View,
    contiguous,
)
from headrace.kernels.rows.targets.cpu_calls import Caller
from headrace.kernels.rows.targets.cpu_rolled import Address
from headrace.kernels.rows.targets.cpu_sums import add_block, divided, finish, function, gradients, indices, place_in
from headrace.kernels.rows.targets.llvm_expressions import ELEMENTS, Reader, expression, in_memory
from headrace.kernels.rows.targets.llvm_products import (
    Multiply,
    multiply,
    multiply_alone,
    padded_step,
    transposed_step,
    turn_weight,
)
from headrace.kernels.rows.targets.llvm_steps import (
    COUNT,
    begin,
    gather_step,
    written,
)
from headrace.kernels.rows.targets.llvm_text import Body, Module
from headrace.kernels.rows.targets.llvm_tiles import multiply_on_tiles, pack_weight, packed_step

ENTRY = "entry"
PARTS = 8  # of a Join: of more, each is copied by a call of its own


def assembly(plan: Plan, dtypes: list[str], wide: bool) -> str:
    """LLVM assembly with the entry point. dtypes: of the columns' memory, as numpy names them. wide: the machine has 32
    vector registers."""
    return _Target(plan, dtypes, wide).text()


@dataclass
class _Target:
    """The state of emitting one plan."""

    plan: Plan
    dtypes: list[str]
    wide: bool

    def __post_init__(self) -> None:
        self.module = Module()
        program = self.plan.program
        self.sizes = len(program.columns), len(program.uniforms)
        self.floored, self.done = floors(self.plan)

    def text(self) -> str:
        functions = [self._before("before0", [], self.plan.phases[0].before)]
        for number, phase in enumerate(self.plan.phases):
            if phase.packed:
                functions += self._packing(f"packing{number}", phase)
            functions.append(self._phase(f"phase{number}", phase))
            if phase.gradients:
                functions += gradients(self.plan, self.module, self.wide, f"gradients{number}", phase)
            last = number + 1 == len(self.plan.phases)
            following = [] if last else self.plan.phases[number + 1].before
            functions.append(
                self._before(f"before{number + 1}", [v for v in phase.steps if is_sum(v)], following, last)
            )
        return "\n".join([str(self.module), *functions, self._entry()])

    # functions of the program

    def _phase(self, name: str, phase: Phase) -> str:
        """The steps of a phase, for the blocks of one part."""
        b = Body(1)
        call = Caller(self.plan, self.module, b)
        rows, part, parts = (call.slot(i) for i in (slots.ROWS, slots.PART, slots.PARTS))
        blocks = b.new(f"udiv i64 {b.add(rows, self.plan.lanes - 1)}, {self.plan.lanes}")
        first = b.new(f"udiv i64 {b.mul(blocks, part)}, {parts}")
        end = b.new(f"udiv i64 {b.mul(blocks, b.add(part, 1))}, {parts}")
        call.begin_part(part, phase)
        some = b.new(f"icmp ult i64 {first}, {end}")
        b.do(f"br i1 {some}, label %some, label %done")
        b.lines.append("some:")
        b.block = "some"
        with b.loop(end, begin=first) as block:
            call.begin_block(block, rows)
            with call.together():
                for value in phase.steps:
                    if value not in self.done:
                        self._step(call, value)
            for position in phase.stores:
                self._store(call, position)
        b.do("br label %done")
        b.lines.append("done:")
        return function(name, b, "ptr %slots")

    def _step(self, call: Caller, value: Value) -> None:
        """Call the function of a step of a block."""
        if isinstance(value, Input):
            name = gather_step(self.module, value, self.dtypes[value.position], self.plan.lanes)
            call.gather(name, value)
        elif isinstance(value, Product):
            self._product(call, value)
        elif is_sum(value):
            add_block(call, self.wide, value)
        elif isinstance(value, Transposed):
            step = begin(self.plan, self.module, True)
            write = packed_step if value.packed else transposed_step if self.plan.lanes > 1 else padded_step
            call.step(write(step, value))
        else:
            self._usual(call, value)

    def _usual(self, call: Caller, value: Value) -> None:
        """Call the functions of a step that is the same for rows and for uniform values, except for the width."""
        parts: Sequence[int | None] = [None]
        if isinstance(value, Join) and len(value.parts) > PARTS:
            parts = range(len(value.parts))
        for part in parts:
            step = begin(self.plan, self.module, value.rows)
            if written(step, value, part):
                call.step(step)

    def _product(self, call: Caller, value: Product) -> None:
        weight, source = value.weight, value.source
        start, bias = ("bias", value.bias.strides[0]) if value.bias is not None else ("zero", 0)
        sizes = Multiply(
            rows=value.shape[-1],
            terms=source.shape[-1],
            width=self.plan.lanes,
            row=weight.strides[0],
            column=weight.strides[1],
            source=source.strides[-1] * self.plan.lanes,
            target=self.plan.lanes,
            start=start,
            bias=bias,
            floor=value in self.floored,
            half=self.plan.half,
        )
        packed, factor = self.plan.packed.get(value), call.at(weight.value, weight.offset)
        if packed is not None:
            factor = call.at(packed, 0)
        if self.plan.lanes == 1:
            pitch = weight.strides[1] if packed is None else padded(sizes.rows)
            name = multiply_alone(self.module, replace(sizes, column=pitch), self.wide)
        else:
            name = multiply(self.module, sizes, self.wide) if packed is None else multiply_on_tiles(self.module, sizes)
        steps = contiguous(value.shape)
        for place in indices(source.shape[:-1]):
            given = [
                factor,
                call.at(source.value, place_in(source, place) * self.plan.lanes),
                call.at(value, sum(i * s for i, s in zip(place, steps, strict=False)) * self.plan.lanes),
            ]
            if value.bias is not None:
                given.append(call.at(value.bias.value, value.bias.offset))
            call.do(name, given)

    def _store(self, call: Caller, position: int) -> None:
        """Write an output with rows into the caller's column."""
        view = self.plan.program.outputs[position].view
        step = begin(self.plan, self.module, True)
        b, element = step.body, ELEMENTS[view.value.dtype]
        numbers = b.new(f"alloca {b.kind(element)}, align 64")

        def stored(index: list[str], place: str, steps: tuple[int, ...]) -> None:
            if len(index) < len(view.shape):
                with b.loop(view.shape[len(index)]) as i:
                    stored([*index, i], b.plus(place, b.times(i, steps[len(index)])), steps)
                return
            to = b.mul(place, "%number_stride")
            for first in range(0, self.plan.lanes, VECTOR):
                found = Reader(step, index, str(first)).value(expression(self.plan, view))
                b.store(in_memory(b, found, view.value.dtype), numbers, "0", element)
                with b.loop(self.plan.width) as lane:
                    row = b.plus(lane, first)
                    inside = b.new(f"icmp ult i64 {row}, %count")
                    at = b.add(to, b.mul(b.add(row, "%first"), "%row_stride"))
                    where = b.new(f"select i1 {inside}, ptr {b.at('%data', at)}, ptr {numbers}")
                    one = b.load(numbers, lane, element, one=True)
                    b.do(f"store {element} {one}, ptr {where}, align 4")

        stored([], "0", contiguous(view.shape))
        extra = f"ptr %data, i64 %row_stride, i64 %number_stride, i64 %first, {COUNT}"
        slot = slots.result(position, *self.sizes)
        data, *strides = (call.slot(slot + i) for i in range(3))
        given = [f"i64 {number}" for number in (*strides, call.start, call.count)]
        call.step(step, extra, [Address(call.pointer(data)), *given])

    def _packing(self, name: str, phase: Phase) -> list[str]:
        """Write the function of that name, which packs a piece of a phase's weights, and the functions below it."""

        def piece(number: int, rows: int, title: str) -> str:
            b = Body(1)
            call, packed = Caller(self.plan, self.module, b), phase.packed[number]
            view = packed.source
            weight = call.moved(call.at(view.value, view.offset), "%first", view.strides[0])
            shape, alone = (rows, view.shape[1]), self.plan.lanes == 1
            target = call.moved(call.at(packed, 0), "%first", 1 if alone else packed_words(view.shape[1]))
            if alone:
                write = turn_weight(self.module, shape, view.strides, padded(view.shape[0]))
            else:
                write = pack_weight(self.module, shape, view.strides)
            call.do(write, [weight, target])
            return function(title, b, "ptr %slots, i64 %first")

        return divided(name, [packed.pieces for packed in phase.packed], piece)

    def _before(self, name: str, sums: list[Value], values: list[Value], last: bool = False) -> str:
        """Write the function that runs once after a phase. It finishes the phase's sums and computes uniform values;
        after the last phase it also stores the results."""
        b = Body(1)
        call = Caller(self.plan, self.module, b)
        parts = call.slot(slots.PARTS)
        for value in sums:
            if value in self.plan.places:
                stride = self.plan.accumulators
                for name_ in finish(self.module, value):
                    call.do(name_, [call.sums(value), call.at(value, 0), f"i64 {parts}", f"i64 {stride}"])
        for value in values:
            self._usual(call, value)
        for position, output in enumerate(self.plan.program.outputs if last else ()):
            if not output.view.value.rows and not self._in_place(position):
                self._copy(call, position)
        return function(name, b, "ptr %slots")

    def _in_place(self, position: int) -> bool:
        place = self.plan.places.get(self.plan.program.outputs[position].view.value)
        return place is not None and (place.space, place.offset) == ("result", position)

    def _copy(self, call: Caller, position: int) -> None:
        """Write the copy of a uniform output that is elsewhere in memory, or is a view of something."""
        view: View = self.plan.program.outputs[position].view
        step = begin(self.plan, self.module, False)
        b, dtype = step.body, view.value.dtype

        def copied(index: list[str], place: str, steps: tuple[int, ...]) -> None:
            if len(index) < len(view.shape):
                with b.loop(view.shape[len(index)]) as i:
                    copied([*index, i], b.plus(place, b.times(i, steps[len(index)])), steps)
                return
            found = in_memory(b, Reader(step, index, "0").value(expression(self.plan, view)), dtype)
            b.store(found, "%data", place, ELEMENTS[dtype])

        copied([], "0", contiguous(view.shape))
        data = call.pointer(call.slot(slots.result(position, *self.sizes)))
        call.step(step, "ptr %data", [Address(data)])

    def _entry(self) -> str:
        """Write the function that does the task which its slots name."""
        tasks = [("before0", "1")]
        for number, phase in enumerate(self.plan.phases):
            if phase.packed:
                tasks.append((f"packing{number}", str(phase.packs)))
            tasks.append((f"phase{number}", "%parts"))
            if phase.gradients:
                tasks.append((f"gradients{number}", str(phase.pieces)))
            tasks.append((f"before{number + 1}", "1"))
        lines = [f"define i32 @{ENTRY}(ptr %slots) nounwind {{", "entry:", "  %task = load i64, ptr %slots, align 8"]
        cases = " ".join(f"i64 {i}, label %task{i}" for i in range(len(tasks)))
        lines.append(f"  switch i64 %task, label %all [ {cases} ]")
        for i, (name, _) in enumerate(tasks):
            lines += [f"task{i}:", f"  call void @{name}(ptr %slots)", "  ret i32 0"]
        lines += ["all:", f"  {self._slot('%parts_at', slots.PARTS)}", "  %parts = load i64, ptr %parts_at, align 8"]
        lines += [f"  {self._slot('%part_at', slots.PART)}"]
        before = "%all"
        for i, (name, count) in enumerate(tasks):
            lines += [
                f"  br label %parts{i}",
                f"parts{i}:",
                f"  %p{i} = phi i64 [ 0, {before} ], [ %next{i}, %parts{i} ]",
                f"  store i64 %p{i}, ptr %part_at, align 8",
                f"  call void @{name}(ptr %slots)",
                f"  %next{i} = add i64 %p{i}, 1",
                f"  %more{i} = icmp ult i64 %next{i}, {count}",
                f"  br i1 %more{i}, label %parts{i}, label %done{i}",
                f"done{i}:",
            ]
            before = f"%done{i}"
        return "\n".join([*lines, "  ret i32 0", "}"])

    def _slot(self, name: str, number: int) -> str:
        return f"{name} = getelementptr i64, ptr %slots, i64 {number}"
