"""All kernels of a program as one: its blocks of threads run at once, and wait for each other where a kernel ends.

Each block takes every so-manieth part of a kernel's work, so that numbers do not depend on how many blocks there are.
The blocks count themselves in the device's memory, at slots.SCRATCH: as often as there are blocks for each border.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.kernels.rows import slots
from headrace.kernels.rows.gpu.gpu_calls import KernelCalls
from headrace.kernels.rows.gpu.gpu_text import GPU, PARAMETER, ThreadBody, kernel
from headrace.kernels.rows.targets.llvm_text import Body, Module

NAME = "together"  # of the kernel
FEWER = 5  # blocks in a program for the CPU: of most kernels each has several parts then


def function(name: str, b: Body) -> str:
    """A kernel's lines as a function of its part of the work."""
    lines = "\n".join(b.lines).replace(PARAMETER, f"{NAME}_param_0")
    return f"define internal void @{name}(i64 %part) alwaysinline nounwind {{\nentry:\n{lines}\n  ret void\n}}"


def one_kernel(module: Module, counts: Sequence[tuple[str, int | None]], slot_count: int, together: int) -> str:
    """The kernel that runs functions one after the other. counts: their names, and the parts of their work; None of as
    many as there are parts of the rows. together: see kernel()."""
    calls = KernelCalls(module, GPU)
    b, intrinsic = calls.b, "llvm.nvvm.read.ptx.sreg.nctaid.x"
    module.declared.add(f"declare i32 @{intrinsic}()")
    blocks = b.new(f"zext i32 {b.new(f'call i32 @{intrinsic}()')} to i64")
    for number, (name, count) in enumerate(counts):
        if number:
            _wait_for_all(calls, blocks)
        end = calls.slot(slots.PARTS) if count is None else str(count)
        with b.when(b.less("%part", end)), b.loop(end, blocks, "%part") as part:
            b.do(f"call void @{name}(i64 {part})")
            calls.wait()
    return kernel(NAME, b, True, slot_count, together)


def _wait_for_all(calls: KernelCalls, blocks: str) -> None:
    """Go on once all blocks are here, and see what they wrote."""
    b, memory = calls.b, "~{memory}"
    calls.wait()
    with b.when(b.new("icmp eq i32 %tid.short, 0")):
        counter = calls.slot(slots.SCRATCH)
        b.do(f'call void asm sideeffect "fence.acq_rel.gpu;", "{memory}"()')
        before = b.new(f'call i64 asm sideeffect "atom.global.add.u64 $0, [$1], 1;", "=l,l,{memory}"(i64 {counter})')
        wanted = b.mul(b.add(b.new(f"udiv i64 {before}, {blocks}"), 1), blocks)
        with b.until() as done:
            read = f'call i64 asm sideeffect "ld.acquire.gpu.global.u64 $0, [$1];", "=l,l,{memory}"(i64 {counter})'
            done.append(b.new(f"icmp uge i64 {b.new(read)}, {wanted}"))
        b.do(f'call void asm sideeffect "fence.acq_rel.gpu;", "{memory}"()')
    calls.wait()


def entry(counts: Sequence[tuple[str, int | None]]) -> str:
    """The same for the CPU: of each function all blocks, one after the other."""
    b = ThreadBody(1)
    parts = b.new(f"load i64, ptr {b.at('%slots', str(slots.PARTS), 'i64')}, align 8")
    for name, count in counts:
        end = parts if count is None else str(count)
        with b.loop(FEWER) as block, b.when(b.less(block, end)), b.loop(end, FEWER, block) as part:
            b.do(f"call void @{name}(ptr %slots, i64 {part})")
    lines = "\n".join(b.lines)
    return f"define i32 @entry(ptr %slots) nounwind {{\nentry:\n{lines}\n  ret i32 0\n}}"
