"""The sum tree of prioritized replay compiled: see headrace.data.priorities, whose results have the same bits."""

from __future__ import annotations

import numpy as np

from headrace.kernels.runtime.jit import ENTRY, njit

U = np.uint64
_0, _1, _2 = U(0), U(1), U(2)


@njit(**ENTRY)
def descend(depth, count, tree, left, rows):
    """rows[i]: the leaf at which the sum of those before it exceeds left[i]."""
    for i in range(U(count)):
        node, rest = _1, left[i]
        for _ in range(depth):
            node *= _2
            first = tree[node]
            if rest >= first and tree[node + _1] > 0.0:
                rest -= first
                node += _1
        rows[i] = np.int64(node - (_1 << U(depth)))


@njit(**ENTRY)
def add_up(depth, count, tree, rows):
    """The sums above these leaves. The last row below a node finds both of its sums as they are to be."""
    for i in range(U(count)):
        node = U(rows[i]) + (_1 << U(depth))
        for _ in range(depth):
            node >>= _1
            tree[node] = tree[_2 * node] + tree[_2 * node + _1]
