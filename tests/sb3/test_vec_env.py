"""headrace.sb3.VecEnv: environments with the interface of Stable-Baselines3's VecEnv."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers.vector import ClipReward

import headrace as hr
from headrace.core.cores import cores
from headrace.sb3 import VecEnv, make_vec_env
from headrace.sb3.vec_env import tiled


class Counting(gymnasium.Env):
    """Episodes of 3 steps that terminate, those of an even seed; others are truncated after 2."""

    observation_space = Box(0, 10, (1,), np.float32)
    action_space = Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    level = 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.even = seed % 2 == 0
        self.steps = 0
        return np.zeros(1, np.float32), {"begun": True}

    def step(self, action):
        self.steps += 1
        observation = np.full(1, self.steps, np.float32)
        info = {"steps": self.steps, "inner": {"action": int(action)}}
        return observation, 0.5, self.even and self.steps == 3, not self.even and self.steps == 2, info

    def render(self):
        return np.full((2, 3, 3), self.steps, np.uint8)

    def times(self, factor, plus=0):
        return factor * self.steps + plus

    def rise(self, levels):
        self.level += levels
        return self.level


def test_infos_are_dicts_and_the_last_step_has_its_own():
    env = VecEnv(Counting, 2, seed=4)
    assert env.reset().shape == (2, 1) and env.reset_infos == [{"begun": True}] * 2
    env.step([0, 1])
    observation, reward, done, infos = env.step([0, 1])
    assert done.tolist() == [False, True] and reward.dtype == np.float32
    assert observation.ravel().tolist() == [2, 0]
    assert infos[0] == {"steps": 2, "inner": {"action": 0}, "TimeLimit.truncated": False}
    ended = infos[1]
    assert ended["terminal_observation"].tolist() == [2] and ended["TimeLimit.truncated"] is True
    assert ended["steps"] == 2 and ended["inner"] == {"action": 1} and "begun" not in ended
    assert (ended["episode"]["r"], ended["episode"]["l"]) == (1.0, 2)
    assert env.reset_infos[1] == {"begun": True}
    _, _, done, infos = env.step([0, 0])
    assert done.tolist() == [True, False] and infos[0]["TimeLimit.truncated"] is False
    assert infos[0]["terminal_observation"].tolist() == [3]


def test_methods_and_attributes_of_some_environments():
    env = VecEnv(Counting, 3, seed=0)
    env.reset()
    env.step([0, 0, 0])
    assert env.env_method("times", 2, plus=1) == [3, 3, 3] and env.env_method("times", 2, indices=[1]) == [2]
    env.set_attr("level", 5, indices=[0, 2])
    assert env.get_attr("level") == [5, 1, 5] and env.get_attr("level", 1) == [1]
    assert env.has_attr("level") and not env.has_attr("weight")
    assert env.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [False] * 3
    assert env.env_method("rise", 2, indices=[-1, 0]) == [7, 7] and env.get_attr("level") == [7, 1, 7]
    wrapped = VecEnv(Counting, 2, time_limit=5)
    assert wrapped.env_is_wrapped(gymnasium.wrappers.TimeLimit, indices=1) == [True]
    with pytest.raises(ValueError, match="same for all"):
        env.set_options([{"a": 1}, {"a": 2}, {}])
    together = VecEnv(ClipReward(hr.make_vec(Counting, 2, autoreset_mode="SameStep"), 0, 1))
    assert together.env_method("rise", 2, indices=1) == [3] and together.get_attr("level") == [1, 3]


@pytest.mark.slow
def test_methods_of_some_environments_of_workers_are_called_there_alone():
    env = VecEnv(Counting, 3, workers=2)
    assert env.env_method("rise", 2, indices=[2, 0]) == [3, 3] and env.get_attr("level") == [3, 1, 3]
    assert env.env_method("rise", 1, indices=1) == [2] and env.env_method("rise", 0) == [3, 2, 3]
    env.close()


def test_images_of_all_environments_are_one_image():
    env = VecEnv(Counting, 3, seed=0)
    env.reset()
    assert env.render().shape == (4, 6, 3)
    with pytest.raises(ValueError, match="'ansi' was asked for"):
        env.render("ansi")
    numbered = [np.full((1, 2, 3), k, np.uint8) for k in range(3)]
    assert tiled(numbered)[..., 0].tolist() == [[0, 0, 1, 1], [2, 2, 0, 0]]


def test_compiled_environments_end_as_others():
    env = make_vec_env("Pendulum-v1", n_envs=2, seed=3)
    first = env.reset()
    for _ in range(199):
        _, _, done, infos = env.step(np.zeros((2, 1), np.float32))
        assert not done.any() and infos == [{"TimeLimit.truncated": False}] * 2
    observation, _, done, infos = env.step(np.zeros((2, 1), np.float32))
    assert done.all() and all(info["TimeLimit.truncated"] for info in infos)
    assert infos[1]["episode"]["l"] == 200 and not np.array_equal(infos[1]["terminal_observation"], observation[1])
    assert env.seed(3) == [3, 4] and np.array_equal(env.reset(), first)
    assert not np.array_equal(env.reset(), first)


def test_a_vector_of_another_mode_is_refused():
    with pytest.raises(ValueError, match="autoreset_mode is"):
        VecEnv(hr.make_vec("CartPole-v1", 2))


class Scaled(gymnasium.RewardWrapper):
    """Rewards times a factor."""

    def __init__(self, env, factor=1.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


def test_make_vec_env_has_the_arguments_of_stable_baselines3(monkeypatch):
    wrapped = {"wrapper_class": Scaled, "wrapper_kwargs": {"factor": 3.0}}
    env = make_vec_env(Counting, 2, 5, 0, None, **wrapped)
    env.reset()
    assert env.step([0, 1])[1].tolist() == [1.5, 1.5]
    env = make_vec_env("CartPole-v1", 2, env_kwargs={"sutton_barto_reward": True}, **wrapped)  # not compiled
    env.reset()
    assert env.step([0, 1])[1].tolist() == [0, 0] and env.env_is_wrapped(Scaled) == [True, True]
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        make_vec_env("CartPole-v1", 0)
    for refused in ({"monitor_dir": "logs"}, {"start_index": 3}, {"vec_env_cls": dict}):
        with pytest.raises(ValueError, match=f"{next(iter(refused))}=.* has no counterpart in headrace.sb3"):
            make_vec_env("CartPole-v1", 2, **refused)
    monkeypatch.setattr("headrace.sb3.vec_env.VecEnv", lambda source, number, **options: options.get("workers"))
    in_processes = {"vec_env_cls": type("SubprocVecEnv", (), {})}
    assert make_vec_env(Counting, 64, **in_processes) == min(cores(), 64)
    assert make_vec_env(Counting, 8, workers=3, **in_processes) == make_vec_env(Counting, 8, workers=3) == 3
    assert make_vec_env(Counting, 8, vec_env_cls=type("DummyVecEnv", (), {})) is None


def test_envs_are_the_objects_of_this_process():
    env = make_vec_env(Counting, 2)
    assert [type(one.unwrapped) for one in env.envs] == [Counting] * 2 and env.envs[0] is not env.envs[1]
    env.envs[1].unwrapped.mine = 5
    assert env.get_attr("mine", 1) == [5] and not env.has_attr("mine")
    with pytest.raises(AttributeError, match=r"the environments are compiled, .*: use get_attr\(\), set_attr\(\)"):
        _ = make_vec_env("CartPole-v1", 2).envs
