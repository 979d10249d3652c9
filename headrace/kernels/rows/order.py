"""The order of a block's steps: the one that needs least memory next, so that tiles stay in the first caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from headrace.kernels.rows.fuse import is_sum
from headrace.kernels.rows.ir import Value


def in_little_memory(
    values: list[Value], loaded: Callable[[Value], Iterable[Value]], lasting: Collection[Value]
) -> list[Value]:
    """Values that are stored or added to, in one phase, so that few tiles are needed at a time.

    Of the steps whose operands are there, the one that adds the fewest tiles is next: a sum over rows as soon as it can
    be, one network's gradient before the next network's forward pass. Among equals, the one made first.

    loaded: the values with tiles that a step loads. lasting: those that are read after the phase.
    """
    own = set(values)
    needs = {value: {needed for needed in loaded(value) if needed in own and needed is not value} for value in values}
    readers = Counter(needed for value in values for needed in needs[value])
    users: dict[Value, list[Value]] = {value: [] for value in values}
    for value in values:
        for needed in needs[value]:
            users[needed].append(value)
    missing = {value: len(needs[value]) for value in values}
    ready = [value for value in values if not missing[value]]
    found: list[Value] = []

    def growth(value: Value) -> tuple[int, int]:
        ends = sum(n.size for n in needs[value] if readers[n] == 1 and n not in lasting)
        return (0 if is_sum(value) else value.size) - ends, value.made

    while ready:
        value = min(ready, key=growth)
        ready.remove(value)
        found.append(value)
        for needed in needs[value]:
            readers[needed] -= 1
        for user in users[value]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return found
