"""Infos of make_vec(): SyncVectorEnv's, statistics of episodes where asked for, the names of Gymnasium 0.29."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import NormalizeReward, RecordEpisodeStatistics, TransformReward
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVector

import headrace as hr
from headrace.envs.gym.own_rewards import watched


class Count(gymnasium.Env):
    """Rewards of 1, 2, ...; episodes of 3 steps."""

    observation_space = gymnasium.spaces.Box(-1, 99, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(self.steps), False, self.steps == 3, {"count": self.steps}


class Repeat(gymnasium.Wrapper):
    """Takes each action twice, and a step at each reset, which no episode of its user has."""

    def reset(self, **options):
        found = self.env.reset(**options)
        self.env.step(0)
        return found

    def step(self, action):
        first, second = self.env.step(action), self.env.step(action)
        return second[0], first[1] + second[1], *second[2:]


class Doubled(gymnasium.Wrapper):
    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, 2 * reward, *rest


WRAPPED = {
    "bare": (Count, 6),
    "normalized": (lambda: NormalizeReward(Count()), 6),
    "transformed twice": (lambda: TransformReward(Doubled(Count()), lambda reward: -reward), 6),
    "skipped": (lambda: Doubled(Repeat(Count())), 5),
    "with the environment's own checks": (lambda: gymnasium.make("headrace-test/Count"), 6),
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    gymnasium.register("headrace-test/Count", Count, max_episode_steps=50)


def episodes(envs, steps=9):
    """Returns and lengths that infos have."""
    envs.reset(seed=0)
    found = []
    for _ in range(steps):
        *_, infos = envs.step(np.zeros(envs.num_envs, int))
        if "episode" in infos:
            ended = np.asarray(infos["_episode"])
            found += zip(infos["episode"]["r"][ended], infos["episode"]["l"][ended], strict=True)
    envs.close()
    return [(float(r), int(length)) for r, length in found]


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_returns_are_of_the_environments_own_rewards(name, mode):
    make, total = WRAPPED[name]
    found = episodes(hr.make_vec(make, 2, autoreset_mode=mode, episode_statistics=True))
    assert len(found) >= 4 and set(found) == {(total, 1 if name == "skipped" else 3)}


def test_workers_give_them_too():
    make, total = WRAPPED["normalized"]
    with hr.Workers(1) as workers:
        found = episodes(hr.make_vec(make, 2, workers=workers, episode_statistics=True))
    assert len(found) >= 4 and set(found) == {(total, 3)}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_training_reports_them_and_learns_from_the_wrapped_rewards(name):
    make, total = WRAPPED[name]
    trainer = hr.Trainer("ppo", make, num_envs=2, num_steps=13, progress="none", reward_scale=0.5, hidden=(4,))
    result = trainer.iterate()
    assert result.mean_return == pytest.approx(total)
    rewards = trainer.collector.rollout.reward[:1, 0]
    trainer.close()
    env = make()
    env.reset(seed=trainer.env.state_dict().get("seed"))
    assert float(rewards) == pytest.approx(0.5 * env.step(0)[1], rel=1e-4)


def test_only_wrappers_that_may_change_rewards_are_looked_into():
    assert watched(Count()) is None and watched(gymnasium.make("headrace-test/Count")) is None
    assert watched(gymnasium.wrappers.FlattenObservation(Count())) is None
    env = Doubled(gymnasium.make("headrace-test/Count"))
    own = watched(env)
    assert own is not None and watched(env) is own and env.unwrapped is own.env


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("source", ["CartPole-v1", lambda: gymnasium.make("CartPole-v1")])
def test_gymnasiums_statistics_work_around_and_inside(source, mode):
    assert episodes(RecordVector(hr.make_vec(source, 3, autoreset_mode=mode)), 60)
    if callable(source):
        inside = hr.make_vec(lambda: RecordEpisodeStatistics(source()), 3, autoreset_mode=mode, episode_statistics=True)
        assert episodes(inside, 60)
    assert episodes(hr.make_vec(source, 3, autoreset_mode=mode), 60) == []


def test_infos_are_those_of_sync_vector_env():
    for mode in ("NextStep", "SameStep"):
        ours, theirs = hr.make_vec(Count, 2, autoreset_mode=mode), SyncVectorEnv([Count] * 2, autoreset_mode=mode)
        ours.reset(seed=0)
        theirs.reset(seed=0)
        for _ in range(5):
            mine, other = ours.step(np.zeros(2, int))[4], theirs.step(np.zeros(2, int))[4]
            assert str(mine) == str(other)


@pytest.mark.parametrize("source", [Count, "CartPole-v1"])
def test_names_of_gymnasium_0_29(source):
    """Infos are those of Gymnasium 0.29's vectors: dicts of each environment, None where no episode ended."""
    envs = hr.Gymnasium029Infos(hr.make_vec(source, 2, autoreset_mode="SameStep", episode_statistics=True))
    envs.reset(seed=0)
    for _ in range(60):
        observations, _, terminated, truncated, infos = envs.step(np.zeros(2, int))
        ended = terminated | truncated
        assert ("final_info" in infos) == bool(ended.any())
        if not ended.any():
            continue
        assert {"final_obs", "episode", "_episode"}.isdisjoint(infos)
        assert np.array_equal(infos["_final_info"], ended) and np.array_equal(infos["_final_observation"], ended)
        for number in range(2):
            info, final = infos["final_info"][number], infos["final_observation"][number]
            assert (info is None) == (final is None) == (not ended[number])
            if ended[number]:
                assert info["episode"]["r"].shape == (1,) and final.shape == observations[number].shape
                assert not np.array_equal(final, observations[number])
                assert source == "CartPole-v1" or (info["count"] == 3 and info["episode"]["r"][0] == 6)
        break
    else:
        pytest.fail("no episode ended")
    envs.close()


def test_names_of_gymnasium_0_29_need_the_reset_in_the_same_step():
    with pytest.raises(ValueError, match="make it with autoreset_mode='SameStep'"):
        hr.Gymnasium029Infos(hr.make_vec(Count, 2))
