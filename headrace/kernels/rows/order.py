"""The order of a block's steps: the one that needs least memory next, so that tiles stay in the first caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from headrace.kernels.rows.fuse import is_sum
from headrace.kernels.rows.row_program import Value


def in_little_memory(
    values: list[Value], loaded: Callable[[Value], Iterable[Value]], lasting: Collection[Value]
) -> list[Value]:
    """Order the values that are stored or added to in one phase, so that few tiles are needed at a time.

    Among the steps whose operands are there, the one that adds the fewest tiles is next. So a sum over rows comes as
    soon as it can, and one network's gradient before the next network's forward pass. Equals are ordered in one of two
    ways, whichever needs less memory in all: first the step whose operands were there last, or first the step that was
    made first.

    loaded: the values with tiles that a step loads. lasting: those that are read after the phase.
    """
    own = set(values)
    needs = {value: {needed for needed in loaded(value) if needed in own and needed is not value} for value in values}
    orders = [_greedy(values, needs, lasting, latest) for latest in (True, False)]
    return min(orders, key=lambda order: _peak(order, needs, lasting))


def _greedy(
    values: list[Value], needs: dict[Value, set[Value]], lasting: Collection[Value], latest: bool
) -> list[Value]:
    readers = Counter(needed for value in values for needed in needs[value])
    users: dict[Value, list[Value]] = {value: [] for value in values}
    for value in values:
        for needed in needs[value]:
            users[needed].append(value)
    missing = {value: len(needs[value]) for value in values}
    ready = {value: 0 for value in values if not missing[value]}  # since which step
    found: list[Value] = []

    def growth(value: Value) -> tuple[int, int, int]:
        ends = sum(n.size for n in needs[value] if readers[n] == 1 and n not in lasting)
        return (0 if is_sum(value) else value.size) - ends, -ready[value] if latest else 0, value.made

    while ready:
        value = min(ready, key=growth)
        del ready[value]
        found.append(value)
        for needed in needs[value]:
            readers[needed] -= 1
        for user in users[value]:
            missing[user] -= 1
            if not missing[user]:
                ready[user] = len(found)
    return found


def _peak(order: list[Value], needs: dict[Value, set[Value]], lasting: Collection[Value]) -> int:
    """The largest count of tiles that are needed at a time."""
    end = {needed: i for i, value in enumerate(order) for needed in needs[value]}
    live = most = 0
    for i, value in enumerate(order):
        live += 0 if is_sum(value) else value.size
        most = max(most, live)
        live -= sum(n.size for n in needs[value] if end[n] == i and n not in lasting)
    return most
