"""Ceilings of a GPU: bytes copied, float32 multiply-adds, products on tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from benchmarks.speed.gpu_card import Card
from headrace.kernels.rows.gpu.gpu_calls import KernelCalls
from headrace.kernels.rows.gpu.gpu_code import ptx
from headrace.kernels.rows.gpu.gpu_driver import Kernels, architecture
from headrace.kernels.rows.gpu.gpu_text import GPU, THREADS, kernel
from headrace.kernels.rows.targets.llvm_text import Module

TARGET, TURNS = 0, 1  # argument slots: an address, and how often the loop runs
CHAINS, UNROLLED = 16, 8  # sums of a thread, and links of each in a turn of the loop
TILES, TILES_UNROLLED = 8, 4  # the same of a warp's products on tensor cores
BLOCKS, LOOPS = 132 * 8, 2048
MMA = "llvm.nvvm.mma.m16n8k8.row.col.tf32"
MMA_FLOP = 2 * 16 * 8 * 8
SIZE = 8192  # of a product's matrices


def fma_text() -> str:
    """A kernel of independent chains of multiply-adds."""
    calls = KernelCalls(Module("nounwind"), GPU)
    b = calls.b
    first = b.new("uitofp i32 %tid.short to float")
    starts = [("float", b.floats("fadd", first, b.number(i))) for i in range(CHAINS)]
    with b.carrying(calls.slot(TURNS), starts) as (_, names, ends):
        sums = names
        for _ in range(UNROLLED):
            sums = [b.fma(one, b.number(0.9999), b.number(0.5)) for one in sums]
        ends += sums
    return _finished(calls, "fma", ends)


def mma_text() -> str:
    """A kernel of independent chains of products of TF32."""
    calls = KernelCalls(Module("nounwind"), GPU)
    b = calls.b
    four, six = "{float, float, float, float}", ", ".join(["i32"] * 6)
    calls.module.declared.add(f"declare {four} @{MMA}({six}, float, float, float, float)")
    factors = [b.new(f"add i32 %tid.short, {0x3F800000 + (i << 13)}") for i in range(6)]
    given = ", ".join(f"i32 {one}" for one in factors)
    zero = b.number(0.0)
    with b.carrying(calls.slot(TURNS), [("float", zero)] * (4 * TILES)) as (_, names, ends):
        sums = names
        for _ in range(TILES_UNROLLED):
            new: list[str] = []
            for tile in range(TILES):
                own = ", ".join(f"float {one}" for one in sums[4 * tile : 4 * tile + 4])
                made = b.new(f"call {four} @{MMA}({given}, {own})")
                new += [b.new(f"extractvalue {four} {made}, {i}") for i in range(4)]
            sums = new
        ends += sums
    return _finished(calls, "mma", ends)


def _finished(calls: KernelCalls, name: str, sums: list[str]) -> str:
    """A module whose kernel stores the sum of what each thread has."""
    b = calls.b
    total = sums[0]
    for one in sums[1:]:
        total = b.floats("fadd", total, one)
    tid = b.new("zext i32 %tid.short to i64")
    target = calls.device(TARGET)
    address = b.new(f"getelementptr float, {target}, i64 {b.plus(b.times('%part', THREADS), tid)}")
    b.do(f"store float {total}, {target.rsplit(' ', 1)[0]} {address}, align 4")
    calls.module.declared |= b.intrinsics
    return f"{calls.module}\n{kernel(name, b, True, 2, 1)}"


def ceilings(card: Card) -> None:
    """A row for each."""
    size = card.of(1 << 28, 1 << 12)
    one, other = (torch.zeros(size, device=card.device) for _ in range(2))
    seconds = card.timed(partial(other.copy_, one))
    card.tell(what="copy", gb_s=8 * size / seconds / 1e9)
    threads = BLOCKS * THREADS
    for name, text, flop in (
        ("fma", fma_text(), 2 * CHAINS * UNROLLED * LOOPS * threads),
        ("mma", mma_text(), MMA_FLOP * TILES * TILES_UNROLLED * LOOPS * threads // 32),
    ):
        seconds = card.timed(launches(card, name, text))
        card.tell(what=f"{name}, our kernel", tflop_s=None if card.dry else flop / seconds / 1e12)
    for precision, dtype, allowed in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bfloat16", torch.bfloat16, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        n = card.of(SIZE, 16)
        x, y, z = (torch.zeros(n, n, dtype=dtype, device=card.device) for _ in range(3))
        seconds = card.timed(partial(torch.mm, x, y, out=z))
        card.tell(what=f"torch.mm, {precision}", tflop_s=2 * n**3 / seconds / 1e12)


def launches(card: Card, name: str, text: str) -> Callable[[], object]:
    """Make a function that launches a kernel. In a dry run the kernel is only compiled."""
    if card.dry:
        code = ptx(f"sm_90\n{text}")
        assert f".entry {name}".encode() in code
        return lambda: None
    kernels = Kernels(ptx(f"{architecture(card.device)}\n{text}"), card.device)
    target = torch.empty(BLOCKS * THREADS, device=card.device)
    words = np.array([target.data_ptr(), LOOPS], np.int64)
    return lambda: kernels.launch(name, BLOCKS, THREADS, 0, words.ctypes.data) or target
