"""Spaces: the column that holds each, and JSON that gives it back."""

import json

import numpy as np
import pytest
import torch
from gymnasium.spaces import Graph, OneOf, Sequence, Text

from headrace.data.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Tuple,
    action_column,
    from_json,
    observation_column,
    to_json,
)
from headrace.kernels.rows.tracing.inputs import DTYPES

SPACES = [
    Box(-np.inf, np.array([1.0, np.inf], np.float32)),
    Box(0, 255, (84, 84, 3), np.uint8),
    Discrete(5, start=-2),
    MultiDiscrete([3, 4], start=[1, -1]),
    Dict({"position": Box(-1.0, 1.0, (3,)), "inside": Dict({"kind": Discrete(2)})}),
    Tuple([MultiBinary(3), MultiBinary([2, 2]), Box(-(2**63), 2**63 - 1, (2,), np.int64)]),
    Box(-np.inf, np.inf, (2, 2), np.float64),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_json_gives_an_equal_space(space):
    assert from_json(json.loads(json.dumps(to_json(space)))) == space


def test_columns_of_observations():
    vector, image, discrete = (observation_column(space) for space in SPACES[:3])
    assert (vector.shape, vector.dtype, vector.feature_major, vector.bootstrap) == ((2,), torch.float32, True, True)
    assert (image.shape, image.dtype, image.feature_major) == ((84, 84, 3), torch.uint8, False)
    assert (discrete.shape, discrete.dtype) == ((), torch.int32)
    assert observation_column(SPACES[4])["inside"]["kind"].shape == ()
    assert (observation_column(SPACES[5])["1"].shape, observation_column(SPACES[5])["1"].dtype) == ((2, 2), torch.uint8)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_compiled_losses_read_every_column(space):
    columns = [observation_column(space)]
    for column in columns:
        columns += column.values() if isinstance(column, dict) else ()
    assert {column.dtype for column in columns if not isinstance(column, dict)} <= DTYPES.keys()


def test_columns_of_actions():
    assert action_column(Discrete(3)).shape == ()
    assert action_column(MultiDiscrete([2, 3])).dtype == torch.int32
    assert action_column(Box(-1, 1, (2,))).feature_major
    assert action_column(MultiBinary(3)) == action_column(MultiDiscrete([2, 2, 2]))


@pytest.mark.parametrize("make_column", [observation_column, action_column])
def test_other_spaces_are_refused_by_name(make_column):
    with pytest.raises(TypeError, match="Text"):
        make_column(Text(3))


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (Dict({"camera": Tuple([Discrete(2), Text(5)])}), r"^observation\['camera'\]\[1\]: Text.*text has no numbers"),
        (Tuple([Sequence(Discrete(2))]), r"^observation\[0\]: Sequence.*its length differs"),
        (Graph(Box(0, 1, (2,)), None), "Graph.*its size differs"),
        (OneOf([Discrete(2), Discrete(3)]), "OneOf.*which of its spaces"),
        (Discrete(2**40), "its numbers, 0 to 1099511627775, do not fit into 32 bits"),
        (Discrete(2, start=-(2**40)), "its numbers, -1099511627776 to -1099511627775, do not"),
        (MultiDiscrete([2, 2**33]), "8589934591, do not fit into 32 bits"),
        (Box(0, 1, (2, 0)), "it is empty"),
        (Dict({"inside": Dict({})}), r"^observation\['inside'\]: .*it has no members"),
        (Dict({3: Discrete(2)}), r"its keys are not all strings: \[3\]"),
        (Box(0, 255, (4, 8, 8, 3), np.uint8), "stack frames as channels"),
    ],
)
def test_observations_are_refused_by_path_and_reason(space, named):
    with pytest.raises(TypeError, match=named):
        observation_column(space)


def test_a_member_that_may_be_ignored_is_named_by_the_setting():
    text = Dict({"image": Box(0, 1, (2,)), "mission": Dict({"words": Text(5)})})
    with pytest.raises(TypeError, match=r"^observation\['mission'\]\['words'\]: Text.*--ignore mission\)"):
        observation_column(text, ignorable=True)
    for space, ignorable in ((text, False), (Dict({"mission": Text(5)}), True), (Tuple([Discrete(2), Text(5)]), True)):
        with pytest.raises(TypeError, match="numbers that a network could read; use Box"):
            observation_column(space, ignorable=ignorable)


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (Tuple([]), "it has no members"),
        (Box(-1, 1, (2, 0)), "it is empty"),
        (Discrete(2**40), "do not fit into 32 bits"),
    ],
)
def test_actions_are_refused_by_reason(space, named):
    with pytest.raises(TypeError, match=f"^action: .*{named}"):
        action_column(space)


def test_what_cannot_be_json_is_refused():
    with pytest.raises(TypeError, match="Text"):
        to_json(Text(3))
    with pytest.raises(ValueError, match="'Graph'"):
        from_json({"type": "Graph"})
