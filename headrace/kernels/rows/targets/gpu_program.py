"""A plan as kernels of a GPU, with the memory that its calls need."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import Count
from headrace.kernels.rows.targets import slots
from headrace.kernels.rows.targets.gpu import SHARED, Emitted, emitted
from headrace.kernels.rows.targets.gpu_code import ptx
from headrace.kernels.rows.targets.gpu_text import PAD, THREADS
from headrace.parallel.cuda.driver import Kernels, architecture

BLOCKS = (64, 32, 16)  # rows of a block of threads
PARTS = 256  # blocks of threads of a minibatch, at most
FULL = 128  # blocks of rows, below which a block has fewer rows: a GPU has about as many multiprocessors


def rows_of_block(plan: Plan, rows: int) -> int:
    """Rows of a block: the most of which a GPU has enough blocks, and whose tiles have room."""
    fitting = [n for n in BLOCKS if 4 * plan.tiles * (n + PAD) <= SHARED // 2]
    return next((n for n in fitting or BLOCKS[-1:] if rows >= n * FULL), (fitting or BLOCKS)[-1])


class GpuProgram:
    """A plan's kernels on a device, for minibatches of `rows` rows."""

    def __init__(self, plan: Plan, dtypes: list[str], rows: int, device: torch.device, lanes: int = 0) -> None:
        self.plan, self.rows, self.device = plan, rows, device
        self.lanes = lanes or rows_of_block(plan, rows)
        self.made: Emitted = emitted(plan, dtypes, self.lanes, gpu=True)
        self.kernels = Kernels(ptx(self.made.text, architecture(device)), device)
        program = plan.program
        self.sizes = len(program.columns), len(program.uniforms)
        self.blocks = -(-rows // self.lanes)
        self.parts = min(self.blocks, PARTS)
        self.fixed = slots.count(*self.sizes, len(program.outputs))
        new = torch.empty
        memory = {
            slots.KEPT: self.blocks * plan.kept * (self.lanes + PAD),
            slots.UNIFORM: self.made.uniform,
            slots.SUMS: self.parts * plan.accumulators,
            slots.TILES: self.parts * self.made.scratch,
        }
        self._memory = {slot: new(max(size, 1), device=device) for slot, size in memory.items()}

    def words(self) -> np.ndarray:
        """Argument slots, of which the caller writes those of inputs and outputs."""
        words = np.zeros(self.fixed + len(self.made.numbers), np.int64)
        words[slots.PARTS], words[slots.ROWS] = self.parts, self.rows
        for slot, own in self._memory.items():
            words[slot] = own.data_ptr()
        for i, number in enumerate(self.made.numbers):
            words[self.fixed + i : self.fixed + i + 1].view(np.float32)[0] = _at(number, self.rows)
        return words

    def run(self, words: Tensor) -> None:
        """Launch all kernels. words: the argument slots, on the device."""
        address = words.data_ptr()
        for kernel in self.made.kernels:
            blocks = self.parts if kernel.blocks is None else kernel.blocks
            self.kernels.launch(kernel.name, blocks, THREADS, self.made.shared, address)


def _at(number: Count, rows: int) -> float:
    return number.at(rows)
