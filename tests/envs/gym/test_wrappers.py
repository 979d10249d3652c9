"""Wrappers that are asked for by name."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import headrace as hr
from headrace import envs
from headrace.data.rollout import Rollout
from headrace.envs.gym.wrapping import time_limit_of
from tests.envs.gym.test_inline import Counting


def stepped(env, num_steps):
    rollout = Rollout(num_steps, env.num_envs, env.columns())
    env.reset(rollout, seed=0)
    for t in range(num_steps):
        env.step(rollout, t)
    return rollout


def test_rewards_are_scaled_and_returns_are_not():
    rollout = stepped(envs.make(lambda: Counting(length=3), 2, reward_scale=0.5), 4)
    assert rollout.reward[:, 0].tolist() == [0.5, 1.0, 1.5, 0.0]
    assert rollout.episode_return[3].tolist() == [6.0, 6.0] and rollout.episode_length[3].tolist() == [3, 3]


def test_frames_are_stacked_the_newest_last():
    env = envs.make(lambda: Counting(length=9), 1, frame_stack=3)
    assert env.observation_space.shape == (3, 2)
    rollout = stepped(env, 4)
    assert rollout.observation[:, 0, :, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]


class Camera(Counting):
    """Images whose pixels are 10 times the step plus the channel."""

    def __init__(self, shape):
        super().__init__(length=9)
        self.observation_space = Box(0, 255, shape, np.uint8)

    def look(self):
        shape = self.observation_space.shape
        channels = np.arange(shape[-1], dtype=np.uint8) if shape[-1] == 3 else np.arange(shape[0], dtype=np.uint8)
        picture = channels if shape[-1] == 3 else channels[:, None, None]
        return np.broadcast_to(picture + np.uint8(10 * self.count), shape)


@pytest.mark.parametrize("shape", [(8, 6, 3), (3, 8, 6)])
def test_stacked_images_have_their_frames_as_channels_in_front(shape):
    env = envs.make(lambda: Camera(shape), 1, frame_stack=2)
    assert env.observation_space == Box(0, 255, (6, 8, 6), np.uint8)
    rollout = stepped(env, 1)
    assert rollout.observation[1, 0, :, 5, 4].tolist() == [0, 1, 2, 10, 11, 12]


def test_grey_images_and_dicts_are_stacked_as_gymnasium_has_it():
    assert envs.make(lambda: Camera((8, 6)), 1, frame_stack=4).observation_space.shape == (4, 8, 6)
    spaces = {"body": Box(-1, 1, (2,)), "gear": Discrete(3)}

    class Several(Counting):
        observation_space = Dict(spaces)

        def look(self):
            return {"body": np.zeros(2, np.float32), "gear": self.count % 3}

    rollout = stepped(envs.make(Several, 1, frame_stack=2), 2)
    assert rollout.observation.gear[:, 0].tolist() == [[0, 0], [0, 1], [1, 2]]


def test_a_time_limit_truncates():
    env = envs.make(lambda: Counting(length=100), 1, time_limit=2)
    rollout = stepped(env, 3)
    assert rollout.truncated[:, 0].tolist() == [False, True, False] and not rollout.terminated.any()
    assert rollout.episode_length[2, 0] == 2


@pytest.mark.parametrize("limit", [7, 900])
def test_a_time_limit_takes_the_place_of_that_of_a_gymnasium_id(limit):
    for source in ("gymnasium.envs.classic_control:Pendulum-v1", "Pendulum-v1"):
        env = envs.make(source, 1, backend="inline", time_limit=limit)
        assert env.max_steps == limit
    assert envs.make("Pendulum-v1", 1, time_limit=limit).max_steps == limit  # compiled


def test_the_limit_of_a_wrapper_around_an_own_class_is_known():
    """There is no spec without gymnasium.make()."""

    def world():
        return gymnasium.wrappers.Autoreset(gymnasium.wrappers.TimeLimit(Counting(length=100), 7))

    assert world().spec is None
    assert envs.make(lambda: world().env, 1).max_steps == 7
    assert time_limit_of(world()) == 7 and time_limit_of(Counting(length=100)) is None
    assert time_limit_of(gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 900)) == 500
    with pytest.raises(ValueError, match="after 7 steps, and time_limit=80 cannot lengthen"):
        envs.make(lambda: world().env, 1, time_limit=80)


def test_a_compiled_world_ends_at_its_time_limit():
    rollout = stepped(envs.make("Pendulum-v1", 2, backend="torch", time_limit=3), 4)
    assert rollout.truncated[:, 0].tolist() == [False, False, True, False]


def test_what_cannot_be_is_refused_with_the_reason():
    limited = gymnasium.wrappers.TimeLimit
    cases = [
        (lambda: envs.make("Pendulum-v1", 1, frame_stack=4), "is compiled and takes no frame_stack=4: .*recurrent"),
        (lambda: envs.make("Pendulum-v1", 1, reward_scale=0.1), "takes no reward_scale=0.1: .*normalize_return"),
        (lambda: envs.make("CartPole-v1", 1, backend="vector", time_limit=9), "as a vector .* takes no time_limit=9"),
        (lambda: envs.make(Counting, 1, frame_stack=0), "frame_stack must be 1 .off. or more, got 0"),
        (lambda: envs.make(Counting, 1, time_limit=0), "time_limit must be at least 1 step, got 0"),
        (lambda: envs.make(Counting, 1, reward_scale=-1.0), "reward_scale must be above 0 and finite, got -1"),
    ]
    for make, says in cases:
        with pytest.raises(ValueError, match=says):
            make()

    def short():
        return limited(gymnasium.make("Pendulum-v1", max_episode_steps=50), 50)

    with pytest.raises(ValueError, match="after 50 steps, and time_limit=80 cannot lengthen"):
        envs.make(short, 1, time_limit=80)


def test_any_gymnasium_wrapper_may_be_inside_the_function():
    def world():
        env = gymnasium.wrappers.RescaleAction(gymnasium.make("Pendulum-v1"), np.float32(-1), np.float32(1))
        return gymnasium.wrappers.FlattenObservation(gymnasium.wrappers.FrameStackObservation(env, 2))

    env = envs.make(world, 1, frame_stack=2)
    assert env.observation_space.shape == (2, 6) and env.action_space == Box(-1, 1, (1,))
    assert torch.isfinite(stepped(env, 3).observation).all()


def test_a_policy_is_evaluated_in_worlds_made_alike(tmp_path):
    settings = {"frame_stack": 2, "time_limit": 5, "reward_scale": 0.1, "backend": "inline"}
    short = {"num_envs": 2, "num_steps": 8, "total_steps": 40, "eval_freq": 16, "eval_episodes": 2}
    run = hr.train("ppo", "Pendulum-v1", log_folder=str(tmp_path), progress="none", **settings, **short)
    assert run.policy.observation_space.shape == (2, 3)
    assert set(run.evaluate(3).lengths) == {5}
    assert hr.evaluate(hr.load(run.path), "Pendulum-v1", 2, frame_stack=2, time_limit=5).lengths == (5, 5)
    assert run.metrics["length"] == 5 and run.metrics["eval_length"] == 5
    assert run.metrics["return"] < -5  # five steps of up to -16, not of a tenth of it
    from headrace.cli.run_policy import eval_env_kwargs

    assert eval_env_kwargs(run.path) == {"frame_stack": 2, "time_limit": 5, "info_mask": False}
    film = hr.play(run.policy, "Pendulum-v1", tmp_path / "film.gif", **eval_env_kwargs(run.path))
    assert film.lengths == (5,)
    resumed = hr.train(resume=run.path, total_steps=60)
    assert {"frame_stack": 2, "time_limit": 5}.items() <= resumed.eval_env_kwargs.items()


def herd(**settings):
    """Rows of an environment of two agents; "a" leaves after 3 steps. settings: of make()."""
    from helpers.relay import Relay

    return stepped(envs.make(lambda: Relay({"a": 3, "b": 9}), 1, **settings), 6)


def test_rewards_of_several_agents_are_scaled_and_returns_are_not():
    rollout = herd(reward_scale=0.5, time_limit=4)
    assert rollout.reward[:, 1].tolist() == [0.5, 1.0, 1.5, 2.0, 0.0, 0.5]
    assert (rollout.episode_return[3, 0], rollout.episode_return[4, 1]) == (6.0, 10.0)


def test_a_time_limit_truncates_all_agents_that_are_left():
    rollout = herd(time_limit=4)
    assert rollout.valid.int().T.tolist() == [[1, 1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 0, 1, 1]]
    assert rollout.truncated.int().T.tolist() == [[0] * 6, [0, 0, 0, 1, 0, 0]]
    assert rollout.terminated[2, 0] and rollout.terminated.sum() == 1


def test_each_agent_has_a_stack_of_its_own():
    rollout = herd(frame_stack=2, time_limit=4)
    assert rollout.observation[:, 1, :, 0].tolist() == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4], [0, 0], [0, 1]]
    assert rollout.observation[4, :, 1, 1].tolist() == [0, 1]


def test_pettingzoos_own_tests_of_worlds_in_what_was_asked_for():
    checks = pytest.importorskip("pettingzoo.test")
    from mpe2 import simple_spread_v3

    from headrace.envs.gym.wrappers import wrapped
    from headrace.envs.gym.wrapping import Wrapping

    def world():
        return wrapped(
            simple_spread_v3.parallel_env(max_cycles=9), Wrapping(frame_stack=3, time_limit=7, reward_scale=2.0)
        )

    checks.parallel_api_test(world(), num_cycles=20)
    checks.parallel_seed_test(world, num_cycles=10)
