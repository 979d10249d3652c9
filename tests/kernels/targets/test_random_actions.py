"""Random actions: in the space, evenly spread, counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.data.spaces import Box, Dict, Discrete, MultiDiscrete, action_column
from headrace.kernels.targets.random_actions import bounds, random_actions

SPACES = [Discrete(5), Discrete(3, start=-1), MultiDiscrete([3, 2], start=[0, 4]), Box(-2, 4, (3,)), Box(-1, 1, (1,))]


@pytest.mark.parametrize("space", SPACES)
def test_they_fill_the_space(space):
    drawn = random_actions(space, 3, 0, 40, 50, "cpu")
    column = action_column(space)
    assert drawn.shape == (40, 50, *column.shape) and drawn.dtype == column.dtype
    assert all(space.contains(action.numpy().astype(space.dtype)[()]) for action in drawn.flatten(0, 1)[:200])
    low, high = bounds(space)
    rows = drawn.reshape(2000, -1).double()
    middle = (low + high - (0 if isinstance(space, Box) else 1)) / 2
    assert (rows.mean(0) - torch.from_numpy(middle)).abs().max() < 0.06 * float((high - low).max())
    if not isinstance(space, Box):
        for k, column_of in enumerate(rows.t()):
            assert len(column_of.unique()) == high[k] - low[k]


def test_they_are_counted():
    whole = random_actions(Discrete(9), 1, 10, 8, 20, "cpu")
    assert torch.equal(whole[3:5, :7], random_actions(Discrete(9), 1, 13, 2, 7, "cpu"))
    assert not torch.equal(whole, random_actions(Discrete(9), 2, 10, 8, 20, "cpu"))


def test_without_bounds_they_lie_around_zero():
    drawn = random_actions(Box(-np.inf, np.inf, (2,)), 0, 0, 10, 100, "cpu")
    assert drawn.min() >= -1 and drawn.max() < 1 and drawn.min() < -0.9 and drawn.max() > 0.9


def test_other_spaces_are_refused():
    with pytest.raises(TypeError, match="no random actions of Dict"):
        random_actions(Dict({"a": Discrete(2)}), 0, 0, 1, 1, "cpu")
