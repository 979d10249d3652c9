"""Sums over rows that are only added to each other: one accumulator for all, such as those of a recurrent network's
weights, of which each time step has a gradient."""

from __future__ import annotations

from collections import Counter

from headrace.kernels.rows.fuse import computed_in, is_sum
from headrace.kernels.rows.ir import Map, Program, Value


def shared_sums(program: Program) -> dict[Value, list[Value]]:
    """For each such total: the sums of which it is made. Each is read by nothing else, and all are of one phase."""
    values = program.values()
    reads = Counter(view.value for value in values for view in value.operands)
    reads.update(output.view.value for output in program.outputs)
    parts: dict[Value, list[Value]] = {value: [value] for value in values if is_sum(value)}
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
