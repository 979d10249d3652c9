"""Calls of steps, from a kernel: addresses of memory, and where a block's threads wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TypeAlias

from headrace.kernels.rows import slots
from headrace.kernels.rows.gpu.gpu_steps import ThreadStep
from headrace.kernels.rows.gpu.gpu_text import GPU, PAD, PARAMETER, THREADS, Memory, ThreadBody
from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import Count, Value
from headrace.kernels.rows.targets.llvm_text import Module

Given: TypeAlias = tuple[str, str]  # a parameter, and its argument with its type
Range: TypeAlias = tuple[str, int, int]  # a kind of memory, and what of it
SCRATCH: Range = ("scratch", 0, 1)


class KernelCalls:
    """Calls of steps from a kernel.

    shared: the slot with the address of a block's own memory, for programs of the CPU. inner: lines of a function that
    is given the number of its part, and not those of a kernel, of which a block of threads is a part. Addresses are
    written with their types. On a GPU what they are computed of is as if it were another number each time: else they
    would be computed once, before the loop over blocks of rows, and kept in more registers than there are.
    """

    def __init__(self, module: Module, memory: Memory, shared: int = slots.SCRATCH, inner: bool = False) -> None:
        self.module, self.memory, self._shared = module, memory, shared
        self.b, self.gpu = ThreadBody(1), memory is GPU
        self.calls = 0
        self._reads: list[tuple[Range, bool]] = []
        self._writes: list[tuple[Range, bool]] = []
        if self.gpu:
            for name, register in (("tid", "tid"), ("part", "ctaid")):
                intrinsic = f"llvm.nvvm.read.ptx.sreg.{register}.x"
                self.module.declared.add(f"declare i32 @{intrinsic}()")
                self.b.lines.append(f"  %{name}.short = call i32 @{intrinsic}()")
            if not inner:
                self.b.lines.append("  %part = zext i32 %part.short to i64")

    @property
    def part(self) -> str:
        """Number of this block of threads."""
        if not self.gpu:
            return "%part"
        return self.b.new('call i64 asm sideeffect "mov.b64 $0, $1;", "=l,l"(i64 %part)')

    def slot(self, number: int) -> str:
        """The number in a slot. A GPU has it at hand."""
        if self.gpu:
            return self.b.new(f'call i64 asm sideeffect "ld.param.b64 $0, [{PARAMETER}+{8 * number}];", "=l"()')
        address = self.b.at("%slots", str(number), "i64")
        return self.b.new(f"load i64, ptr {address}, align 8")

    # addresses

    def device(self, number: int) -> str:
        """The address of the device's memory in a slot."""
        return f"{self.memory.device} {self.b.new(f'inttoptr i64 {self.slot(number)} to {self.memory.device}')}"

    def shared(self, at: int) -> str:
        """An address of a block's own memory, so many numbers from its begin."""
        base = f"{self.memory.shared} @shared" if self.gpu else self.device(self._shared)
        return self._moved(base, str(at))

    def _moved(self, base: str, at: str) -> str:
        kind = base.rsplit(" ", 1)[0]
        return base if at == "0" else f"{kind} {self.b.new(f'getelementptr float, {base}, i64 {at}')}"

    @property
    def scratch(self) -> Given:
        """The parameter of steps that several threads share."""
        return "%scratch", self.shared(0)

    def within(self, slot: int, at: str) -> str:
        """An address of the device's memory, so many numbers from where a slot says."""
        return self._moved(self.device(slot), at)

    # calls

    def call(
        self,
        step: ThreadStep,
        writes: Sequence[Range],
        addresses: Sequence[Given] = (),
        numbers: Mapping[str, str] = MappingProxyType({}),
        reads: Sequence[Range] = (),
    ) -> None:
        """Add a step's function, and call it, after the threads have waited for each other where it needs that.

        writes, reads: what it does besides reading the values that it takes.
        """
        taken = [self.range(value) for value, _ in step.places]
        self._wait_for([*(r for r in taken if r not in writes), *reads], writes, step.alone)
        typed = [(argument.rsplit(" ", 1)[0], name) for name, argument in addresses]
        parameters = [f"{kind} noalias {name}.in" for kind, name in typed] + [f"i64 {name}" for name in numbers]
        given = [self.at(value) for value, _ in step.places]
        given += [f"float {self.number(number)}" for number in step.numbers]
        given += [argument for _, argument in addresses]
        given += [f"i64 {argument}" for argument in numbers.values()]
        step.finished(typed)
        name = self.module.function(step.body, step.parameters(*parameters))
        self.calls += 1
        if self.gpu:
            short = self.b.new('call i32 asm sideeffect "mov.b32 $0, $1;", "=r,r"(i32 %tid.short)')
            tid = self.b.new(f"zext i32 {short} to i64")
            self.b.do(f"call void @{name}({', '.join([*given, f'i64 {tid}'])})")
            return
        with self.b.loop(THREADS) as tid:
            self.b.do(f"call void @{name}({', '.join([*given, f'i64 {tid}'])})")

    def _wait_for(self, reads: Sequence[Range], writes: Sequence[Range], alone: bool) -> None:
        """Wait, if other threads may not have written what is read, or not have read what is written."""
        known = [*self._reads, *self._writes]
        conflict = any(_meet(r, w) and not (alone and own) for w in writes for r, own in known)
        conflict |= any(_meet(r, w) and not (alone and own) for r in reads for w, own in self._writes)
        if conflict:
            self.wait()
        self._reads += [(r, alone) for r in reads]
        self._writes += [(w, alone) for w in writes]

    def wait(self) -> None:
        """All threads of a block go on together."""
        self._reads.clear()
        self._writes.clear()
        if self.gpu:
            self.module.declared.add("declare void @llvm.nvvm.barrier0()")
            self.b.do("call void @llvm.nvvm.barrier0()")

    @contextmanager
    def blocks(self, first: int, count: int) -> Iterator[str]:
        """Let `count` blocks of threads, of which `first` is the first, do what is written within this block. Yields
        the number of each."""
        own = self.b.new(f"sub i64 {self.part}, {first}")
        with self.b.when(self.b.less(own, count)):
            yield own

    def at(self, value: Value) -> str:
        """The address of a value's memory."""
        raise NotImplementedError

    def range(self, value: Value) -> Range:
        """The part of the memory that a value has."""
        raise NotImplementedError

    def number(self, number: Count) -> str:
        """A number that depends on the number of rows."""
        raise NotImplementedError


