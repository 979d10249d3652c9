"""Actors in a loop of one's own: the fragments that are done first, and weights that are published."""

from __future__ import annotations

import time

import gymnasium
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.parallel.own_loop import VERSIONS


class Slow(gymnasium.Env):
    """Environment 0 takes `seconds` a step, the others nothing; the observation is the last action."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, seconds: float = 0.0, fails: bool = False) -> None:
        self.seconds, self.fails = seconds, fails

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if self.fails:
            raise RuntimeError("the simulator is gone")
        time.sleep(self.seconds * (self.np_random_seed == first_seed()))
        return np.zeros(2, np.float32), 1.0, False, False, {}


def first_seed() -> int:
    from headrace.envs.gym.inline import env_seed

    return env_seed(0, 0)


def a_policy() -> hr.ActorCritic:
    return hr.ActorCritic(Slow.observation_space, Slow.action_space, hidden=(8,))


def test_the_first_fragments_that_are_done_are_given_and_a_slow_actor_is_not_waited_for():
    with hr.Actors(lambda: Slow(0.2), a_policy(), num_envs=4, num_steps=4, actors=4) as actors:
        assert actors.ready() == 0 and actors.get(1) == []
        actors.start()
        assert actors.get(1, timeout=0.0) == [] or actors.ready() >= 0
        first = actors.get(3)
        assert sorted(fragment.envs.start for fragment in first) == [1, 2, 3]
        assert all(fragment.rollout.num_envs == 1 and fragment.rollout.num_steps == 4 for fragment in first)
        (slow,) = actors.get(4)
        assert slow.envs == slice(0, 1)


def test_weights_are_those_that_were_published_last():
    policy = a_policy()
    with hr.Actors(Slow, policy, num_envs=2, num_steps=4, actors=2) as actors:
        seen = []
        for update in range(3 * VERSIONS):
            actors.start()
            fragments = actors.get(2)
            seen += [fragment.lag for fragment in fragments]
            for fragment in fragments:
                with torch.no_grad():
                    policy.critic_out.bias.fill_(float(actors.version - fragment.lag))
                expected = policy.value(fragment.rollout.observation[0])
                assert torch.allclose(fragment.rollout.value[0], expected)
            with torch.no_grad():
                policy.critic_out.bias.fill_(float(update + 1))
            actors.publish()
        assert actors.version == 3 * VERSIONS and set(seen) == {0}


def test_an_exception_of_an_environment_comes_out_of_get():
    with hr.Actors(lambda: Slow(fails=True), a_policy(), num_envs=2, num_steps=4, actors=2) as actors:
        actors.start()
        with pytest.raises(RuntimeError, match="the simulator is gone"):
            actors.get(2)


def test_processes_may_be_borrowed():
    with hr.Workers(2) as processes:
        for _ in range(2):
            with hr.Actors("CartPole-v1", cartpole(), num_envs=4, num_steps=8, actors=processes) as actors:
                actors.start()
                assert len(actors.get(2)) == 2


def cartpole() -> hr.ActorCritic:
    env = hr.make("CartPole-v1", 1)
    return hr.ActorCritic(env.observation_space, env.action_space, hidden=(8,))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda: None, r"Actors\(\) takes a policy, got None"),
        (
            lambda: hr.ActorCritic(hr.Box(-1, 1, (2,)), hr.Discrete(2)),
            "the policy was made for the observation_space Box",
        ),
        (lambda: hr.ActorCritic(hr.make("CartPole-v1", 1).observation_space, hr.Discrete(3)), "for the action_space"),
    ],
)
def test_what_does_not_fit_the_environments_is_refused_in_words(policy, message):
    with pytest.raises((TypeError, ValueError), match=message):
        hr.Actors("CartPole-v1", policy(), num_envs=4, num_steps=8, actors=2)
