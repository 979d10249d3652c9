"""A plan as LLVM assembly for a GPU: kernels that are launched one after the other.

    before, pack  uniform values, by one block of threads; weights, in the order in which products read them
    phase         steps of all rows; each block of threads takes blocks of rows, and has sums of its own
    gradients     those of large weights, from factors that the phase has kept
    sum           the sums of all parts, in order
    results       uniform outputs that lie elsewhere

The same text is made for the CPU too, where a loop stands for each step's threads: what a GPU will compute can be
tested without one. Sums are divided by the minibatch, not by the GPU, so results do not depend on which it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.kernels.rows import slots
from headrace.kernels.rows.fuse import is_sum
from headrace.kernels.rows.gpu.gpu_calls import SCRATCH, Calls
from headrace.kernels.rows.gpu.gpu_gradients import Apart, Key, keep_step, tile_step, view_key
from headrace.kernels.rows.gpu.gpu_layout import Places
from headrace.kernels.rows.gpu.gpu_one_launch import NAME, entry, function, one_kernel
from headrace.kernels.rows.gpu.gpu_products import outer_step, pack_step, product_step
from headrace.kernels.rows.gpu.gpu_steps import (
    ThreadStep,
    copy_step,
    filled_step,
    gather_step,
    is_alone,
    joined_step,
    lane_sum_step,
    lanes_added_step,
    parts_step,
    row_sum_step,
    split_of,
    split_step,
    store_step,
    total_step,
    width_of,
)
from headrace.kernels.rows.gpu.gpu_text import (
    ADDED,
    CPU,
    GPU,
    MOST_REGISTERS,
    REGISTERS,
    ROLLED,
    SHARED,
    THREADS,
    WIDTH,
    Memory,
    ThreadBody,
    kernel,
)
from headrace.kernels.rows.row_plan import Phase, Plan
from headrace.kernels.rows.row_program import Input, Outer, Product, Reduce, Value, View
from headrace.kernels.rows.targets.llvm_steps import STARTS, written
from headrace.kernels.rows.targets.llvm_text import Module


@dataclass
class Kernel:
    """A kernel of a program. blocks: of threads; None of as many as there are parts. shared: bytes of a block's own
    memory."""

    name: str
    blocks: int | None
    shared: int


class Emitted(NamedTuple):
    """Text with its kernels, in the order of their launches, and where numbers lie."""

    text: str
    kernels: list[Kernel]
    at: Places


def emitted(
    plan: Plan,
    dtypes: list[str],
    lanes: int,
    gpu: bool,
    room: int = SHARED,
    tensor_cores: str = "",
    one_launch: bool = False,
) -> Emitted:
    """A plan of no vectors. dtypes: of the columns' memory, as numpy names them. lanes: rows of a block. gpu: for a
    GPU, else for the CPU. room: bytes that a block's own memory can have. tensor_cores: see ThreadStep. one_launch: as
    one kernel, where rows are summed up; else there are few."""
    one_launch &= any(is_sum(value) for phase in plan.phases for value in phase.steps)
    return _Target(plan, dtypes, lanes, gpu, room, tensor_cores, one_launch).emitted()


@dataclass
class _Target:
    """The state of emitting one plan."""

    plan: Plan
    dtypes: list[str]
    lanes: int
    gpu: bool
    room: int
    tensor_cores: str
    one_launch: bool
    kernels: list[Kernel] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module = Module("nounwind" if self.gpu else "noinline nounwind")
        self.memory: Memory = GPU if self.gpu else CPU
        self.at = Places(self.plan, self.lanes, self.room)

    def emitted(self) -> Emitted:
        packed: set[Key] = set()
        for number, phase in enumerate(self.plan.phases):
            last = number + 1 == len(self.plan.phases)
            self._before(number, packed)
            if phase.steps or phase.stores:
                self._phase(f"phase{number}", phase)
            apart = [own for own in self.at.gradients.apart.values() if own.value in phase.steps]
            self._gradients(f"gradients{number}", apart)
            sums = [value for value in phase.steps if is_sum(value) and value in self.plan.places]
            if sums:
                self._sum(f"sum{number}", sums)
            if last:
                self._copies(f"results{number}")
        head = ""
        if self.gpu:
            head = "@shared = external addrspace(3) global [0 x float], align 16\n"
        last_lines = [ROLLED if self.gpu else self._entry()]
        if self.one_launch:
            last_lines = self._joined()
        text = "\n".join([head + str(self.module), *self.functions, *last_lines])
        return Emitted(text, self.kernels, self.at)

    def _joined(self) -> list[str]:
        """Make one kernel of all. Returns what follows the functions."""
        counts = [(own.name, own.blocks) for own in self.kernels]
        shared, blocks = max(own.shared for own in self.kernels), max(own.blocks or 0 for own in self.kernels)
        self.kernels = [Kernel(NAME, blocks, shared)]
        if not self.gpu:
            return [entry(counts)]
        return [one_kernel(self.module, counts, self.at.slots, self._together(shared)), ROLLED]

    # kernels

    def _kernel(self, name: str, calls: Calls, blocks: int | None) -> None:
        shared = 4 * (THREADS if blocks is not None else self.at.shared)
        self.kernels.append(Kernel(name, blocks, shared))
        if self.one_launch and self.gpu:
            self.functions.append(function(name, calls.b))
        else:
            self.functions.append(kernel(name, calls.b, self.gpu, self.at.slots, self._together(shared)))

    def _together(self, shared: int) -> int:
        """Blocks that a multiprocessor is to run at once, of so many bytes each."""
        return 2 if shared <= self.room // 2 else 1

    def _calls(self) -> Calls:
        at = self.at
        return Calls(
            self.plan, self.module, self.memory, self.lanes, at.tiles, at.numbers, self.one_launch and self.gpu
        )

    def _before(self, number: int, packed: set[Key]) -> None:
        """Make the kernels before a phase: uniform values, by one block of threads, and by others the weights that the
        phase is the first to read; these after that block where they are among its values."""
        phase, calls, first = self.plan.phases[number], self._calls(), 0
        wanted = {view_key(value.weight): value.weight for value in phase.steps if isinstance(value, Product)}
        new = [self.at.packs[key] for key in wanted if key not in packed]
        packed.update(wanted)
        if phase.before:
            with calls.blocks(first, 1):
                for value in phase.before:
                    self._value(calls, value)
            first = 1
            if any(pack.view.value in phase.before for pack in new):
                self._kernel(f"before{number}", calls, first)
                calls, first = self._calls(), 0
        for pack in new:
            blocks = -(-pack.size // THREADS)
            with calls.blocks(first, blocks) as block:
                step = self._step()
                pack_step(step, pack)
                at = calls.b.times(block, THREADS)
                packs = calls.within(slots.UNIFORM, str(pack.at))
                calls.call(step, [("packed", pack.at, pack.at + pack.size)], [("%packed", packs)], {"%first": at})
            first += blocks
        if first:
            self._kernel(f"pack{number}", calls, first)

    def _copies(self, name: str) -> None:
        calls = self._calls()
        for position, output in enumerate(self.plan.program.outputs):
            if not output.view.value.rows and not self._in_place(position):
                step = self._step()
                copy_step(step, output.view)
                calls.call(step, [("copied", position, position + 1)], [("%data", calls.result(position))])
        if calls.calls:
            self._kernel(name, calls, 1)

    def _in_place(self, position: int) -> bool:
        place = self.plan.places.get(self.plan.program.outputs[position].view.value)
        return place is not None and (place.space, place.offset) == ("result", position)

    def _gradients(self, name: str, values: list[Apart]) -> None:
        """The gradients of a phase that are computed apart."""
        if not values:
            return
        calls, first, chunks = self._calls(), 0, self.at.gradients.chunks
        b = calls.b
        rows = b.times(b.new(f"udiv i64 {b.add(calls.slot(slots.ROWS), self.lanes - 1)}, {self.lanes}"), self.lanes)
        for apart in values:
            blocks = math.prod(apart.tiles) * chunks
            with calls.blocks(first, blocks) as block:
                tile, chunk = b.divided(block, chunks)
                step = self._step()
                tile_step(step, apart, self.at.gradients.width, chunks)
                at = b.plus(apart.at, b.times(chunk, apart.value.size))
                given = [("%kept", calls.within(slots.FACTORS, "0")), ("%sums", calls.within(slots.SUMS, at))]
                calls.call(step, [], given, {"%tile": tile, "%chunk": chunk, "%rows": rows})
            first += blocks
        self._kernel(name, calls, first)

    def _sum(self, name: str, sums: list[Value]) -> None:
        """The parts' sums."""
        calls, first = self._calls(), 0
        parts = calls.slot(slots.PARTS)
        for value in sums:
            blocks = -(-value.size // ADDED)
            with calls.blocks(first, blocks) as block:
                function = value.function if isinstance(value, Reduce) else "sum"
                at = calls.b.times(block, ADDED)
                step = self._step()
                apart = self.at.gradients.apart.get(value) if isinstance(value, Outer) else None
                if apart is None:
                    parts_step(step, value.size, function, self.at.accumulators)
                    given = [calls.scratch, ("%sums", self._sums(calls, value, "0"))]
                    calls.call(step, [SCRATCH], given, {"%first": at, "%parts": parts})
                else:
                    parts_step(step, value.size, function, value.size)
                    given = [calls.scratch, ("%sums", calls.within(slots.SUMS, str(apart.at)))]
                    calls.call(step, [SCRATCH], given, {"%first": at, "%parts": str(self.at.gradients.chunks)})
                step = self._step()
                total_step(step, value.size, function)
                calls.call(step, [], [calls.scratch, ("%target", calls.at(value))], {"%first": at}, [SCRATCH])
            first += blocks
        self._kernel(name, calls, first)

    def _phase(self, name: str, phase: Phase) -> None:
        """The steps of a phase, for the blocks of one part."""
        calls = self._calls()
        b = calls.b
        rows, part, parts = calls.slot(slots.ROWS), calls.part, calls.slot(slots.PARTS)
        blocks = b.new(f"udiv i64 {b.add(rows, self.lanes - 1)}, {self.lanes}")
        first = b.new(f"udiv i64 {b.mul(blocks, part)}, {parts}")
        end = b.new(f"udiv i64 {b.mul(blocks, b.add(part, 1))}, {parts}")
        self._begin(calls, phase)
        with b.when(b.less(first, end)), b.loop(end, begin=first) as block:
            calls.wait()
            calls.begin_block(block, rows)
            for value in phase.steps:
                self._value(calls, value)
            for position in phase.stores:
                self._store(calls, position)
        calls.wait()
        for value in self.at.lane_sums:
            if value in phase.steps:
                step = self._step()
                lanes_added_step(step, value)
                calls.call(step, [], [self._lanes(calls, value), ("%sums", self._sums(calls, value, part))])
        self._kernel(name, calls, None)

    def _begin(self, calls: Calls, phase: Phase) -> None:
        """Set a part's accumulators to what they begin with."""
        for value in filter(is_sum, phase.steps):
            start = STARTS[value.function] if isinstance(value, Reduce) else 0.0
            step = self._step()
            if isinstance(value, Reduce) and value in self.at.lane_sums:
                filled_step(step, value.size * self.lanes, start)
                calls.call(step, [], [("%sums", self._lanes(calls, value)[1])])
            elif value in self.plan.places and value not in self.at.gradients.apart:
                filled_step(step, value.size, start)
                calls.call(step, [], [("%sums", self._sums(calls, value, calls.part))])

    def _sums(self, calls: Calls, value: Value, part: str) -> str:
        """The address of a sum's accumulators, of a part: after those of gradients that are computed apart."""
        own = self.at.sum_at(value)
        return calls.within(slots.SUMS, calls.b.plus(calls.b.times(part, self.at.accumulators), own))

    def _lanes(self, calls: Calls, value: Reduce) -> tuple[str, str]:
        return "%lanes", calls.shared(THREADS + self.lanes * self.at.lane_sums[value])

    # steps

    def _step(self, width: int = 1, alone: bool = False) -> ThreadStep:
        step = ThreadStep(self.plan, self.module, ThreadBody(width))
        step.lanes, step.memory, step.alone, step.tiles_shared = (
            self.lanes,
            self.memory,
            alone,
            self.at.tiles is not None,
        )
        step.tensor_cores = self.tensor_cores
        step.registers = min(MOST_REGISTERS, REGISTERS // (THREADS * self._together(4 * self.at.shared)))
        return step

    def _value(self, calls: Calls, value: Value) -> None:
        """Call the function of a step."""
        if isinstance(value, Input):
            self._gather(calls, value)
        elif is_sum(value):
            self._add(calls, value)
        elif isinstance(value, Product):
            step, pack = self._step(), self.at.packs[view_key(value.weight)]
            product_step(step, value)
            calls.call(step, [calls.range(value)], [("%packed", calls.within(slots.UNIFORM, str(pack.at)))])
        elif (threads := split_of(value, self.lanes)) > 1:
            assert isinstance(value, Reduce)
            step = self._step()
            split_step(step, value, threads)
            calls.call(step, [SCRATCH], [calls.scratch])
            step = self._step()
            joined_step(step, value, threads)
            calls.call(step, [calls.range(value)], [calls.scratch], reads=[SCRATCH])
        else:
            alone = is_alone(value)
            step = self._step(1 if alone else width_of(value, self.lanes), alone)
            if written(step, value):
                calls.call(step, [calls.range(value)])

    def _gather(self, calls: Calls, value: Input) -> None:
        """A column's numbers."""
        step = self._step()
        gather_step(step, value, self.dtypes[value.position])
        slot = slots.column(value.position)
        row, number = (calls.slot(slot + i) for i in (1, 2))
        addresses = [("%data", calls.device(slot)), ("%order", calls.device(slots.ORDER))]
        first = calls.b.add(calls.start, calls.slot(slots.FIRST))
        numbers = {"%row_stride": row, "%number_stride": number, "%first": first, "%count": calls.rows}
        calls.call(step, [calls.range(value)], addresses, numbers)

    def _add(self, calls: Calls, value: Value) -> None:
        """Add a block's rows to a sum."""
        if isinstance(value, Reduce) and value in self.at.lane_sums:
            step = self._step(alone=True)
            lane_sum_step(step, value)
            calls.call(step, [], [self._lanes(calls, value)], {"%count": calls.rows})
            return
        if isinstance(value, Outer) and value in self.at.gradients.apart:
            self._keep(calls, value)
            return
        step = self._step(WIDTH if isinstance(value, Reduce) else 1)
        if isinstance(value, Reduce):
            row_sum_step(step, value)
        else:
            assert isinstance(value, Outer)
            outer_step(step, value)
        calls.call(step, [], [("%sums", self._sums(calls, value, calls.part))], {"%count": calls.rows})

    def _keep(self, calls: Calls, value: Outer) -> None:
        """Keep the factors of a gradient that is computed apart."""
        for view in (value.left, value.right):
            key = view_key(view)
            if key in calls.kept:
                continue
            calls.kept.add(key)
            step, width = self._step(), self.at.gradients.width
            keep_step(step, view, width)
            at = calls.b.plus(calls.b.times(calls.start, width), self.at.gradients.factors[key])
            calls.call(step, [], [("%kept", calls.within(slots.FACTORS, at))], {"%count": calls.rows})

    def _store(self, calls: Calls, position: int) -> None:
        view: View = self.plan.program.outputs[position].view
        step = self._step()
        store_step(step, view)
        slot = slots.result(position, calls.columns, calls.uniforms)
        row, number = (calls.slot(slot + i) for i in (1, 2))
        numbers = {"%row_stride": row, "%number_stride": number, "%first": calls.start, "%count": calls.rows}
        calls.call(step, [], [("%data", calls.result(position))], numbers)

    def _entry(self) -> str:
        """Entry point of a program for the CPU: all kernels, one after the other."""
        b = ThreadBody(1)
        at = b.at("%slots", str(slots.PARTS), "i64")
        parts = b.new(f"load i64, ptr {at}, align 8")
        for own in self.kernels:
            with b.loop(parts if own.blocks is None else own.blocks) as part:
                b.do(f"call void @{own.name}(ptr %slots, i64 {part})")
        lines = "\n".join(b.lines)
        return f"define i32 @entry(ptr %slots) nounwind {{\nentry:\n{lines}\n  ret i32 0\n}}"
