"""Wrappers that are given by their classes, and runs that are named by what a function makes."""

from __future__ import annotations

import tomllib

import gymnasium
import pytest
from gymnasium.wrappers import ClipReward

import headrace as hr
from headrace.envs.registry import spec
from headrace.envs.sources import short_name
from headrace.training.config import merge_settings

SMALL = {"num_envs": 2, "num_steps": 8, "total_steps": 32, "progress": "none", "scale": False, "hidden": (4,)}


class Maze(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 3.0, False, self.np_random.uniform() < 0.3, {}


class Tripled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 3 * reward


def make_env():
    return gymnasium.wrappers.TimeLimit(Maze(), 4)


def make_hard_maze():
    return Maze()


@pytest.mark.parametrize("given", [Tripled, [Tripled], (Tripled,), f"{__name__}:Tripled"])
def test_a_wrapper_is_a_class_or_its_name(given, tmp_path):
    run = hr.train("ppo", Maze, wrapper=given, time_limit=1, log_folder=str(tmp_path), **SMALL)
    settings = tomllib.loads((run.path / "config.toml").read_text())
    assert settings["wrapper"] == [f"{__name__}:Tripled"]
    assert run.evaluate(2).returns == (3.0, 3.0)  # the environment's own


def test_wrappers_of_libraries_and_of_users_mix():
    config, _ = merge_settings(None, {}, {}, {"wrapper": [ClipReward, Tripled]})
    assert [name.rpartition(":")[2] for name in config.wrapper] == ["ClipReward", "Tripled"]


def test_a_wrapper_that_nothing_can_import_is_refused_with_what_to_do(monkeypatch):
    class Local(Tripled):
        pass

    monkeypatch.setattr(Tripled, "__module__", "__main__")
    for given in (Local, lambda env: env, Tripled):
        with pytest.raises(TypeError, match=r"wrapper has <.*put it into a file of its own"):
            merge_settings(None, {}, {}, {"wrapper": given})
    with pytest.raises(TypeError, match="each of wrapper must be str, got 3"):
        merge_settings(None, {}, {}, {"wrapper": [3]})


def thunks():
    inner = Maze
    kinds = {"maze": Maze}

    def thunk():
        return inner()

    return thunk, lambda: kinds["maze"]()


THUNK, UNKNOWN = thunks()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (make_env, "Maze"),
        (lambda: Maze(), "Maze"),
        (lambda: gymnasium.make("CartPole-v1"), "CartPole-v1"),
        (THUNK, "Maze"),
        (UNKNOWN, "test_given_in_python"),  # the file's
        (make_hard_maze, "make_hard_maze"),
        (Maze, "Maze"),
        ("CartPole-v1", "CartPole-v1"),
    ],
)
def test_a_run_is_named_by_what_a_function_makes(source, name):
    assert short_name(spec(source).name, source) == name


def test_a_folder_has_the_name(tmp_path):
    run = hr.train("ppo", lambda: Maze(), time_limit=3, log_folder=str(tmp_path), **SMALL)
    assert run.path.name == "Maze_1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_steps": "1000"}, r"total_steps must be int \| None, got '1000'"),
        ({"num_envs": "8"}, "num_envs must be int, got '8'"),
        ({"learning_rate": "0.1"}, "learning_rate must be float, got '0.1'"),
    ],
)
def test_numbers_as_text_are_refused_by_their_names(options, message):
    with pytest.raises(TypeError, match=message):
        hr.train("ppo", "Blackjack-v1", **options)  # of which settings follow from others


def test_making_refuses_numbers_as_text_too():
    for make in (hr.make, hr.make_vec):
        for source in ("CartPole-v1", "Blackjack-v1"):
            with pytest.raises(TypeError, match="num_envs must be int, got '4'"):
                make(source, "4")
    for name, value in (("frame_stack", "2"), ("time_limit", "9"), ("reward_scale", "1")):
        with pytest.raises(TypeError, match=f"{name} must be .*, got '{value}'"):
            hr.make("Blackjack-v1", 2, **{name: value})
