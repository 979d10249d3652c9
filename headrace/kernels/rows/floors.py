"""Products that only a relu reads. They are cut off at zero when they are stored, which saves a pass over their
tiles."""

from __future__ import annotations

from collections import Counter

from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import Constant, Join, Map, Product, Value


def floors(plan: Plan) -> tuple[set[Value], set[Value]]:
    """Find the products that are cut off at zero, and the Maps that have nothing left to do."""
    values = plan.program.values()
    reads = Counter(view.value for value in values for view in value.operands)
    reads.update(output.view.value for output in plan.program.outputs)
    products, done = set[Value](), set[Value]()
    for value in values:
        source = _source(value)
        if source is None or reads[source] > 1 or plan.places.get(source) != plan.places.get(value):
            continue
        parts = [source] if isinstance(source, Product) else _parts(plan, source)
        if value in plan.places and parts and all(isinstance(p, Product) and reads[p] == 1 for p in parts):
            products.update(parts)
            done.add(value)
    return products, done


def _source(value: Value) -> Value | None:
    """Operand of a relu. None where the value is no relu."""
    if not (isinstance(value, Map) and value.function == "maximum" and value.rows):
        return None
    for view, other in (value.arguments, value.arguments[::-1]):
        number = other.value
        if isinstance(number, Constant) and number.numbers == (0.0,) and view.whole and view.size == value.size:
            return view.value
    return None


def _parts(plan: Plan, join: Value) -> list[Value]:
    """The parts of a Join, if all were computed where it has them."""
    if not isinstance(join, Join) or join.axis > 0:
        return []
    at, place, found = 0, plan.places[join], list[Value]()
    for part in join.parts:
        own = plan.places.get(part.value)
        if own is None or not part.whole or (own.space, own.offset) != (place.space, place.offset + at):
            return []
        found.append(part.value)
        at += part.size
    return found
