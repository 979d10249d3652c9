"""A VectorEnv whose spaces are those of one environment and whose infos are a list, as SuperSuit's."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import VectorEnv

import headrace as hr
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs.construct import adapted

LENGTHS = 3, 5  # of the episodes of two agents


class Old(VectorEnv):
    """Counts steps; an agent's reward is the step's number. One resets in the step that ends its episode."""

    observation_space, action_space = Box(-99, 99, (2,)), Discrete(2)

    def __init__(self, num_envs=2, finals=True):
        self.num_envs, self.finals = num_envs, finals
        self.steps = np.zeros(num_envs, int)

    def reset(self, seed=None, options=None):
        self.steps[:] = 0
        return self._seen(), [{} for _ in self.steps]

    def step(self, actions):
        self.steps += 1
        limits = np.array([LENGTHS[k % 2] for k in range(self.num_envs)])
        ended, rewards, seen = self.steps == limits, self.steps.astype(np.float32), self._seen()
        infos = [
            {"terminal_observation": row} if end and self.finals else {} for end, row in zip(ended, seen, strict=True)
        ]
        self.steps[ended] = 0
        return self._seen(), rewards, np.zeros(self.num_envs, np.uint8), ended.astype(np.uint8), infos

    def _seen(self):
        return np.stack([self.steps, -self.steps], 1).astype(np.float32)


def rollout_of(env, steps):
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(steps, env.num_envs, columns)
    rollout.action.fill_(0)
    env.reset(rollout, 0)
    for t in range(steps):
        env.step(rollout, t)
    return rollout


def test_an_episode_ends_with_its_own_last_observation():
    rollout = rollout_of(adapted(Old()), 10)
    for column, length in enumerate(LENGTHS):
        (ends,) = np.nonzero(rollout.truncated[:, column].numpy())
        assert ends[0] == length - 1 and not rollout.terminated.any()
        assert rollout.observation[length, column].tolist() == [length, -length]
        assert not rollout.valid[length, column]
        assert rollout.episode_return[length, column] == sum(range(1, length + 1))
        assert rollout.episode_length[length, column] == length


def test_without_final_observations_it_says_what_that_means():
    with pytest.warns(UserWarning, match="Old gives no final observations"):
        rollout = rollout_of(adapted(Old(finals=False)), 4)
    assert rollout.truncated[2, 0] and not rollout.terminated.any()
    assert rollout.observation[3, 0].tolist() == rollout.observation[2, 0].tolist() == [2, -2]


def test_it_trains_and_is_evaluated(tmp_path):
    options = {"num_steps": 8, "total_steps": 64, "progress": "none", "log_folder": str(tmp_path)}
    run = hr.train("ppo", lambda num_envs: Old(num_envs), num_envs=4, **options)
    assert {*hr.evaluate(run.policy, lambda num_envs: Old(num_envs), 4).returns} <= {6.0, 15.0}
