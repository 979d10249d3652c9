"""Order of steps, and memory: when each tile is in use, and which tiles a later phase reads."""

from __future__ import annotations

import math
from collections.abc import Iterable

from headrace.kernels.rows.fuse import computed_in, is_sum, shared_sums, stored
from headrace.kernels.rows.order import in_little_memory
from headrace.kernels.rows.residence import divided
from headrace.kernels.rows.row_plan import (
    ALONE,
    HALF,
    MEMORY,
    PIECE,
    Packed,
    Phase,
    Place,
    Plan,
    Transposed,
    accumulators,
    on_tiles,
    outer_form,
    packed_words,
    padded,
)
from headrace.kernels.rows.row_program import Input, Join, Map, Outer, Product, Program, Reduce, Value, View


def plan(program: Program, vectors: bool = True, by_weights: bool = False, split: bool = False, block: int = 0) -> Plan:
    """Plan a program's steps and memory.

    vectors: sums over rows are taken along vectors of numbers, as on the CPU: each has a vector of accumulators, or a
    factor that is transposed. by_weights: sums with a transposed factor are taken after each phase. split: products
    that gain time by it are computed on the processor's tiles, with numbers split into bfloat16. block: rows of a
    block, see block_for(); 0 where rows_of_block() chooses.
    """
    found = _Planner(program, vectors, by_weights, split and block != ALONE, block == ALONE).plan()
    found.block = 0 if block == HALF and found.accumulators else block
    return found


