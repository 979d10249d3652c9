"""A training that is ruined says how large the numbers were that it learned from."""

import re

import gymnasium
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.data.finite import NotFinite, check_metrics
from headrace.data.rollout import Column, Rollout


class Steep(gymnasium.Env):
    """Rewards that are finite and too large to learn from."""

    observation_space, action_space = gymnasium.spaces.Box(-9, 9, (2,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.float32([3, -5]), {}

    def step(self, action):
        return np.float32([3, -5]), -1e25, False, False, {}


def test_rewards_are_named_with_their_size_and_the_learning_rate_is_not():
    with pytest.raises(NotFinite) as caught:
        hr.train("ppo", hr.make(Steep, 2), progress="none", num_steps=8, total_steps=200, normalize_return=False)
    seen = (
        r"\w+ is (nan|inf|-inf) after learning at \d+ steps: the weights are ruined. In absolute value, the last "
        r"rollout has rewards of up to 1e\+25 and observations of up to 5; rewards of that size are too large for "
        r"float32: give a smaller reward_scale. "
    )
    assert re.match(seen, str(caught.value)) and "learning_rate" not in str(caught.value)


def rollout(reward, observation):
    columns = {"reward": Column(), "observation": {"a": Column((2,)), "image": Column((3, 3), torch.uint8)}}
    made = Rollout(2, 3, columns)
    made.reward.fill_(reward)
    made.observation.a.fill_(observation)
    made.observation.image.fill_(255)
    return made


@pytest.mark.parametrize(
    ("reward", "observation", "said"),
    [
        (-1e6, 1.0, "rewards of up to 1e+06 and observations of up to 255; rewards of that size .* reward_scale$"),
        (1.0, -1e8, "observations of up to 1e+08; observations of that size .* give normalize_observation=True$"),
        (1e6, 1e8, "give a smaller reward_scale; observations of that size .*: give normalize_observation=True$"),
        (1.0, 1.0, "rewards of up to 1 and .* 255; neither is too large: a smaller learning_rate may help$"),
    ],
)
def test_what_may_help_follows_from_what_was_seen(reward, observation, said):
    with pytest.raises(NotFinite, match=said.replace("+", r"\+")):
        check_metrics({"entropy": 1.0, "value_loss": float("nan")}, 48, rollout(reward, observation))
    check_metrics({"entropy": 1.0}, 48, rollout(reward, observation))
