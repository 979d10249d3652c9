"""Returns of a Gymnasium vector are sums of its environments' own rewards: inside wrappers of it and of each one."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import vector as wrappers

import headrace as hr
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs.construct import adapted

LENGTHS = 3, 5
MODES = pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])


class Counts(gymnasium.Env):
    """Environment whose reward is the number of the step."""

    observation_space, action_space = Box(-99, 99, (1,)), Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(self.steps), False, self.steps == self.length, {}


class Twice(VectorWrapper):
    """Gives other rewards in a step of its own."""

    def step(self, actions):
        seen, rewards, *rest = self.env.step(actions)
        return seen, -100 * rewards, *rest


def sync(mode, wrapper=lambda env: env):
    return SyncVectorEnv([lambda length=length: wrapper(Counts(length)) for length in LENGTHS], autoreset_mode=mode)


def rollout_of(env, steps=20):
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(steps, env.num_envs, columns)
    rollout.action.fill_(0)
    env.reset(rollout, 0)
    for t in range(steps):
        env.step(rollout, t)
    return rollout


def returns_of(rollout, column):
    ended = rollout.episode_length[:, column] > 0
    return {*rollout.episode_return[:, column][ended].tolist()}


AROUND = [
    wrappers.NormalizeReward,
    lambda env: wrappers.ClipReward(env, -1, 1),
    lambda env: wrappers.NormalizeReward(wrappers.RecordEpisodeStatistics(env)),
    Twice,
]


@MODES
@pytest.mark.parametrize("around", AROUND)
def test_wrappers_of_a_vector_change_what_is_learned_and_not_what_is_reported(around, mode):
    rollout = rollout_of(adapted(around(sync(mode))))
    for column, length in enumerate(LENGTHS):
        assert returns_of(rollout, column) == {sum(range(1, length + 1))}
        assert rollout.reward[2, column] != 3.0


@MODES
def test_wrappers_of_each_environment_as_well(mode):
    for around in (lambda env: env, Twice):
        rollout = rollout_of(adapted(around(sync(mode, lambda env: gymnasium.wrappers.ClipReward(env, -1, 1)))))
        assert [returns_of(rollout, column) for column in (0, 1)] == [{6.0}, {15.0}]
        assert abs(rollout.reward[2, 0]) in (1.0, 100.0)


def test_where_nothing_changes_rewards_nothing_is_watched():
    for around in (wrappers.RecordEpisodeStatistics, wrappers.NormalizeObservation, lambda env: env):
        assert adapted(around(sync("NextStep"))).source._own_rewards is None


@pytest.mark.parametrize("source", ["CartPole-v1", lambda: gymnasium.make("CartPole-v1")])
@pytest.mark.parametrize("workers", [None, 1])
def test_statistics_of_make_vec_are_counted_inside_wrappers_around_it(source, workers):
    envs = wrappers.NormalizeReward(hr.make_vec(source, 2, episode_statistics=True, workers=workers))
    envs.reset(seed=0)
    found = []
    for _ in range(60):
        *_, infos = envs.step(np.zeros(2, int))
        if "episode" in infos:
            ended = infos["_episode"]
            assert infos["episode"]["r"][ended].tolist() == infos["episode"]["l"][ended].tolist()
            found += infos["episode"]["r"][ended].tolist()
    assert found and min(found) >= 8
    envs.close()


def test_a_training_reports_the_true_return(tmp_path):
    def make(num_envs):
        return wrappers.NormalizeReward(gymnasium.make_vec("Pendulum-v1", num_envs, vectorization_mode="sync"))

    options = {"num_steps": 50, "total_steps": 1000, "progress": "none", "log_folder": str(tmp_path)}
    run = hr.train("ppo", make, num_envs=4, **options)
    assert hr.evaluate(run.policy, make, 2).mean < -300
