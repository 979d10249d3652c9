"""A plan as LLVM assembly for the CPU: a function for each step, one for each phase, and the entry point."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.kernels.rows.fuse import is_sum
from headrace.kernels.rows.row_plan import (
    VECTOR,
    Phase,
    Plan,
    Transposed,
    outer_form,
    padded,
)
from headrace.kernels.rows.row_program import (
    Input,
    Outer,
    Product,
    Reduce,
    Value,
    View,
    contiguous,
)
from headrace.kernels.rows.targets import slots
from headrace.kernels.rows.targets.cpu_calls import Caller
from headrace.kernels.rows.targets.cpu_floors import floors
from headrace.kernels.rows.targets.llvm_expressions import ELEMENTS, Reader, Step, expression, in_memory
from headrace.kernels.rows.targets.llvm_products import Multiply, dots_step, multiply, transposed_step
from headrace.kernels.rows.targets.llvm_steps import (
    COUNT,
    begin,
    combined,
    gather_step,
    row_sum_step,
    written,
)
from headrace.kernels.rows.targets.llvm_text import Body, Module

ENTRY = "entry"


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
            functions.append(self._phase(f"phase{number}", phase))
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
            start = b.mul(block, self.plan.lanes)
            left = b.new(f"sub i64 {rows}, {start}")
            whole = b.new(f"icmp ult i64 {left}, {self.plan.lanes}")
            count = b.new(f"select i1 {whole}, i64 {left}, i64 {self.plan.lanes}")
            call.begin_block(block, start, count)
            for value in phase.steps:
                if value not in self.done:
                    self._step(call, value)
            for position in phase.stores:
                self._store(call, position)
        b.do("br label %done")
        b.lines.append("done:")
        return _function(name, b)

    def _step(self, call: Caller, value: Value) -> None:
        """Call the function of a step of a block."""
        if isinstance(value, Input):
            name = gather_step(self.module, value, self.dtypes[value.position], self.plan.lanes)
            call.gather(name, value)
        elif isinstance(value, Product):
            self._product(call, value)
        elif isinstance(value, Outer):
            self._outer(call, value)
        elif is_sum(value):
            assert isinstance(value, Reduce)
            step = row_sum_step(self.plan, self.module, value)
            call.step(step, f"ptr noalias %sums, {COUNT}", f"ptr {call.sums(value)}, i64 {call.count}")
        elif isinstance(value, Transposed):
            call.step(transposed_step(begin(self.plan, self.module, True), value))
        elif function := self._uniform(value):
            call.step(function)

    def _uniform(self, value: Value) -> Step | None:
        """A step that is the same for rows and for uniform values, but for the width; None where nothing is to do."""
        step = begin(self.plan, self.module, value.rows)
        return step if written(step, value) else None

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
        )
        name = multiply(self.module, sizes, self.wide)
        steps = contiguous(value.shape)
        for place in _indices(source.shape[:-1]):
            given = [
                call.at(weight.value, weight.offset),
                call.at(source.value, _place(source, place) * self.plan.lanes),
                call.at(value, sum(i * s for i, s in zip(place, steps, strict=False)) * self.plan.lanes),
            ]
            if value.bias is not None:
                given.append(call.at(value.bias.value, value.bias.offset))
            call.do(name, [f"ptr {pointer}" for pointer in given])

    def _outer(self, call: Caller, value: Outer) -> None:
        form = outer_form(value)
        if form == "dots":
            step = dots_step(begin(self.plan, self.module, True), value)
            call.step(step, f"ptr noalias %sums, {COUNT}", f"ptr {call.sums(value)}, i64 {call.count}")
            return
        own, turned = (value.left, value.right) if form == "right" else (value.right, value.left)
        pitch = padded(turned.shape[-1])
        sizes = Multiply(own.shape[-1], None, pitch, own.strides[-1] * self.plan.lanes, 1, pitch, pitch, "target")
        together = own.shape[-2] if len(own.shape) > 1 else 1
        if together > 1:
            apart = own.strides[-2] * self.plan.lanes, pitch * self.plan.lanes
            sizes = replace(sizes, again=together, next=apart)
        name = multiply(self.module, sizes, self.wide)
        for number, place in enumerate(_indices(own.shape[:-2])):
            pointers = [
                call.at(own.value, _place(own, place) * self.plan.lanes),
                call.at(self.plan.transposed[value], number * together * pitch * self.plan.lanes),
                call.sums(value),
            ]
            call.do(name, [*(f"ptr {pointer}" for pointer in pointers), f"i64 {call.count}"])

    def _store(self, call: Caller, position: int) -> None:
        """An output with rows, into the caller's column."""
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
                with b.loop(VECTOR) as lane:
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
        given = f"ptr {call.pointer(data)}, i64 {strides[0]}, i64 {strides[1]}, i64 {call.start}, i64 {call.count}"
        call.step(step, extra, given)

    def _before(self, name: str, sums: list[Value], values: list[Value], last: bool = False) -> str:
        """What follows a phase, once: its sums, uniform values, and after the last phase the results."""
        b = Body(1)
        call = Caller(self.plan, self.module, b)
        parts = call.slot(slots.PARTS)
        for value in sums:
            if value in self.plan.places:
                stride = self.plan.accumulators
                given = [f"ptr {call.sums(value)}", f"ptr {call.at(value, 0)}", f"i64 {parts}", f"i64 {stride}"]
                for name_ in self._finish(value):
                    call.do(name_, given)
        for function in filter(None, map(self._uniform, values)):
            call.step(function)
        for position, output in enumerate(self.plan.program.outputs if last else ()):
            if not output.view.value.rows and not self._in_place(position):
                self._copy(call, position)
        return _function(name, b)

    def _finish(self, value: Value) -> list[str]:
        """The functions that add the parts' accumulators in order, into plain numbers: %sums, %target."""
        if isinstance(value, Reduce) or outer_form(value) == "dots":  # type: ignore[arg-type]
            b, function = Body(), value.function if isinstance(value, Reduce) else "sum"
            with b.loop(value.size) as i:
                total = self._parts(b, b.times(i, VECTOR), function)
                b.do(f"store float {_across(b, total, function)}, ptr {b.at('%target', i)}, align 4")
            return [self._add_function(b)]
        n, k = value.shape
        if outer_form(value) == "left":  # type: ignore[arg-type]
            b = Body(1)
            with b.loop(n) as i, b.loop(k) as j:
                total = self._parts(b, b.plus(b.times(j, padded(n)), i))
                b.store(total, "%target", b.plus(b.times(i, k), j))
            return [self._add_function(b)]
        whole = k - k % VECTOR
        return [
            self._add_rows(n, k, first, end, width)
            for first, end, width in ((0, whole, VECTOR), (whole, k, 1))
            if end > first
        ]

    def _add_rows(self, n: int, k: int, first: int, end: int, width: int) -> str:
        """The function for columns `first` to `end` of a matrix, so many at a time."""
        b = Body(width)
        with b.loop(n) as i, b.loop(end, width, first) as j:
            total = self._parts(b, b.plus(b.times(i, padded(k)), j))
            b.store(total, "%target", b.plus(b.times(i, k), j))
        return self._add_function(b)

    def _parts(self, b: Body, at: str, function: str = "sum") -> str:
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

    def _add_function(self, b: Body) -> str:
        return self.module.function(b, "ptr noalias %sums, ptr noalias %target, i64 %parts, i64 %stride")

    def _in_place(self, position: int) -> bool:
        place = self.plan.places.get(self.plan.program.outputs[position].view.value)
        return place is not None and (place.space, place.offset) == ("result", position)

    def _copy(self, call: Caller, position: int) -> None:
        """A uniform output that lies elsewhere, or is a view of something."""
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
        call.step(step, "ptr %data", f"ptr {data}")

    def _entry(self) -> str:
        """The function that does the task which its slots name."""
        tasks = ["before0"] + [name for i in range(len(self.plan.phases)) for name in (f"phase{i}", f"before{i + 1}")]
        lines = [f"define i32 @{ENTRY}(ptr %slots) nounwind {{", "entry:", "  %task = load i64, ptr %slots, align 8"]
        cases = " ".join(f"i64 {i}, label %task{i}" for i in range(len(tasks)))
        lines.append(f"  switch i64 %task, label %all [ {cases} ]")
        for i, name in enumerate(tasks):
            lines += [f"task{i}:", f"  call void @{name}(ptr %slots)", "  ret i32 0"]
        lines += ["all:", f"  {self._slot('%parts_at', slots.PARTS)}", "  %parts = load i64, ptr %parts_at, align 8"]
        lines += [f"  {self._slot('%part_at', slots.PART)}"]
        for i, name in enumerate(tasks):
            if name.startswith("before"):
                lines.append(f"  call void @{name}(ptr %slots)")
                continue
            lines += [f"  br label %parts{i}", f"parts{i}:"]
            before = "%all" if i == 1 else f"%done{i - 2}"
            lines += [
                f"  %p{i} = phi i64 [ 0, {before} ], [ %next{i}, %parts{i} ]",
                f"  store i64 %p{i}, ptr %part_at, align 8",
                f"  call void @{name}(ptr %slots)",
                f"  %next{i} = add i64 %p{i}, 1",
                f"  %more{i} = icmp ult i64 %next{i}, %parts",
                f"  br i1 %more{i}, label %parts{i}, label %done{i}",
                f"done{i}:",
            ]
        return "\n".join([*lines, "  ret i32 0", "}"])

    def _slot(self, name: str, number: int) -> str:
        return f"{name} = getelementptr i64, ptr %slots, i64 {number}"


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


def _indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for n in shape:
        found = [(*index, i) for index in found for i in range(n)]
    return found


def _place(view: View, index: tuple[int, ...]) -> int:
    return view.offset + sum(i * s for i, s in zip(index, view.strides, strict=False))


def _function(name: str, b: Body) -> str:
    text = "\n".join(b.lines)
    return f"define internal void @{name}(ptr %slots) noinline nounwind {{\nentry:\n{text}\n  ret void\n}}"
