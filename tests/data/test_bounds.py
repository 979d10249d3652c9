"""Bounds of a Box that stand for none: the largest numbers of a dtype, and numbers that are absurd."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from headrace.data.spaces import FARTHEST, bounds, describe, drawable, from_json, to_json, unit_bounds
from headrace.deploy.policy_graph import describe as graph_of
from headrace.kernels.targets.random_actions import random_actions
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.heads import GaussianHead

INF, VECTOR = np.inf, Box(-1, 1, (3,))
LARGEST = {dtype: float(np.finfo(dtype).max) for dtype in (np.float16, np.float32, np.float64)}
CASES = {  # a Box, its bounds, and the range of a policy's unit
    "float32": (Box(-LARGEST[np.float32], LARGEST[np.float32], (1,)), (-INF, INF), (-1, 1)),
    "float64": (Box(-LARGEST[np.float64], LARGEST[np.float64], (1,), np.float64), (-INF, INF), (-1, 1)),
    "float16": (Box(-LARGEST[np.float16], LARGEST[np.float16], (1,), np.float16), (-INF, INF), (-1, 1)),
    "more_than_float32": (Box(-1e300, 1e300, (1,), np.float64), (-INF, INF), (-1, 1)),
    "absurd": (Box(-1e30, 1e30, (1,)), (-INF, INF), (-1, 1)),
    "above_alone": (Box(0, LARGEST[np.float32], (1,)), (0, INF), (-1, 1)),
    "below_alone": (Box(-1e30, 0, (1,)), (-INF, 0), (-1, 1)),
    "beyond_5": (Box(5, INF, (1,)), (5, INF), (5, 7)),
    "short_of_-5": (Box(-INF, -5, (1,)), (-INF, -5), (-7, -5)),
    "int32": (Box(-(2**31), 2**31 - 1, (1,), np.int32), (-INF, INF), (-1, 1)),
    "int64": (Box(-INF, INF, (1,), np.int64), (-INF, INF), (-1, 1)),
    "uint32": (Box(0, 2**32 - 1, (1,), np.uint32), (0, INF), (-1, 1)),
    "uint8": (Box(0, 255, (1,), np.uint8), (0, 255), (0, 255)),
    "int8": (Box(-128, 127, (1,), np.int8), (-128, 127), (-128, 127)),
    "bool": (Box(0, 1, (1,), bool), (0, 1), (0, 1)),
    "far": (Box(-1e12, 1e12, (1,)), (-999999995904, 999999995904), (-999999995904, 999999995904)),
    "near": (Box(-2, 3, (1,)), (-2, 3), (-2, 3)),
}


def numbers(sides):
    return tuple(float(side[0]) for side in sides)


@pytest.mark.parametrize("name", CASES)
def test_every_user_of_bounds_sees_the_same(name):
    space, known, unit = CASES[name]
    half, bounded = (unit[1] - unit[0]) / 2, np.isfinite(known)
    assert numbers(bounds(space)) == known and numbers(unit_bounds(space)) == unit
    head = GaussianHead(space, squash=False)
    assert (head.center.item(), head.half_range.item()) == pytest.approx((sum(unit) / 2, half))
    drawn = random_actions(space, 0, 0, 64, 2, torch.device("cpu"))
    assert unit[0] <= drawn.min() and drawn.max() <= unit[1]
    assert ("[" in describe(space) or "±" in describe(space)) == bounded.all()
    assert numbers(bounds(from_json(to_json(space)))) == known
    clips = [node for node in graph_of(ActorCritic(VECTOR, space, hidden=(4,))).nodes if node.operation == "clip"]
    assert [numbers((node.weights["low"], node.weights["high"])) for node in clips] == (
        [known] if bounded.any() else []
    )
    if bounded.all():
        assert ActorQ(VECTOR, space, hidden=(4,)).half_range.item() == pytest.approx(half)
        GaussianHead(space, squash=True)
        return
    with pytest.raises(TypeError, match=r"1e\+15 and a dtype's largest number are none: use ppo"):
        ActorQ(VECTOR, space, hidden=(4,))
    with pytest.raises(TypeError, match=r"1e\+15 and a dtype's largest number are none: use distribution"):
        GaussianHead(space, squash=True)


@pytest.mark.parametrize("name", CASES)
def test_actions_that_are_drawn_to_check_an_environment_are_no_larger_than_those_of_a_policy(name):
    space, known, unit = CASES[name]
    same = drawable(space)
    same.seed(0)
    sampled = np.array([same.sample() for _ in range(64)], np.float64)
    assert np.isfinite(sampled).all() and np.abs(sampled).max() <= max(100, *map(abs, unit))
    flags = bool(space.bounded_below[0]), bool(space.bounded_above[0])
    assert (same is space) == (flags == tuple(np.isfinite(known)))


def test_each_entry_is_by_itself():
    space = Box(np.float32([-1, -LARGEST[np.float32], 2]), np.float32([1, FARTHEST, INF]))
    low, high = unit_bounds(space)
    assert low.tolist() == [-1, -1, 2] and high.tolist() == [1, 1, 4] and drawable(Discrete(3)).n == 3
