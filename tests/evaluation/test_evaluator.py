"""Evaluation happens in the original environment, on whole episodes, with the same bits for the same seed."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import MountainCarEnv
from helpers.tiny import Walk

import headrace as hr
from headrace.core.stopping import Stopped
from headrace.data.spaces import Box, Dict, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.wrappers.conditioning import InformedEnv
from headrace.kernels.language.ops import f32, i32, uniform
from headrace.policies.actor_critic import ActorCritic


def policy_for(observation_space, action_space, seed=0):
    return ActorCritic(observation_space, action_space, hidden=(8,), seed=seed)


def cartpole_policy():
    space = gymnasium.make("CartPole-v1").observation_space
    return policy_for(space, Discrete(2), seed=3)


def test_it_equals_a_loop_written_by_hand():
    policy = cartpole_policy()
    result = hr.evaluate(policy, "CartPole-v1", episodes=12, seed=5)
    from headrace.envs.gym.inline import env_seed
    from headrace.evaluation.playing import _evaluation_seed

    returns = []
    for episode in range(12):
        world, total, done = gymnasium.make("CartPole-v1"), 0.0, False
        observation, _ = world.reset(seed=env_seed(_evaluation_seed(5), episode))
        while not done:
            observation, reward, terminated, truncated, _ = world.step(policy.predict(observation)[0])
            total, done = total + reward, terminated or truncated
        returns.append(total)
    assert result.returns == tuple(returns) and result.lengths == tuple(map(int, returns))
    assert result.mean == np.mean(returns) and result.std == np.std(returns) and result.seconds > 0


def test_fewer_episodes_are_the_first_of_more():
    policy = cartpole_policy()
    assert hr.evaluate(policy, "CartPole-v1", 3).returns == hr.evaluate(policy, "CartPole-v1", 20).returns[:3]


@pytest.mark.parametrize("deterministic", [True, False])
def test_workers_give_the_same_bits_whatever_their_number(deterministic):
    policy = policy_for(gymnasium.make("Pendulum-v1").observation_space, Box(-2, 2, (1,)), seed=3)
    options = {"episodes": 5, "seed": 4, "deterministic": deterministic}
    inline, one, three = (hr.evaluate(policy, "Pendulum-v1", workers=workers, **options) for workers in (None, 1, 3))
    assert inline.returns == one.returns == three.returns and len(set(inline.returns)) == 5
    assert inline.lengths == one.lengths == three.lengths == (200,) * 5
    assert len(hr.evaluate(policy, "Pendulum-v1", workers=7, **options | {"episodes": 2}).returns) == 2


def test_a_world_whose_episode_is_over_waits_for_the_others():
    steps = []

    class Short(gymnasium.Env):
        observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.left = int(self.np_random.integers(1, 30))
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.left -= 1
            steps.append(1)
            return np.zeros(2, np.float32), 0.5, self.left == 0, False, {}

    result = hr.evaluate(policy_for(Short.observation_space, Short.action_space), Short, 20)
    assert len(steps) == sum(result.lengths) and len(set(result.lengths)) > 5
    assert result.returns == tuple(0.5 * length for length in result.lengths)


def test_workers_of_compiled_worlds_are_refused():
    with pytest.raises(ValueError, match="Dice is evaluated compiled, without workers: leave workers=2 out"):
        hr.evaluate(policy_for(Dice.observation_space, Dice.action_space), Dice, 2, workers=2)


def test_seeds_decide():
    policy = cartpole_policy()
    for deterministic in (True, False):
        first, again, other = (hr.evaluate(policy, "CartPole-v1", 8, seed, deterministic).returns for seed in (1, 1, 2))
        assert first == again and first != other


def test_worlds_of_an_evaluation_are_not_those_of_a_training_with_its_seed():
    seen = []

    class Noting(gymnasium.envs.classic_control.CartPoleEnv):
        def reset(self, *, seed=None, options=None):
            seen.append(seed)
            return super().reset(seed=seed, options=options)

    trainer = hr.Trainer("ppo", lambda: gymnasium.wrappers.TimeLimit(Noting(), 20), num_envs=4, seed=7, num_steps=4)
    training, seen[:] = {seed for seed in seen if seed is not None}, []
    hr.evaluate(trainer.policy, trainer.plan.env, episodes=4, seed=7)
    assert len(training) == 4 and len(set(seen)) == 4 and not training & set(seen)


def test_a_port_is_evaluated_in_gymnasiums_own(monkeypatch):
    made, policy = [], cartpole_policy()
    make = gymnasium.make
    monkeypatch.setattr(gymnasium, "make", lambda entry, **kwargs: made.append(entry) or make(entry, **kwargs))
    from headrace.envs.builtin.cartpole import CartPole

    for source in ("CartPole-v1", CartPole, "headrace.envs.builtin.cartpole:CartPole"):
        made.clear()
        hr.evaluate(policy, source, episodes=2)
        assert len(made) == 2


class Dice(KernelEnv):
    """Ends after `left` steps, each of which earns 1; the length is drawn for each episode."""

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Discrete(2)
    max_steps = 90

    class State(NamedTuple):
        left: i32
        chance: f32

    def reset(s, p, key):
        chance = uniform(key, 0, 0.0, 1.0)
        return Dice.State(i32(1.0 + chance * 99.0), chance)

    def step(s, p, action, key):
        return Dice.State(s.left - 1, s.chance), 1.0, s.left <= 1

    def observe(s, p):
        return s.chance, 0.0


def test_a_world_of_ones_own_is_evaluated_compiled_on_its_first_episodes():
    policy = policy_for(Dice.observation_space, Dice.action_space)
    result = hr.evaluate(policy, Dice, episodes=40)
    env = hr.make(Dice, 40)
    from headrace.data.rollout import Rollout
    from headrace.data.spaces import action_column, env_columns
    from headrace.evaluation.playing import _evaluation_seed

    rollout = Rollout(1, 40, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    env.reset(rollout, _evaluation_seed(0))
    expected = [min(1 + int(chance * 99), 90) for chance in rollout.observation[0, :, 0].tolist()]
    assert list(result.lengths) == pytest.approx(expected, abs=1) and result.returns == tuple(
        map(float, result.lengths)
    )
    assert max(result.lengths) == 90 and min(result.lengths) < 30
    for deterministic in (True, False):
        assert hr.evaluate(policy, Dice, 40, deterministic=deterministic).returns == result.returns


def test_dict_observations_and_box_actions():
    class Mixed(gymnasium.Env):
        observation_space = Dict({"a": Box(-1, 1, (3,)), "b": Discrete(4)})
        action_space = Box(-0.5, 0.5, (2,))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.left = 5
            return {"a": np.zeros(3, np.float32), "b": 2}, {}

        def step(self, action):
            assert self.action_space.contains(action)
            self.left -= 1
            return {"a": np.ones(3, np.float32), "b": 1}, 2.0, self.left == 0, False, {}

    policy = policy_for(Mixed.observation_space, Mixed.action_space)
    for deterministic in (True, False):
        assert hr.evaluate(policy, Mixed, 3, deterministic=deterministic).returns == (10.0,) * 3


class Endless(MountainCarEnv):
    """Ends at its goal alone, which an untrained policy does not reach."""


def test_episodes_without_end_are_cut_off_and_counted():
    policy = policy_for(Endless().observation_space, Endless().action_space)
    result = hr.evaluate(policy, Endless, 2, most_steps=30)
    assert result.cut == 2 and result.returns == (-30.0, -30.0) and result.lengths == (30, 30)
    assert "2 of them cut off after 30 steps" in str(result)
    whole = hr.evaluate(cartpole_policy(), "CartPole-v1", 3)
    assert whole.cut == 0 and "cut off" not in str(whole)


def test_an_evaluation_can_be_watched_and_stopped():
    seen = []

    def watch(ended, steps):
        seen.append((ended, steps))
        return steps >= 10

    policy = policy_for(Endless().observation_space, Endless().action_space)
    with pytest.raises(Stopped):
        hr.evaluate(policy, Endless, 2, watch=watch)
    assert seen == [(0, steps) for steps in range(11)]  # before each step, which may take long
    seen.clear()
    compiled = hr.make("Pendulum-v1", 1)
    policy = policy_for(compiled.observation_space, compiled.action_space)
    with pytest.raises(Stopped):
        hr.evaluate(policy, "Pendulum-v1", 2, watch=watch, reference=False)
    assert [steps for _, steps in seen] == [64]


def test_a_ready_env_is_evaluated_with_the_options_it_was_made_with():
    policy = cartpole_policy()
    heavy = {"gravity": 1000.0}
    ready = hr.make("CartPole-v1", 4, params=heavy)
    lengths = hr.evaluate(policy, ready, 8).lengths
    assert sum(lengths) < 0.7 * sum(hr.evaluate(policy, "CartPole-v1", 8).lengths)
    assert lengths == hr.evaluate(policy, "CartPole-v1", 8, params=heavy).lengths
    mixed = hr.make("CartPole-v1", 2, params={"gravity": np.array([1000.0, 9.8], np.float32)})
    either = hr.evaluate(policy, mixed, 8).lengths
    assert either[::2] == lengths[::2] and either[1::2] != lengths[1::2]
    assert hr.evaluate(policy, hr.make("CartPole-v1", 2, time_limit=5), 3).lengths == (5, 5, 5)
    games = hr.make("CartPole-v1", 2, backend="vector", max_episode_steps=7)
    assert hr.evaluate(policy, games, 3).lengths == (7, 7, 7)


def test_an_evaluation_takes_the_agent_info_of_the_training():
    info = np.arange(4) % 3
    env = InformedEnv(hr.make(Dice, 4), info)
    policy = policy_for(env.observation_space, env.action_space)
    with pytest.raises(ValueError, match="trained with agent_info: give it"):
        hr.evaluate(policy, Dice, 2)
    seen = []
    act = policy.act
    policy.act = lambda observation, *rest: seen.append(observation.agent_info.tolist()) or act(observation, *rest)
    hr.evaluate(policy, Dice, 2, agent_info=info)
    hr.evaluate(policy, Dice, 6, agent_info=info)
    assert seen[0][:2] == [0, 1] and seen[-1][:6] == [0, 1, 2, 0, 0, 1]  # further rows are padding


def test_wrong_questions_are_errors():
    with pytest.raises(ValueError, match="a whole number of episodes, 1 or more, got 0"):
        hr.evaluate(cartpole_policy(), "CartPole-v1", 0)
    with pytest.raises(TypeError, match="cannot be made again"):
        hr.evaluate(cartpole_policy(), Walk(), 1)


@pytest.mark.parametrize(
    ("seen", "acted", "words"),
    [
        (Box(-1, 1, (3,)), Discrete(2), r"observations of Box.*\(3,\).*CartPole-v1 are of Box.*\(4,\)"),
        (Box(-1, 1, (4,)), Discrete(3), r"actions of Discrete\(3\).*CartPole-v1 are of Discrete\(2\)"),
    ],
)
def test_a_policy_for_other_spaces_is_refused(seen, acted, words):
    with pytest.raises(ValueError, match=words):
        hr.evaluate(ActorCritic(seen, acted, (8,)), "CartPole-v1", episodes=2)


def test_a_ready_env_is_evaluated_by_what_it_was_made_of():
    policy = cartpole_policy()
    ready = hr.make("CartPole-v1", 2, backend="inline")
    assert hr.evaluate(policy, ready, 3).returns == hr.evaluate(policy, "CartPole-v1", 3).returns
    compiled = hr.make(Dice, 2)
    assert len(hr.evaluate(policy_for(Dice.observation_space, Dice.action_space), compiled, 3).returns) == 3


def test_it_says_what_it_found():
    text = str(hr.evaluate(cartpole_policy(), "CartPole-v1", 4))
    assert text.startswith("return ") and "over 4 episodes" in text


def test_a_ready_gymnasium_env_is_made_again_by_its_own_function(tmp_path):
    """An environment is not made again by its name, which would run the user's script once more."""
    made = []

    def factory():
        made.append(1)
        return gymnasium.make("CartPole-v1")

    env = hr.make(factory, 2)
    policy = hr.ActorCritic(env.observation_space, env.action_space, hidden=(8,))
    assert len(hr.evaluate(policy, env, episodes=3).returns) == 3 and len(made) == 4
