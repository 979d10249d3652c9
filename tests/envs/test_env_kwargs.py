"""Arguments of environments whose names are those of settings."""

from __future__ import annotations

import json

import numpy as np
import pytest

import headrace as hr
from headrace.cli.main import main
from headrace.sb3.vec_env import make_vec_env

FILE = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

NAMES = (
    "source num_envs backend device threads params wrappers ignore workers on_error step_timeout group_by frame_stack "
    "time_limit reward_scale info_mask first_env env_kwargs kwargs compiled wrapper name entry seed size"
).split()
TAKEN = {name: 10 + index for index, name in enumerate(NAMES)}


class Takes(gymnasium.Env):
    """An environment whose arguments have the names of all settings of make(); its rewards are their sum."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, **kwargs):
        self.render_mode, self.kwargs = render_mode, kwargs
        self.limit = kwargs.get("time_limit", 3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        reward = sum(value for value in self.kwargs.values() if isinstance(value, int))
        return np.zeros(2, np.float32), float(reward), False, self.count >= self.limit, {}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


def vector(num_envs, **kwargs):
    return gymnasium.vector.SyncVectorEnv([lambda: Takes(**kwargs)] * num_envs)
'''


@pytest.fixture
def takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "takes.py").write_text(FILE)
    return hr.envs.entry_of("takes.py:Takes")


def taken(takes) -> dict[str, int]:
    return vars(__import__("sys").modules[takes.__module__])["TAKEN"]


def returns(env: hr.Env, num_steps: int) -> list[float]:
    rollout = env.rollout(num_steps, env.columns())
    env.reset(rollout, 0)
    for t in range(num_steps):
        env.step(rollout, t)
    env.close()
    return rollout.reward[0].tolist()


@pytest.mark.parametrize("options", [{}, {"workers": 1}, {"backend": "vector"}])
def test_every_name_of_a_setting_may_be_one_of_the_environment(takes, options):
    arguments = {
        name: value for name, value in taken(takes).items() if options != {"backend": "vector"} or name != "num_envs"
    }
    source = "takes.py:vector" if "backend" in options else takes
    assert returns(hr.make(source, 2, env_kwargs=arguments, **options), 1) == [sum(arguments.values())] * 2


def test_settings_hold_beside_arguments_of_their_names(takes):
    env = hr.make(
        takes, 1, reward_scale=0.5, frame_stack=3, time_limit=2, env_kwargs={"reward_scale": 8, "time_limit": 9}
    )
    assert env.observation_space.shape == (3, 2)
    assert returns(env, 1) == [8.5]  # (8 + 9) / 2


def test_vectors_of_gymnasium_and_stable_baselines3_have_them(takes):
    own = {"time_limit": 2, "output": 5, "copy": 7, "wrappers": 1}
    for options in ({}, {"workers": 1}):
        envs = hr.make_vec(takes, 2, env_kwargs=own, **options)
        envs.reset(seed=0)
        assert envs.step(np.array([0, 0]))[1].tolist() == [15.0, 15.0]
        envs.close()
    for options in ({}, {"vec_env_kwargs": {"time_limit": 1}}):
        vec = make_vec_env(takes, 1, env_kwargs=own, **options)
        vec.reset()
        assert vec.step(np.array([0]))[1].tolist() == [15.0] and vec.step(np.array([0]))[2].tolist() == [True]
        vec.close()


@pytest.mark.parametrize("options", [{}, {"workers": 1}, {"actors": 1}])
def test_runs_evaluations_videos_and_resumed_runs_have_them(takes, options, tmp_path, capfd):
    own = {"time_limit": 4, "reward_scale": 100, "frame_stack": 7, "params": 3, "wrappers": 2, "render_mode": "human"}
    small = {"num_envs": 1, "num_steps": 8, "hidden": (4,), "progress": "none"}
    run = hr.train("ppo", "takes.py:Takes", total_steps=16, env_kwargs=own, reward_scale=0.01, **small, **options)
    whole = 4 * (4 + 100 + 7 + 3 + 2)
    assert run.metrics["return"] == run.evaluate(2).mean == whole
    assert main(["eval", str(run.path), "--episodes", "2", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["return"]["mean"] == whole
    assert main(["play", str(run.path), "--output", "film.gif"]) == 0
    again = hr.train(resume=run.path, total_steps=40)
    assert again.evaluate(1).mean == whole
    assert 'time_limit = "none"' in (run.path / "config.toml").read_text()


def test_what_cannot_be_meant_is_refused(takes):
    with pytest.raises(TypeError, match="size is given both in env_kwargs and as a keyword"):
        hr.make(takes, 1, env_kwargs={"size": 1}, size=2)
    with pytest.raises(TypeError, match="env_kwargs is 'size=1': give a dict"):
        hr.make(takes, 1, env_kwargs="size=1")
    with pytest.raises(TypeError, match="is it an argument of the environment"):
        hr.Trainer("ppo", takes, gravitational=2)
    with pytest.raises(TypeError, match=r"env_kwargs has model=<object.*lambda: Env\(model=...\)"):
        hr.train("ppo", takes, num_envs=1, total_steps=1, progress="none", env_kwargs={"model": object()})


def test_an_object_reaches_the_environment_of_a_trainer_as_it_is(takes):
    model = object()
    trainer = hr.Trainer("ppo", takes, num_envs=1, progress="none", env_kwargs={"model": model, "pair": (1, None)})
    kwargs = trainer.env.envs[0].kwargs
    assert kwargs["model"] is model and kwargs["pair"] == (1, None)
    trainer.close()
