"""Target of set_attr(): one of the wrappers, or the environment."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import headrace as hr


class Bonus(gymnasium.Env):
    """Rewards an attribute that it does not have at first."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(getattr(self, "bonus", 0.0)), False, False, {}


class OfUser(gymnasium.RewardWrapper):
    """A wrapper with an attribute of its own, and one that it lacks at first."""

    bonus = 0.5

    def reward(self, reward):
        return reward + self.bonus + getattr(self, "more", 0.0)


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("standard", [False, True])
def test_a_new_attribute_is_set_on_the_environment(workers, standard):
    """Below the wrappers of Gymnasium's and ours; on the user's own wrapper, where there is one."""
    wrappers = [lambda env: gymnasium.wrappers.TimeLimit(env, 50)] if standard else []
    envs = hr.make_vec(Bonus, 2, workers=workers, wrappers=wrappers)
    envs.reset(seed=0)
    envs.set_attr("bonus", [1.0, 2.0])
    assert envs.step(np.zeros(2, int))[1].tolist() == [1.0, 2.0] and envs.get_attr("bonus") == (1.0, 2.0)
    envs.set_attr("bonus", 3.0)
    assert envs.step(np.zeros(2, int))[1].tolist() == [3.0, 3.0]
    envs.close()
    envs = hr.make_vec(Bonus, 2, workers=workers, wrappers=[OfUser, *wrappers])
    envs.reset(seed=0)
    envs.set_attr("bonus", [1.0, 2.0])  # the wrapper has it already
    envs.set_attr("more", 10.0)
    assert envs.step(np.zeros(2, int))[1].tolist() == [11.0, 12.0]
    envs.close()
