"""Places of a plan's numbers on a GPU: in a block's own memory, and in the device's."""

from __future__ import annotations

from collections import Counter

from headrace.kernels.rows import slots
from headrace.kernels.rows.gpu.gpu_gradients import Key, gradients_of, view_key
from headrace.kernels.rows.gpu.gpu_products import Pack
from headrace.kernels.rows.gpu.gpu_steps import is_alone_sum
from headrace.kernels.rows.gpu.gpu_text import PAD, SHARED, THREADS
from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import Constant, Count, Product, Reduce, Value

CACHED = 64  # accumulators of rows' own threads that a block has at most, for each lane


class Places:
    """Places of a plan's numbers, for blocks of `lanes` rows. room: bytes that a block's own memory can have.

    A block's own memory, `shared` numbers, has what threads share of a reduction, then the accumulators of rows' own
    threads (lane_sums: after how many others each value's lie), then tiles; tiles: where these begin, or None where
    they have no room, and each part has `scratch` numbers of the device's memory.
    uniform: numbers of the call, with the packed weights (packs: of each view).
    gradients: those that are computed apart. accumulators: numbers of each part's other sums.
    numbers: those that depend on the rows, in the slots after the others; slots: how many there are.
    """

    def __init__(self, plan: Plan, lanes: int, room: int = SHARED) -> None:
        self.plan, self.lanes, self.room, program = plan, lanes, room, plan.program
        constants = [value for value in program.values() if isinstance(value, Constant)]
        counts = [number for value in constants for number in value.numbers if isinstance(number, Count)]
        self.numbers = list(dict.fromkeys(counts))
        fixed = slots.count(len(program.columns), len(program.uniforms), len(program.outputs))
        self.slots = fixed + len(self.numbers)
        self.lane_sums = self._lane_sums()
        own = THREADS + lanes * sum(value.size for value in self.lane_sums)
        tiles = plan.tiles * (lanes + PAD)
        self.tiles = own if 4 * (own + tiles) <= room else None
        self.shared, self.scratch = (own, tiles) if self.tiles is None else (own + tiles, 0)
        self.packs, self.uniform = self._packs()
        self.gradients = gradients_of(plan)
        self._sums, self.accumulators = self._other_sums()

    def _lane_sums(self) -> dict[Reduce, int]:
        found: dict[Reduce, int] = {}
        size, sharing = 0, Counter(self.plan.sums.values())
        for phase in self.plan.phases:
            for value in phase.steps:
                if not isinstance(value, Reduce) or sharing[self.plan.sums.get(value, -1)] != 1:
                    continue
                if is_alone_sum(value) and size + value.size <= CACHED:
                    found[value] = size
                    size += value.size
        return found

    def _packs(self) -> tuple[dict[Key, Pack], int]:
        found: dict[Key, Pack] = {}
        size = self.plan.uniform
        for value in self.plan.program.values():
            if isinstance(value, Product) and view_key(value.weight) not in found:
                pack = found[view_key(value.weight)] = Pack(value.weight, size)
                size += pack.size
        return found, size

    def _other_sums(self) -> tuple[dict[int, int], int]:
        """Offsets of a part's sums that are not computed apart, by their places in the plan; and their length."""
        found, size = dict[int, int](), 0
        for value, place in self.plan.sums.items():
            if value not in self.gradients.apart and place not in found:
                found[place] = size
                size += value.size
        return found, size

    def sum_at(self, value: Value) -> int:
        """Offset of a sum's accumulators in the first part: after those of gradients that are computed apart."""
        return self.gradients.size + self._sums[self.plan.sums[value]]
