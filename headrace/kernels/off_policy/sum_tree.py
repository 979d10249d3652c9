"""The sum tree of prioritized replay compiled: see headrace.data.priorities, whose results have the same bits."""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn.philox import uniforms
from headrace.kernels.runtime.jit import ENTRY, INNER, njit

F, U, D = np.float32, np.uint64, np.float64
_0, _1, _2 = U(0), U(1), U(2)
_SMALLEST = 1e-6  # headrace.data.priorities has it, too
_TINY = D(np.finfo(np.float64).tiny)


@njit(**INNER)
def _leaf(depth, tree, left):
    """Find the leaf at which the cumulative sum exceeds `left`, as a node's number."""
    node = _1
    for _ in range(depth):
        node *= _2
        first = tree[node]
        if left >= first and tree[node + _1] > 0.0:
            left -= first
            node += _1
    return node


@njit(**INNER)
def _ascend(depth, tree, node):
    """Update the sums above a leaf."""
    for _ in range(depth):
        node >>= _1
        tree[node] = tree[_2 * node] + tree[_2 * node + _1]


@njit(**ENTRY)
def descend(depth, count, tree, left, rows):
    """Write rows[i], the leaf at which the cumulative sum exceeds left[i]."""
    for i in range(U(count)):
        rows[i] = np.int64(_leaf(depth, tree, left[i]) - (_1 << U(depth)))


@njit(**ENTRY)
def add_up(depth, count, tree, rows):
    """Update the sums above these leaves. The last row below a node adds up both of its final sums."""
    for i in range(U(count)):
        _ascend(depth, tree, U(rows[i]) + (_1 << U(depth)))


@njit(**INNER)
def append_row(ring, n):
    """Update priorities after environment n has appended a row: from the row that can be drawn now to the one that was
    overwritten. See PrioritizedReplay._write."""
    p, written = ring.priorities, ring.written[n]
    first = written - np.int64(p.ahead)
    for time in range(max(first, 0), written + 1):
        row = U(time) % ring.length * ring.envs + n
        node = row + (_1 << p.depth)
        p.tree[node] = p.highest[0] if time == first and ring.valid[row] else 0.0
        _ascend(p.depth, p.tree, node)


@njit(**INNER)
def draw_rows(ring, batch, purpose, step, g):
    """The rows of minibatch g, and their weights: see PrioritizedReplay.draw and gather."""
    p, rows = ring.priorities, batch.rows
    lowest, leaves = D(np.inf), _1 << p.depth
    for j in range(_0, rows):
        draw = uniforms(batch.seed, purpose, step, j, _0)[0]
        node = _leaf(p.depth, p.tree, (D(j) + D(draw)) / D(rows) * p.tree[1])
        p.rows[g * rows + j] = np.int64(node - leaves)
        lowest = min(lowest, max(p.tree[node], _TINY))
    for j in range(_0, rows):
        row = U(p.rows[g * rows + j])
        weight = F((lowest / max(p.tree[row + leaves], _TINY)) ** D(p.beta[0]))
        batch.weight[g * batch.room + j] = F(ring.valid[row]) * weight


@njit(**INNER)
def set_from_errors(ring, batch, error):
    """Priorities of the rows of all minibatches from their errors, [G, room]: see PrioritizedReplay.update."""
    p, rows, leaves = ring.priorities, batch.rows, _1 << ring.priorities.depth
    count, highest = batch.steps * rows, p.highest[0]
    for i in range(_0, count):
        found = (D(abs(error[i // rows * batch.room + i % rows])) + _SMALLEST) ** p.alpha
        highest = max(highest, found)
        p.found[i] = found if p.tree[U(p.rows[i]) + leaves] > 0.0 else 0.0
    p.highest[0] = highest
    for i in range(_0, count):
        p.tree[U(p.rows[i]) + leaves] = 0.0
    for i in range(_0, count):
        node = U(p.rows[i]) + leaves
        p.tree[node] = max(p.tree[node], p.found[i])
    for i in range(_0, count):
        _ascend(p.depth, p.tree, U(p.rows[i]) + leaves)