class _Planner:
    """State of planning one program."""

    def __init__(self, program: Program, vectors: bool, by_weights: bool, split: bool, alone: bool) -> None:
        self.program, self.stored, self.vectors, self.by_weights = program, stored(program), vectors, by_weights
        self.split, self.alone = split, alone
        self.totals = shared_sums(program)
        self.together = {part: parts for parts in self.totals.values() for part in parts}
        self.transposed: dict[Value, Transposed] = {}
        self.packed: dict[Value, Packed] = {}
        self.places: dict[Value, Place] = {}
        self.phases: list[Phase] = []
        self.phase_of: dict[Value, int] = {}  # of values with rows and of sums over rows

    def plan(self) -> Plan:
        """The plan."""
        self._order()
        self._pack_weights()
        factors = self._take_gradients()
        uniform = self._place_uniforms()
        sums, size = dict[Value, int](), 0
        for outers in (outers for phase in self.phases for outers in phase.gradients):
            sums |= dict.fromkeys(outers, uniform)
            uniform += accumulators(outers[0])
        for phase in self.phases:
            for value in filter(is_sum, phase.steps):
                if value not in sums:
                    sums |= dict.fromkeys(self.together.get(value, [value]), size)
                    size += accumulators(value) if self.vectors else value.size
        tiles, kept = self._place_tiles(factors)
        turned, packed = self.transposed, self.packed
        return Plan(self.program, self.phases, self.places, sums, turned, packed, tiles, kept, uniform, size)

    def _order(self) -> None:
        """Put each stored value into the phase that computes it, with the columns that this phase reads."""
        values = [value for value in self.program.values() if value in self.stored]
        last = max((value.phase for value in values), default=0)
        steps: list[list[Value]] = [[] for _ in range(last + 1)]
        before: list[list[Value]] = [[] for _ in steps]
        within = self._within_totals()
        for value in values:
            if value.rows or is_sum(value):
                steps[computed_in(value)].append(value)
            elif value not in self.totals and value not in within:
                before[value.phase].append(value)
        first: list[int] = []  # the phase in which values of each phase of the program can be computed
        for uniform, own in zip(before, map(self._divided, steps), strict=True):
            first.append(len(self.phases))
            self.phases += [Phase() for _ in own]
            self.phases[first[-1]].before += uniform
            self.phase_of |= {value: first[-1] + i for i, group in enumerate(own) for value in group}
            for phase, group in zip(self.phases[first[-1] :], own, strict=True):
                self._order_steps(phase, in_little_memory(group, self._reads, self._lasting(group)))
        for position, output in enumerate(self.program.outputs):
            value = output.view.value
            if value.rows:
                needed = self.loaded(value)
                phase = self.phases[max([first[value.phase], *(self.phase_of.get(x, 0) for x in needed)])]
                for x in needed:
                    self._gather_one(phase, x)
                phase.stores.append(position)

    def _divided(self, values: list[Value]) -> list[list[Value]]:
        """The steps of a phase in groups, where there are more weights on tiles than stay in the second cache."""
        if not self.split or not any(map(is_sum, values)):
            return [values]
        parts = [some for some in self.totals.values() if some[0] in values]
        return divided(values, self._reads, parts, self._weights, MEMORY // 4)

    def _weights(self, value: Value) -> dict[object, int]:
        """Count the numbers besides its rows that a step reads for each block, by packed weights and by sums."""
        if isinstance(value, Product) and on_tiles(value):
            return {_key(value.weight): packed_words(value.weight.size)}
        return {id(value): accumulators(value)} if isinstance(value, Outer) and not self.by_weights else {}

    def _pack_weights(self) -> None:
        """Pack the weights that products read in another order, once, before the first phase that reads them."""
        known: dict[object, Packed] = {}
        first: dict[Packed, int] = {}
        for value in self.program.values():
            if not (isinstance(value, Product) and self._is_packed(value)):
                continue
            source = value.weight
            words = source.shape[1] * padded(source.shape[0]) if self.alone else packed_words(source.size)
            packed = known.setdefault(_key(source), Packed((words,), False, source=source))
            first[packed] = min(first.get(packed, len(self.phases)), self.phase_of[value])
            self.packed[value] = packed
        for packed, phase in first.items():
            self.phases[phase].packed.append(packed)

    def _is_packed(self, value: Product) -> bool:
        return value.weight.strides[0] != 1 if self.alone else self.split and on_tiles(value)

    def _take_gradients(self) -> set[Value]:
        """Take gradients that are summed by weights out of their phases. Returns their factors with rows."""
        factors = set[Value]()
        for phase in self.phases if self.by_weights else ():
            found: dict[int, list[Value]] = {}
            for value in filter(self._is_gradient, phase.steps):
                factors |= self._reads(value)
                found.setdefault(id(self.together.get(value, value)), []).append(value)
            phase.gradients = [*found.values()]
            phase.steps = [value for value in phase.steps if not self._is_gradient(value)]
        return factors

    def _is_gradient(self, value: Value) -> bool:
        """Tell whether a sum is taken by weights: its factors have tiles, and it has enough numbers."""
        if not is_sum(value) or (isinstance(value, Reduce) and value.function != "sum"):
            return False
        in_tiles = all(isinstance(x.value, Input) or x.value in self.stored for x in value.operands)
        return value in self.transposed or (in_tiles and value.size >= PIECE)

    def _within_totals(self) -> set[Value]:
        """Values between a total and the sums that it is made of."""
        found: set[Value] = set()
        for total, parts in self.totals.items():
            waiting = [view.value for view in total.operands]
            while waiting:
                value = waiting.pop()
                if value not in parts:
                    found.add(value)
                    waiting += [view.value for view in value.operands]
        return found

    def _order_steps(self, phase: Phase, values: list[Value]) -> None:
        """Put steps into a phase, each after the columns that it reads and after their transposed copies."""
        turned: dict[object, Transposed] = {}
        for value in values:
            self._gather(phase, value)
            if self.vectors and isinstance(value, Outer) and outer_form(value) != "dots":
                source = value.right if outer_form(value) == "right" else value.left
                packed = self.split and on_tiles(value)
                key = packed, _key(source)
                if key not in turned:
                    shape = (packed_words(source.size),) if packed else (*source.shape[:-1], padded(source.shape[-1]))
                    turned[key] = Transposed(shape, True, source=source, packed=packed)
                    phase.steps.append(turned[key])
                self.transposed[value] = turned[key]
            phase.steps.append(value)

    def _lasting(self, values: list[Value]) -> set[Value]:
        """Values of a phase that are read after its steps: by outputs, or in a later phase."""
        own = set(values)
        found = {value for output in self.program.outputs for value in self.loaded(output.view.value)} & own
        for value in self.stored - own:
            found |= own.intersection(*[self._reads(value)])
        return found

    def _gather(self, phase: Phase, value: Value) -> None:
        for view in value.operands:
            for needed in self.loaded(view.value):
                self._gather_one(phase, needed)

    def _gather_one(self, phase: Phase, value: Value) -> None:
        if isinstance(value, Input) and value.rows and value not in phase.steps:
            phase.steps.append(value)

    def loaded(self, value: Value) -> set[Value]:
        """The stored values and inputs that reading a value loads."""
        if value in self.stored or not isinstance(value, Map):
            return {value}
        found: set[Value] = set()
        for view in value.operands:
            found |= self.loaded(view.value)
        return found

    def _place_uniforms(self) -> int:
        """Give uniform values memory: an output's own where that is all of it, else the call's."""
        for position, given in enumerate(self.program.uniforms):
            self.places[given] = Place("given", position)
        for position, output in enumerate(self.program.outputs):
            value = output.view.value
            if value in self.stored and not value.rows and output.view.whole and value not in self.places:
                self.places[value] = Place("result", position)
        size, hidden = 0, self._within_totals() | self.together.keys()
        for value in self.program.values():
            if value.rows or value in self.places or value not in self.stored or value in hidden:
                continue
            self.places[value] = Place("uniform", size)
            size += padded(value.size)
        for packed in dict.fromkeys(self.packed.values()):
            self.places[packed] = Place("uniform", size)
            size += packed.size
        for total, parts in self.totals.items():
            self.places[parts[0]] = self.places[total]
        return size

    def _place_tiles(self, factors: set[Value]) -> tuple[int, int]:
        """Give values with rows tiles; the counts of a thread's and of a block's. factors: read after their phase."""
        written: dict[Value, int] = {}
        read: dict[Value, int] = {}  # the last phase that does
        for number, phase in enumerate(self.phases):
            for value in phase.steps:
                if value in factors or not (is_sum(value) or isinstance(value, Input)):
                    written.setdefault(value, number)
                for needed in self._reads(value):
                    read[needed] = number
            for position in phase.stores:
                for needed in self.loaded(self.program.outputs[position].view.value):
                    read[needed] = number
        kept = 0
        for value, number in written.items():
            if value in factors or read.get(value, number) != number:
                self.places[value] = Place("kept", kept)
                kept += value.size
        pool = _Pool()
        for phase in self.phases:
            self._place_phase(phase, pool)
        return pool.top, kept

    def _place_phase(self, phase: Phase, pool: _Pool) -> None:
        """A column has the same tiles in all phases: they are free in none of them."""
        within = _within_joins([value for value in phase.steps if value not in self.places])
        joined = {join for join, _ in within.values()}

        def whole(value: Value) -> Value:
            return whole(within[value][0]) if value in within else value

        end: dict[Value, int] = {}
        for i, value in enumerate(phase.steps):
            for needed in (value, *self._reads(value)):
                end[whole(needed)] = i
        for position in phase.stores:
            for needed in self.loaded(self.program.outputs[position].view.value):
                end[whole(needed)] = len(phase.steps)
        live: list[Value] = []
        for i, value in enumerate(phase.steps):
            if value in self.places or is_sum(value):
                continue
            for other in [other for other in live if end[other] < i]:
                live.remove(other)
                pool.give_back(self.places[other].offset, other.size)
            if value not in within and value not in joined:
                ending = (other for other in live if end[other] == i)
                same = next((other for other in ending if self._in_place(value, other)), None)
                if same is not None:
                    self.places[value] = self.places[same]
                    live[live.index(same)] = value
                    continue
            self._place_tile(value, within, pool, live)
        for other in live:
            pool.give_back(self.places[other].offset, other.size)

    def _place_tile(self, value: Value, within: dict[Value, tuple[Value, int]], pool: _Pool, live: list[Value]) -> None:
        """Give a value its tiles: those of a Join's part, or of its own."""
        if value in within:
            join, offset = within[value]
            if join not in self.places:
                self._place_tile(join, within, pool, live)
            self.places[value] = Place("tile", self.places[join].offset + offset)
            return
        self.places[value] = Place("tile", pool.take(value.size))
        if not isinstance(value, Input):
            live.append(value)

    def _reads(self, value: Value) -> set[Value]:
        """The values with tiles that a step loads."""
        found: set[Value] = set()
        operands: Iterable[View] = value.operands
        if value in self.transposed:
            found.add(self.transposed[value])
            form = outer_form(value)  # type: ignore[arg-type]
            operands = [value.left if form == "right" else value.right]  # type: ignore[attr-defined]
        for view in operands:
            found |= self.loaded(view.value)
        return {needed for needed in found if needed.rows}

    def _in_place(self, value: Value, other: Value) -> bool:
        """Tell whether a Map may overwrite a value that it reads: number by number, and not afterwards."""
        return isinstance(value, Map) and other.size == value.size and self._by_number(value, other)

    def _by_number(self, value: Value, other: Value) -> bool:
        for view in value.operands:
            if other in self.loaded(view.value):
                if not view.whole or view.value.size != value.size:
                    return False
                if view.value is not other and not self._by_number(view.value, other):
                    return False
        return True


def _key(view: View) -> object:
    """Key that is equal for views of the same numbers."""
    return id(view.value), view.shape, view.strides, view.offset


def _within_joins(steps: list[Value]) -> dict[Value, tuple[Value, int]]:
    """Find values that a Join need not copy, because they can be computed in its memory. Gives the Join, and the number
    of tiles from its first to the value's."""
    own = {value for value in steps if not (isinstance(value, Input | Transposed) or is_sum(value))}
    found: dict[Value, tuple[Value, int]] = {}
    for join in reversed(steps):
        if not isinstance(join, Join) or math.prod(join.shape[: join.axis]) > 1:
            continue
        at = 0
        for part in join.parts:
            if part.value in own and part.value not in found and part.whole:
                found[part.value] = join, at
            at += part.size
    return found


class _Pool:
    """Memory that is given out and taken back, in tiles."""

    def __init__(self) -> None:
        self.top = 0
        self._free: list[tuple[int, int]] = []  # where, how many; in order

    def take(self, count: int) -> int:
        """Take `count` adjacent tiles and return the first: from the smallest gap with room, else after all others."""
        gaps = [gap for gap in self._free if gap[1] >= count]
        if not gaps:
            at, self.top = self.top, self.top + count
            return at
        at, size = min(gaps, key=lambda gap: (gap[1], gap[0]))
        self._free.remove((at, size))
        if size > count:
            self._insert(at + count, size - count)
        return at

    def give_back(self, at: int, count: int) -> None:
        """Free these tiles."""
        self._insert(at, count)

    def _insert(self, at: int, count: int) -> None:
        gaps = sorted([*self._free, (at, count)])
        self._free = [gaps[0]]
        for gap in gaps[1:]:
            begin, size = self._free[-1]
            if begin + size == gap[0]:
                self._free[-1] = (begin, size + gap[1])
            else:
                self._free.append(gap)
