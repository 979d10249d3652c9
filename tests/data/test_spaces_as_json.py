"""Spaces of every kind come back from JSON with all that they had: dtypes, bounds, starts, shapes, order of members."""

import json
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import headrace as hr
from headrace.data.flat_dict import FlatDict
from headrace.data.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, alike, from_json, to_json
from headrace.policies.base import Policy

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, max_side=3)


@st.composite
def boxes(draw):
    dtype = np.dtype(draw(st.sampled_from([*INTEGERS, "bool", "float16", "float32", "float64", "longdouble", ">f4"])))
    shape = draw(SHAPES)
    numbers = {} if dtype.kind in "iub" else {"allow_nan": False}
    name = dtype.newbyteorder("=") if dtype != np.longdouble else np.dtype("float64")
    sides = [draw(arrays.arrays(name, shape, elements=numbers or None)).astype(dtype) for _ in range(2)]
    low, high = np.minimum(*sides), np.maximum(*sides)
    if dtype.kind == "f":
        low, high = np.where(low == np.inf, dtype.type(0), low), np.where(high == -np.inf, dtype.type(0), high)
        low, high = np.minimum(low, high).astype(dtype), np.maximum(low, high).astype(dtype)
    if dtype == np.longdouble:
        low = low / 3  # with digits that float64 has not
        low = np.minimum(low, high)
    if (
        dtype.kind == "i" and dtype.itemsize <= 4 and draw(st.booleans())
    ):  # open to one side or both, each entry by itself
        open_below, open_above = (draw(arrays.arrays(bool, shape)) for _ in range(2))
        low, high = np.where(open_below, -np.inf, low), np.where(open_above, np.inf, high)
    return Box(np.asarray(low), np.asarray(high), dtype=dtype)


@st.composite
def whole_numbers(draw):
    dtype = np.dtype(draw(st.sampled_from([name for name in INTEGERS if name not in ("uint64",)]))).type
    kind = draw(st.sampled_from([Discrete, MultiDiscrete, MultiBinary]))
    start = st.integers(0 if dtype(0).dtype.kind == "u" else -9, 9)
    if kind is Discrete:
        return Discrete(draw(st.integers(1, 99)), start=draw(start), dtype=dtype)
    shape = draw(arrays.array_shapes(max_dims=3, max_side=3))
    if kind is MultiBinary:
        return MultiBinary(draw(st.sampled_from([shape[0], list(shape)])))
    sizes, starts = (draw(arrays.arrays(np.int64, shape, elements=x)) for x in (st.integers(1, 99), start))
    return MultiDiscrete(sizes, dtype=dtype, start=starts)


def nested(inside):
    members = st.dictionaries(st.text(min_size=1, max_size=5), inside, min_size=1, max_size=3)
    dicts = members.flatmap(lambda found: st.permutations(list(found.items()))).map(
        lambda found: Dict(OrderedDict(found))
    )
    return dicts | st.lists(inside, min_size=1, max_size=3).map(Tuple)


SPACES = st.recursive(boxes() | whole_numbers(), nested, max_leaves=5)


def same(one, other):
    """Equality that looks at all there is: Gymnasium's takes bounds that are close, and Dicts in any order."""
    assert type(one) is type(other) and one.shape == other.shape and one.dtype == other.dtype
    if isinstance(one, Dict):
        assert list(one.spaces) == list(other.spaces)
        return all(same(member, other[name]) for name, member in one.spaces.items())
    if isinstance(one, FlatDict):
        assert list(one.members) == list(other.members) and one.slices == other.slices
        return all(same(member, other.members[name]) for name, member in one.members.items())
    if isinstance(one, Tuple):
        return len(one) == len(other) and all(map(same, one, other))
    names = ("low", "high", "bounded_below", "bounded_above") if isinstance(one, Box) else ("n", "nvec", "start")
    for name in names:
        mine, its = getattr(one, name, None), getattr(other, name, None)
        assert np.array_equal(mine, its) and np.asarray(mine).dtype == np.asarray(its).dtype, name
        assert (
            np.array_equal(np.signbit(mine), np.signbit(its))
            if name in ("low", "high") and one.dtype.kind == "f"
            else True
        )
    return one == other


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SPACES)
def test_a_space_is_the_same_after_json(space):
    written = json.dumps(to_json(space), allow_nan=False)
    again = from_json(json.loads(written))
    assert same(space, again) and alike(space, again)
    assert json.dumps(to_json(again)) == written


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from("xyz") | st.just("action_mask"), boxes(), min_size=1))
def test_so_is_a_vector_of_members(members):
    space = FlatDict(members)
    assert same(space, from_json(json.loads(json.dumps(to_json(space)))))


def test_a_dtype_that_is_the_default_is_not_written():
    for space in (Discrete(3), MultiDiscrete([2, 3]), MultiBinary(2)):
        assert "dtype" not in to_json(space)


def test_keys_that_json_would_change_are_refused():
    with pytest.raises(TypeError, match="its keys are not all strings"):
        to_json(Dict({1: Discrete(2)}))


ACTIONS = [
    Discrete(3, dtype=np.int32),
    Discrete(2, start=4, dtype=np.int16),
    MultiDiscrete([3, 2], dtype=np.uint8),
    MultiBinary(2),
    Box(-1, 1, (2,), np.float16),
    Box(-1, 1, (2,), np.float64),
    Box(-3, 3, (2,), np.int32),
    Box(0, 1, (2,), bool),
]


@pytest.mark.parametrize("action", ACTIONS, ids=repr)
def test_a_policy_from_its_config_gives_actions_of_its_space(action):
    observation = Dict(OrderedDict(z=Box(-1, 1, (2,), np.float64), a=Discrete(4, dtype=np.int8)))
    policy = hr.ActorCritic(observation, action, hidden=(4,))
    again = type(policy).from_config(json.loads(json.dumps(policy.config())))
    again.load_state_dict(policy.state_dict())
    seen = {"z": np.array([0.5, -2]), "a": np.int8(3)}
    for loaded in (policy, again):
        for deterministic in (True, False):
            found = loaded.predict(seen, deterministic=deterministic)[0]
            assert action.contains(found) and found.dtype == action.dtype
    assert isinstance(again, Policy) and list(again.observation_space.spaces) == ["z", "a"]
    np.testing.assert_array_equal(policy.predict(seen)[0], again.predict(seen)[0])


def test_spaces_that_differ_in_the_dtype_of_whole_numbers_look_alike_to_a_policy():
    assert alike(Discrete(3), Discrete(3, dtype=np.int32)) and not alike(Discrete(3), Discrete(3, start=1))
    assert alike(MultiDiscrete([2, 3], dtype=np.uint8), MultiDiscrete([2, 3]))
    assert not alike(MultiDiscrete([[2, 3]]), MultiDiscrete([2, 3])) and not alike(MultiBinary(2), MultiBinary([2, 1]))
    assert not alike(Discrete(2), MultiDiscrete([2]))
