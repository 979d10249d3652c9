"""A plan as machine code, with the memory that its calls need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.kernels.nn.layout import aligned
from headrace.kernels.rows import slots
from headrace.kernels.rows.row_plan import ALONE, Plan
from headrace.kernels.rows.targets.cpu_arguments import Work
from headrace.kernels.runtime.cache import of_text
from headrace.kernels.runtime.native import Call, Native
from headrace.kernels.runtime.thread_pool import WORKERS, WorkQueue, queue_state

PARTS, PART = 8, 128  # parts of a minibatch: so many at most, of so many rows at least
LEAST = 32  # rows of a part at least, where there are two, or where parts have few sums to begin and to add
ANNOUNCEMENT = "compiling the threads of compiled losses (once, about 1 s) ..."


def parts_of(rows: int, lanes: int, by_weights: bool = False) -> int:
    """Number of parts of so many rows, whatever the number of threads. A part has at least one block."""
    least = max(LEAST, lanes) if lanes > ALONE else ALONE  # such a row has much work
    if by_weights:
        return max(1, min(PARTS, rows // least))
    return max(1, min(2, rows // least), min(PARTS, -(-rows // PART)))


@dataclass(frozen=True)
class Layout:
    """Sizes of the memory that a call of a program needs: counts of its inputs and outputs, and as in Plan.

    pieces: of the gradients that are taken by weights after each phase. packs: of the weights packed before each."""

    columns: int
    uniforms: int
    outputs: int
    pieces: Sequence[int]
    packs: Sequence[int]
    tiles: int
    kept: int
    uniform: int
    accumulators: int
    lanes: int

    @property
    def phases(self) -> int:
        """Passes over all rows."""
        return len(self.pieces)

    def parts_of(self, rows: int) -> int:
        """Number of parts into which so many rows are divided."""
        return parts_of(rows, self.lanes, by_weights=any(self.pieces))

    def tasks(self, parts: int) -> list[int]:
        """Count the parts of each task, where rows are divided into so many."""
        found = [1]
        for packs, pieces in zip(self.packs, self.pieces, strict=True):
            found += [*[packs] * (packs > 0), parts, *[pieces] * (pieces > 0), 1]
        return found


def compiled(plan: Plan, dtypes: Sequence[str]) -> CpuProgram:
    """A plan as machine code. dtypes: of the columns' memory, as numpy names them."""
    from headrace.kernels.rows.cpu_code import is_wide, object_code
    from headrace.kernels.rows.targets.cpu import assembly

    program = plan.program
    counts = len(program.columns), len(program.uniforms), len(program.outputs)
    pieces, packs = [phase.pieces for phase in plan.phases], [phase.packs for phase in plan.phases]
    layout = Layout(*counts, pieces, packs, plan.tiles, plan.kept, plan.uniform, plan.accumulators, plan.lanes)
    return CpuProgram(layout, of_text("rows", assembly(plan, list(dtypes), is_wide()), object_code))


class CpuProgram:
    """Machine code of a plan, with the memory of its calls.

    Calls have memory of their own, which a later call uses again, so several threads may call at once.
    """

    def __init__(self, layout: Layout, native: Native) -> None:
        self.layout, self.native = layout, native
        self.sizes = layout.columns, layout.uniforms
        self.free: list[Memory] = []

    def memory(self, rows: int, threads: int) -> Memory:
        """Memory for a call, which gives it back."""
        try:
            found = self.free.pop()
        except IndexError:
            found = Memory(self)
        found.prepare(rows, threads)
        return found


class Memory:
    """Memory of one call of a program. words: the main thread's argument slots; inputs and outputs belong to the
    caller."""

    def __init__(self, program: CpuProgram) -> None:
        self.program, layout = program, program.layout
        self.count = slots.count(*program.sizes, layout.outputs)
        self.words = np.zeros(self.count, np.int64)
        self._address = self.words.ctypes.data
        self._uniform = aligned(layout.uniform)
        self.words[slots.UNIFORM] = self._uniform.ctypes.data
        self._scratch = aligned(layout.tiles * layout.lanes)
        self.words[slots.SCRATCH] = self._scratch.ctypes.data
        self._kept, self._sums = aligned(0), aligned(0)
        self._blocks = self._parts = 0
        self._threads: _Threads | None = None

    def prepare(self, rows: int, threads: int) -> None:
        """Make room for so many rows."""
        layout, words = self.program.layout, self.words
        blocks, parts = -(-rows // layout.lanes), layout.parts_of(rows)
        if blocks > self._blocks:
            self._kept, self._blocks = aligned(blocks * layout.kept * layout.lanes), blocks
            words[slots.KEPT] = self._kept.ctypes.data
        if parts > self._parts:
            self._sums, self._parts = aligned(parts * layout.accumulators), parts
            words[slots.SUMS] = self._sums.ctypes.data
        words[slots.PARTS], words[slots.ROWS] = parts, rows
        if threads > 1 and parts > 1 and self._threads is None:
            self._threads = _Threads(self.program, self.count)

    def run(self, threads: int) -> None:
        """Compute all outputs."""
        if threads == 1 or self._threads is None or self.words[slots.PARTS] == 1:
            self.words[slots.TASK] = slots.ALL
            self.program.native.run(self._address)
        else:
            self._threads.run(self.words, threads)

    def give_back(self) -> None:
        """Let later calls use this memory."""
        self.program.free.append(self)


class Workers:
    """Memory of several threads. slots: int64 [WORKERS * count], argument slots of each."""

    def __init__(self, program: CpuProgram, count: int) -> None:
        layout = program.layout
        self.slots = np.zeros(WORKERS * count, np.int64)
        self._rows = self.slots.reshape(WORKERS, count)
        self._scratch = [aligned(layout.tiles * layout.lanes) for _ in range(WORKERS - 1)]
        self._lies = [scratch.ctypes.data for scratch in self._scratch]
        address = np.uint64(program.native.address)
        parts = np.zeros(len(layout.tasks(0)), np.int64)
        self.work = Work(address, self.slots, np.uint64(count), np.zeros(1, np.int64), parts)
        self._layout, self._parts = layout, 0

    def take(self, words: np.ndarray, threads: int) -> None:
        """Give each thread the argument slots of the main one, except its scratch memory."""
        self._rows[:threads] = words
        self._rows[1:threads, slots.SCRATCH] = self._lies[: threads - 1]
        if (parts := int(words[slots.PARTS])) != self._parts:
            self.work.parts[:], self._parts = self._layout.tasks(parts), parts


class _Threads(Workers):
    """A call of a program on several threads."""

    def __init__(self, program: CpuProgram, count: int) -> None:
        from headrace.kernels.runtime.entry_points import entry

        super().__init__(program, count)
        self._queue, arguments = WorkQueue(), (0, queue_state(), self.work)
        self._call = Call(entry("rows.targets.cpu_threads", "run", arguments, ANNOUNCEMENT), arguments)

    def run(self, words: np.ndarray, threads: int) -> None:
        self.take(words, threads)
        self._queue.run(self._call, threads)


assert sys.byteorder == "little", "dtypes of columns are read as the machine's"
