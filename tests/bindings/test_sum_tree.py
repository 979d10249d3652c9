"""The sum tree by the CPU's kernels: the same rows and the same bits as by torch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.fused import kernel_of
from headrace.data.priorities import add_up, descend


def tree_of(depth, seed):
    """A tree of that many levels. Some leaves are 0."""
    generator = torch.Generator().manual_seed(seed)
    tree = torch.zeros(2 << depth, dtype=torch.float64)
    leaves = torch.rand(1 << depth, generator=generator, dtype=torch.float64) ** 6
    tree[1 << depth :] = leaves * (torch.rand(1 << depth, generator=generator) > 0.3)
    add_up.plain(tree, depth, torch.arange(1 << depth))
    return tree


@given(depth=st.integers(0, 9), seed=st.integers(0, 1000), count=st.integers(0, 200))
def test_rows_are_the_same(depth, seed, count):
    tree = tree_of(depth, seed)
    left = torch.rand(2, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * tree[1]
    left[:, :1], left[:, -1:] = 0.0, tree[1]  # the ends, which rounding may reach
    assert kernel_of(descend, tree, depth, left) is not None
    assert torch.equal(descend(tree, depth, left), descend.plain(tree, depth, left))
    assert torch.equal(descend(tree, depth, left.t()), descend.plain(tree, depth, left.t()))


@given(depth=st.integers(0, 9), seed=st.integers(0, 1000), count=st.integers(0, 200))
def test_sums_have_the_same_bits(depth, seed, count):
    """Rows may occur more than once."""
    tree = tree_of(depth, seed)
    rows = torch.randint(1 << depth, (count,), generator=torch.Generator().manual_seed(seed))
    tree[rows + (1 << depth)] = torch.rand(count, dtype=torch.float64)
    other = tree.clone()
    assert kernel_of(add_up, tree, depth, rows) is not None
    add_up(tree, depth, rows)
    add_up.plain(other, depth, rows)
    assert torch.equal(tree, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda tree, rows: (tree.float(), 3, rows),
        lambda tree, rows: (tree[:-1], 3, rows),
        lambda tree, rows: (tree, 4, rows),
        lambda tree, rows: (tree, 3, rows.int()),
        lambda tree, rows: (tree, 3, rows + 6),
        lambda tree, rows: (tree, 3, rows - 3),
    ],
)
def test_rows_beyond_the_tree_are_not_served(change):
    tree, rows = tree_of(3, 0), torch.tensor([2, 7])
    assert kernel_of(add_up, tree, 3, rows) is not None
    assert kernel_of(add_up, *change(tree, rows)) is None


def test_what_is_left_in_float32_is_not_served():
    assert kernel_of(descend, tree_of(3, 0), 3, torch.rand(4)) is None
