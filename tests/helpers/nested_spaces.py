"""Spaces of every supported kind, drawn at random, for property tests."""

import math

import numpy as np
from hypothesis import strategies as st

from headrace.data.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, is_image

FLOATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64)
shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
grids = shapes.filter(len)


def bounds(dtype):
    """Whole numbers that float32 and the dtype hold exactly."""
    limit = np.iinfo(dtype) if dtype in INTEGERS else np.iinfo(np.int8)
    least, most = max(int(limit.min), -(2**24)), min(int(limit.max), 2**24)
    return st.tuples(st.integers(least, most), st.integers(least, most)).map(sorted)


@st.composite
def boxes(draw, shape=shapes):
    dtype = draw(st.sampled_from(FLOATS + INTEGERS))
    low, high = draw(bounds(dtype))
    return Box(low, high, draw(shape), dtype)


numbers = boxes().filter(lambda space: not is_image(space))
images = st.builds(lambda shape: Box(0, 255, shape, np.uint8), st.sampled_from([(4, 6), (4, 6, 3), (1, 5, 6)]))
discrete = st.builds(Discrete, st.integers(1, 9), start=st.integers(-5, 5))


@st.composite
def multi_discrete(draw, shape=grids):
    numbers = draw(shape)
    count = math.prod(numbers)
    sizes = np.array(draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))).reshape(numbers)
    return MultiDiscrete(sizes, start=sizes - draw(st.integers(0, 9)))


multi_binary = st.builds(MultiBinary, st.one_of(st.integers(1, 5), grids.map(list)))
simple = st.one_of(numbers, images, discrete, multi_discrete(), multi_binary)
observation_spaces = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["camera", "body", "a.b", "0", "self"]), inner, min_size=1).map(Dict),
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
    ),
    max_leaves=6,
)
vectors = st.integers(1, 4).map(lambda size: (size,))
action_spaces = st.one_of(
    boxes(vectors).filter(lambda space: (space.low < space.high).all()),
    discrete,
    multi_discrete(vectors),
    st.builds(MultiBinary, st.integers(1, 5)),
)
