"""Environments of every kind train from one command, as a user types it."""

from __future__ import annotations

import re

import pytest

from headrace.cli import train
from headrace.envs import spec

LIT = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Lit(gymnasium.Env):
    """Which half of the picture is lit? Says so, too, in words, when spoken to."""

    observation_space = Box(0, 255, (12, 12), np.uint8)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age, self.side = 0, int(self.np_random.integers(2))
        return self.seen(), {}

    def step(self, action):
        reward, self.side, self.age = float(action == self.side), int(self.np_random.integers(2)), self.age + 1
        return self.seen(), reward, False, self.age == 8, {}

    def seen(self):
        picture = np.zeros((12, 12), np.uint8)
        picture[:, 6 * self.side : 6 * self.side + 6] = 200
        return picture


class LitAndTold(Lit):
    observation_space = Dict(picture=Lit.observation_space, told=Dict(age=Box(0, 8, (1,)), side=Discrete(2)))

    def seen(self):
        told = {"age": np.array([self.age], np.float32), "side": self.side}
        return {"picture": super().seen(), "told": told}
'''
SMALL = ["--num-envs", "4", "--num-steps", "16", "--epochs", "1", "--minibatch-size", "64", "--total-steps", "128"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lit.py").write_text(LIT)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "package", "episodes"),
    [
        ("LunarLander-v3", "Box2D", 2),
        ("HalfCheetah-v5", "mujoco", 1),
        ("envpool/CartPole-v1", "envpool", 2),
        ("lit.py:Lit", "gymnasium", 2),
        ("lit.py:LitAndTold", "gymnasium", 2),
    ],
)
def test_training_from_one_command(name, package, episodes, here, capsys):
    pytest.importorskip(package)
    train.main(["ppo", name, *SMALL, "--final-episodes", str(episodes)])
    assert re.search(rf"evaluated last/: return .* over {episodes} episodes", capsys.readouterr().out)


def test_atari_from_one_command(here, capsys):
    """The training has no evaluation, since a game is long."""
    pytest.importorskip("ale_py")
    train.main(["ppo", "ALE/Pong-v5", *SMALL, "--threads", "1", "--total-steps", "64", "--final-episodes", "0"])
    assert "headrace eval runs/ppo/ALE" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["LunarLander-v3", "HalfCheetah-v5", "ALE/Pong-v5"])
def test_settings_are_there_whichever_way_it_is_run(name):
    assert spec(name).defaults["ppo"]["num_envs"] in (8, 16)
    assert spec("envpool/" + name.removeprefix("ALE/")).defaults == spec(name).defaults


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lit.py:Lit", "lit.py:LitAndTold"])
def test_pictures_and_dicts_are_learned(name, here):
    import headrace as hr

    run = hr.train("ppo", name, total_steps=20_000, num_steps=32, learning_rate=1e-3, progress="none")
    assert run.evaluate(20).mean > 7.5
