"""Choice of the values that are stored. The others are computed again as part of each value that reads them.

Only a Map with rows may be left out of memory. It is stored if something needs it in memory (a product, a sort), if
computing it for each of its readers would cost more than reading it, if a later phase reads it, or if no strides say
which of its numbers a reader wants.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from headrace.kernels.rows.row_plan import inlined
from headrace.kernels.rows.row_program import (
    EXPENSIVE,
    Constant,
    Input,
    Map,
    Outer,
    Pick,
    Product,
    Program,
    Reduce,
    Sort,
    Value,
    View,
)

LONGEST = 24  # functions of an expression
CHEAP = 3  # functions that are rather computed twice than stored and loaded
GROWN, CHEAP_GROWN = 8, 8  # the same of a value with so many times the numbers of whatever it is computed from


def stored(program: Program) -> set[Value]:
    """The values of a program that are stored, inputs excepted."""
    values = program.values()
    readers: dict[Value, list[tuple[Value | None, View]]] = defaultdict(list)
    for value in values:
        for view in value.operands:
            readers[view.value].append((value, view))
    for output in program.outputs:
        readers[output.view.value].append((None, output.view))
    found: set[Value] = set()
    cost: dict[Value, int] = {}  # functions that computing a Map takes, with those of the unstored ones that it reads
    reads: dict[Value, int] = {}  # the numbers of the largest value in memory that it is computed from
    expensive: set[Value] = set()
    for value in values:
        if isinstance(value, Constant | Input):
            continue
        if not isinstance(value, Map):
            found.add(value)
            continue
        within = [view.value for view in value.operands if view.value in cost and view.value not in found]
        cost[value] = 1 + sum(cost[inner] for inner in within)
        reads[value] = max(reads[x.value] if x.value in within else x.value.size for x in value.operands)
        if value.function in EXPENSIVE or not expensive.isdisjoint(within):
            expensive.add(value)
        cheap = CHEAP_GROWN if value.size >= GROWN * reads[value] else CHEAP
        costly = value in expensive or cost[value] > cheap
        if not value.rows or cost[value] > LONGEST or _needed(value, readers[value], costly):
            found.add(value)
    return found


def _needed(value: Map, readers: list[tuple[Value | None, View]], costly: bool) -> bool:
    """Tell whether readers need a Map in memory, or whether they would compute a costly Map more often than once."""
    if costly and (len(readers) > 1 or any(view.size > value.size for _, view in readers)):
        return True
    if any(view.size >= GROWN * value.size for _, view in readers) and any(x.value.rows for x in value.operands):
        return True
    from_inputs = all(isinstance(view.value, Input | Constant) or not view.value.rows for view in value.operands)
    for reader, view in readers:
        if isinstance(reader, Product | Outer | Sort) or (isinstance(reader, Pick) and view is reader.source):
            return True
        if reader is not None and computed_in(reader) > value.phase and not from_inputs:
            return True
        if any(inlined(view, inner) is None for inner in value.operands):
            return True
    return False


def computed_in(value: Value) -> int:
    """The phase in which a value is computed, or a sum over rows is added to."""
    return value.phase - 1 if is_sum(value) else value.phase


def is_sum(value: Value) -> bool:
    """Tell whether a value is a sum over rows, or their largest or smallest."""
    return isinstance(value, Outer) or (isinstance(value, Reduce) and value.over_rows)


def shared_sums(program: Program) -> dict[Value, list[Value]]:
    """Find sums over rows that are only added to each other. A recurrent network's weights have such a gradient at each
    time step: one accumulator serves all. Returns for each total the sums that it is made of."""
    values = program.values()
    reads = Counter(view.value for value in values for view in value.operands)
    reads.update(output.view.value for output in program.outputs)
    parts = {v: [v] for v in values if is_sum(v) and not (isinstance(v, Reduce) and v.function != "sum")}
    inside: set[Value] = set()
    for value in values:
        if not (isinstance(value, Map) and value.function == "add" and not value.rows):
            continue
        pair = [view.value for view in value.operands]
        if not all(view.whole and view.value in parts and reads[view.value] == 1 for view in value.operands):
            continue
        found = [part for operand in pair for part in parts[operand]]
        if len({(computed_in(part), type(part), part.shape) for part in found}) == 1:
            parts[value] = found
            inside.update(pair)
    return {value: found for value, found in parts.items() if len(found) > 1 and value not in inside}
