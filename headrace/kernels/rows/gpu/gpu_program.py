"""A plan as kernels of a GPU, with the memory that its calls need."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from headrace.kernels.rows import slots
from headrace.kernels.rows.gpu.gpu_driver import Kernels, architecture, shared_memory
from headrace.kernels.rows.gpu.gpu_one_launch import NAME
from headrace.kernels.rows.gpu.gpu_text import PAD, SHARED, THREADS
from headrace.kernels.rows.reasons import NotRows
from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import Count
from headrace.kernels.rows.targets.records import GpuLayout, Ptx
from headrace.kernels.runtime.cache import bytes_of_text
from headrace.kernels.runtime.native import Native

BLOCKS = (128, 64, 32, 16, 8, 4)  # rows of a block of threads
FEWEST = 32  # rows of a block, of fewer of which it reads the weights too often
RESERVED = 1024  # numbers of a block's own memory for other things than tiles
# On an H100 a loss of 141,574 weights takes 137 us with 2,048 rows where plain PyTorch takes 352, and 4,955 for 4,648
# with 131,072; one of 274,182 takes 280 for 570, and 13,332 for 8,668; of 34,694 weights 1,112 for 2,389 with 131,072.
WIDE, LARGE = 65_536, 1 << 32  # weights, and weights times rows, rounded up to a power of two
MANY = 8_191  # rows up to which no layer is refused for its width
PARTS = 256  # blocks of threads of a phase, at most: about as many as a GPU runs at once
FULL = 128  # blocks of rows, of fewer of which a block has fewer rows: a GPU has about as many multiprocessors


def target(device: torch.device, rows: int) -> str:
    """Name of what kernels are made for: the GPU, about how many rows, and how products use tensor cores."""
    about = max(rows, MANY).bit_length()
    processor = architecture(device) if device.type == "cuda" else "threads"
    return f"{processor} {wanted(rows)} {about} {tensor_cores()} {one_launch()}"


def tensor_cores() -> str:
    """Way in which products use a GPU's tensor cores: "", not at all, by default, since it was not measured yet. With
    HEADRACE_TENSOR_CORES=1 "split", as exact as float32, or "plain" where torch's products are TF32, too."""
    if os.environ.get("HEADRACE_TENSOR_CORES", "0") != "1":
        return ""
    return "plain" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "split"


def one_launch() -> bool:
    """True if a gradient is one launch, whose blocks wait for each other: HEADRACE_ONE_LAUNCH=1. Not by default, since
    it was not measured yet."""
    return os.environ.get("HEADRACE_ONE_LAUNCH", "0") == "1"


def refuse_wide(plan: Plan, rows: int) -> None:
    """Raise NotRows where plain PyTorch is faster: for wide layers, with many rows."""
    if tensor_cores():
        return  # with which it was not measured
    if plan.accumulators > WIDE and plan.accumulators * (1 << rows.bit_length()) > LARGE:
        raise NotRows(f"with {plan.accumulators:,} weights and {rows:,} rows plain PyTorch is faster on a GPU")


def wanted(rows: int) -> int:
    """The most rows of a block of which a GPU has enough blocks."""
    return next((n for n in BLOCKS if rows >= n * FULL), BLOCKS[-1])


def _lanes(plan: Plan, rows: int, room: int = SHARED) -> int:
    """Rows of a block: as many as are wanted, if two blocks have room in a multiprocessor's memory, so that one
    computes while the other waits; else what was fastest on an H100."""
    most = wanted(rows)
    two, one = (
        next((n for n in BLOCKS if n <= most and 4 * blocks * (plan.tiles * (n + PAD) + RESERVED) <= room), 0)
        for blocks in (2, 1)
    )
    if two >= min(most, FEWEST):
        return two
    if one >= 2 * FEWEST:
        return one
    return two if 2 * two >= FEWEST else max(one, min(most, FEWEST))


def compiled(plan: Plan, dtypes: Sequence[str], rows: int, device: torch.device, lanes: int = 0) -> GpuProgram:
    """A plan of no vectors as kernels, for about so many rows. dtypes: of the columns' memory, as numpy names them.
    device: a GPU; for the CPU, the same text with a loop over each step's threads. lanes: rows of a block; 0 for what
    suits the rows."""
    from headrace.kernels.rows.gpu.gpu_kernels import emitted

    refuse_wide(plan, rows)
    room = shared_memory(device) if device.type == "cuda" else SHARED
    lanes = lanes or _lanes(plan, rows, room)
    text, kernels, at = emitted(plan, list(dtypes), lanes, device.type == "cuda", room, tensor_cores(), one_launch())
    program, launches = plan.program, [[k.name, k.blocks or 0, k.shared] for k in kernels]
    numbers = [[n.factor, n.power, n.less, n.plus] for n in at.numbers]
    counts = len(program.columns), len(program.uniforms), len(program.outputs), len(plan.phases)
    kept, factors = plan.kept * (lanes + PAD), at.gradients.width
    sizes = kept, at.scratch, factors, at.uniform, at.gradients.size, at.accumulators
    layout = GpuLayout(*counts, lanes, launches, *sizes, numbers)
    return GpuProgram(layout, _code(text, device), device)


