"""Spaces: the column that holds each, and JSON that gives it back."""

import json

import numpy as np
import pytest
import torch
from gymnasium.spaces import Text

from headrace.spaces import Box, Dict, Discrete, MultiDiscrete, action_column, from_json, observation_column, to_json

SPACES = [
    Box(-np.inf, np.array([1.0, np.inf], np.float32)),
    Box(0, 255, (84, 84, 3), np.uint8),
    Discrete(5, start=-2),
    MultiDiscrete([3, 4], start=[1, -1]),
    Dict({"position": Box(-1.0, 1.0, (3,)), "inside": Dict({"kind": Discrete(2)})}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_json_gives_an_equal_space(space):
    assert from_json(json.loads(json.dumps(to_json(space)))) == space


def test_columns_of_observations():
    vector, image, discrete = (observation_column(space) for space in SPACES[:3])
    assert (vector.shape, vector.dtype, vector.feature_major, vector.edge) == ((2,), torch.float32, True, True)
    assert (image.shape, image.dtype, image.feature_major) == ((84, 84, 3), torch.uint8, False)
    assert (discrete.shape, discrete.dtype) == ((), torch.int32)
    assert observation_column(SPACES[4])["inside"]["kind"].shape == ()


def test_columns_of_actions():
    assert action_column(Discrete(3)).shape == ()
    assert action_column(MultiDiscrete([2, 3])).dtype == torch.int32
    assert action_column(Box(-1, 1, (2,))).feature_major


@pytest.mark.parametrize("make_column", [observation_column, action_column])
def test_other_spaces_are_refused_by_name(make_column):
    with pytest.raises(TypeError, match="Text"):
        make_column(Text(3))


def test_what_cannot_be_json_is_refused():
    with pytest.raises(TypeError, match="Text"):
        to_json(Text(3))
    with pytest.raises(ValueError, match="'Graph'"):
        from_json({"type": "Graph"})
