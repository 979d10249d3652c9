"""Division of phases, so that the weights of each stay in the second cache while all blocks of rows pass.

A block reads all weights of its phase. If they do not fit into the cache, each block reads them from memory or a slower
cache. Networks that give each other few numbers can be computed one after the other, each for all rows: target networks
before critics, one critic before the other. Values that depend on each other in a circle, as the critics and the actor
of an actor's loss, stay together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from headrace.kernels.rows.row_program import Value

WIDE = 64  # numbers of a row from which on values are not handed from one phase to another


def divided(
    values: list[Value],
    reads: Callable[[Value], Iterable[Value]],
    together: Iterable[list[Value]],
    weights: Callable[[Value], dict[object, int]],
    room: int,
) -> list[list[Value]]:
    """Divide a phase's values into groups. Each group comes after the groups that it reads.

    values: in an order in which each comes after those that it reads. together: values of one group. weights: the
    numbers that a value's step reads for each block, by what they are. room: numbers that stay in the cache.
    """
    own = {value: i for i, value in enumerate(values)}
    parts = _Parts(len(values))
    for value, i in own.items():
        for needed in reads(value):
            if needed in own and needed.size >= WIDE:
                parts.unite(i, own[needed])
    for some in together:
        for value in some[1:]:
            parts.unite(own[some[0]], own[value])
    edges: defaultdict[int, set[int]] = defaultdict(set)
    for value, i in own.items():
        edges[parts.of(i)].update(parts.of(own[needed]) for needed in reads(value) if needed in own)
    for circle in _circles(edges):
        for other in circle[1:]:
            parts.unite(circle[0], other)
    return _packed([[values[i] for i in some] for some in _in_order(parts, own, reads)], weights, room)


class _Parts:
    """Numbers in disjoint sets."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def of(self, i: int) -> int:
        """The number that stands for the set of a number: its smallest."""
        while self._parent[i] != i:
            self._parent[i] = i = self._parent[self._parent[i]]
        return i

    def unite(self, one: int, other: int) -> None:
        """Make one set of two."""
        one, other = sorted((self.of(one), self.of(other)))
        self._parent[other] = one


def _circles(edges: dict[int, set[int]]) -> list[list[int]]:
    """The strongly connected components of a graph (Tarjan 1972, SIAM J. Comput. 1(2), 146-160), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    path, on_path, found = list[int](), set[int](), list[list[int]]()
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = len(index)
        path.append(root)
        on_path.add(root)
        while work:
            node, left = work[-1]
            for other in left:
                if other not in index:
                    index[other] = low[other] = len(index)
                    path.append(other)
                    on_path.add(other)
                    work.append((other, iter(sorted(edges.get(other, ())))))
                    break
                if other in on_path:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = path.index(node)
                    found.append(path[at:])
                    on_path.difference_update(path[at:])
                    del path[at:]
    return found


def _in_order(parts: _Parts, own: dict[Value, int], reads: Callable[[Value], Iterable[Value]]) -> list[list[int]]:
    """The sets, each after those that it reads, otherwise by their first number; and their numbers in order."""
    members: defaultdict[int, list[int]] = defaultdict(list)
    needs: defaultdict[int, set[int]] = defaultdict(set)
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for value, i in own.items():
        part = parts.of(i)
        members[part].append(i)
        for other in {parts.of(own[needed]) for needed in reads(value) if needed in own} - {part}:
            needs[part].add(other)
            readers[other].add(part)
    ready = [part for part in sorted(members) if not needs[part]]
    found = []
    while ready:
        part = heappop(ready)
        found.append(members[part])
        for reader in readers[part]:
            needs[reader].discard(part)
            if not needs[reader]:
                heappush(ready, reader)
    return found


def _packed(sets: list[list[Value]], weights: Callable[[Value], dict[object, int]], room: int) -> list[list[Value]]:
    """Neighbouring sets as one group, as long as their weights have room together."""
    groups: list[list[Value]] = []
    held: dict[object, int] = {}
    for some in sets:
        own = {key: size for value in some for key, size in weights(value).items()}
        if groups and (not own or sum((held | own).values()) <= room):
            groups[-1] += some
            held |= own
        else:
            groups.append([*some])
            held = own
    return groups