class Calls(KernelCalls):
    """Calls of a plan's steps.

    block, start, rows: the block of rows, its first row, and how many it has. tiles: where the block's own memory has
    its tiles, in numbers; None where it has no room for them.
    """

    def __init__(
        self,
        plan: Plan,
        module: Module,
        memory: Memory,
        lanes: int,
        tiles: int | None,
        numbers: list[Count],
        inner: bool = False,
    ) -> None:
        super().__init__(module, memory, inner=inner)
        self.plan, self.lanes, self.numbers, self._tiles = plan, lanes, numbers, tiles
        self.columns, self.uniforms = len(plan.program.columns), len(plan.program.uniforms)
        self.block = self.start = self.rows = ""
        self.kept: set[object] = set()  # views of which a later kernel has what it needs

    def result(self, position: int) -> str:
        """The address of an output."""
        return self.within(slots.result(position, self.columns, self.uniforms), "0")

    def begin_block(self, block: str, rows: str) -> None:
        """Go on with a block of rows."""
        b = self.b
        self.block, self.start = block, b.mul(block, self.lanes)
        left = b.new(f"sub i64 {rows}, {self.start}")
        self.rows = b.new(f"select i1 {b.less(left, self.lanes)}, i64 {left}, i64 {self.lanes}")

    def at(self, value: Value) -> str:
        """The address of a value's memory."""
        place = self.plan.places[value]
        if place.space == "given":
            return self.within(slots.given(place.offset, self.columns), "0")
        if place.space == "result":
            return self.within(slots.result(place.offset, self.columns, self.uniforms), "0")
        if place.space == "uniform":
            return self.within(slots.UNIFORM, str(place.offset))
        pitch = self.lanes + PAD
        if place.space == "kept":
            block = self.b.times(self.block, self.plan.kept * pitch)
            return self.within(slots.KEPT, self.b.plus(block, place.offset * pitch))
        if self._tiles is not None:
            return self.shared(self._tiles + place.offset * pitch)
        own = self.b.times(self.part, self.plan.tiles * pitch)
        return self.within(slots.TILES, self.b.plus(own, place.offset * pitch))

    def range(self, value: Value) -> Range:
        """The part of the memory that a value has."""
        place = self.plan.places[value]
        return place.space, place.offset, place.offset + value.size

    def number(self, number: Count) -> str:
        """A number that depends on the number of rows."""
        at = slots.count(self.columns, self.uniforms, len(self.plan.program.outputs)) + self.numbers.index(number)
        if self.gpu:
            return self.b.new(f'call float asm sideeffect "ld.param.f32 $0, [{PARAMETER}+{8 * at}];", "=f"()')
        address = self.b.at("%slots", str(at), "i64")
        return self.b.new(f"load float, ptr {address}, align 8")


def _meet(one: Range, other: Range) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