def _code(text: str, device: torch.device) -> Ptx:
    """Code of kernels for a GPU; for the CPU, of the program that runs them in tests."""
    from headrace.kernels.rows.cpu_code import unoptimised_code
    from headrace.kernels.rows.gpu.gpu_code import ptx

    if device.type == "cuda":
        return Ptx(*bytes_of_text("kernels", f"{architecture(device)}\n{text}", ptx))
    return Ptx(*bytes_of_text("threads", text, unoptimised_code))


class GpuProgram:
    """Kernels of a plan on a device."""

    def __init__(self, layout: GpuLayout, native: Ptx, device: torch.device) -> None:
        self.layout, self.native, self.device = layout, native, device
        self.sizes = layout.columns, layout.uniforms
        self.kernels = _loaded(native.code, device)

    def memory(self, rows: int, threads: int) -> GpuMemory:
        """Memory for a call. It is new, so that a CUDA graph in which the call is captured has it for itself."""
        return GpuMemory(self, rows)


@cache
def _loaded(code: bytes, device: torch.device) -> Kernels | Native:
    """Kernels that are never unloaded, since graphs launch them."""
    return Kernels(code, device) if device.type == "cuda" else Native(code)


class GpuMemory:
    """Memory that one call of a program works in. words: its argument slots; in and out are the caller's."""

    def __init__(self, program: GpuProgram, rows: int) -> None:
        self.program, layout = program, program.layout
        self.blocks = -(-rows // layout.lanes)
        self.parts = min(self.blocks, PARTS)
        fixed = slots.count(*program.sizes, layout.outputs)
        self.words = np.zeros(fixed + len(layout.numbers), np.int64)
        self.words[slots.PARTS], self.words[slots.ROWS] = self.parts, rows
        for i, number in enumerate(layout.numbers):
            self.words[fixed + i : fixed + i + 1].view(np.float32)[0] = Count(*number).at(rows)  # type: ignore[arg-type]
        sizes = {
            slots.KEPT: self.blocks * layout.kept,
            slots.UNIFORM: layout.uniform,
            slots.SUMS: layout.apart + self.parts * layout.accumulators,
            slots.TILES: self.parts * layout.scratch,
            slots.FACTORS: self.blocks * layout.lanes * layout.factors,
        }
        if program.device.type == "cpu":
            sizes[slots.SCRATCH] = max(kernel[2] for kernel in layout.kernels) // 4
        self._memory = {s: torch.empty(size, device=program.device) for s, size in sizes.items() if size}
        if program.device.type == "cuda" and layout.kernels[0][0] == NAME:
            self._memory[slots.SCRATCH] = torch.zeros(2, device=program.device)  # an int64, which is counted up
        for slot, own in self._memory.items():
            self.words[slot] = own.data_ptr()

    def run(self, threads: int = 1, first: bool = True) -> None:
        """Compute all outputs. first: or else uniform inputs are those of the run before."""
        kernels, address = self.program.kernels, self.words.ctypes.data
        if isinstance(kernels, Native):
            kernels.run(address)
            return
        for name, blocks, shared in self.program.layout.kernels:
            if name == "pack0" and not first:
                continue
            if name == NAME:
                kernels.launch(name, max(blocks, self.parts), THREADS, shared, address, together=True)
            else:
                kernels.launch(name, blocks or self.parts, THREADS, shared, address)

    def give_back(self) -> None:
        """Do nothing: no other call uses this memory."""


class GpuAdam:
    """Adam's step by kernels of a device."""

    def __init__(self, device: torch.device) -> None:
        from headrace.kernels.rows.gpu.gpu_adam import adam_text

        self.kernels = _loaded(_code(adam_text(device.type == "cuda"), device).code, device)

    def run(
        self,
        buffers: Sequence[torch.Tensor],
        max_norm: float,
        eps: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
    ) -> None:
        """A step. buffers: as gpu_adam names them, but for the last."""
        from headrace.kernels.rows.gpu import gpu_adam as at

        count, device = len(buffers[0]), buffers[0].device
        blocks = -(-count // at.PART)
        squares, shared = torch.empty(blocks, device=device), torch.empty(THREADS if device.type == "cpu" else 0)
        words = np.zeros(at.SHARED + 1, np.int64)
        words[: at.COUNT] = [x.data_ptr() for x in (*buffers, squares)]
        words[at.COUNT], words[at.BLOCKS], words[at.SHARED] = count, blocks, shared.data_ptr()
        betas = [x for beta in (beta1, beta2) for x in (beta, 1 - beta, math.log(beta) if beta else -math.inf)]
        words[at.BLOCKS + 1 : at.SHARED].view(np.float32)[::2] = (max_norm, eps, *betas, weight_decay)
        if isinstance(self.kernels, Native):
            self.kernels.run(words.ctypes.data)
            return
        self.kernels.launch("squares", blocks, THREADS, 4 * THREADS, words.ctypes.data)
        self.kernels.launch("adam", -(-count // THREADS), THREADS, 4 * THREADS, words.ctypes.data)


@cache
def adam(device: torch.device) -> GpuAdam:
    """Adam's step on a device."""
    return GpuAdam(device)
