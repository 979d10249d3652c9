"""An environment that changes the working folder: every file of a run is where it belongs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import headrace as hr

SIM = """
import os
import gymnasium, numpy as np

class Sim(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 99, (1,)), gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, when="make", render_mode=None):
        self.when, self.render_mode = when, render_mode
        if when == "make":
            os.chdir("/")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        os.chdir("/")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.taken += 1
        return np.full(1, self.taken, np.float32), 1.0, False, self.taken == 5, {}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)

def same(env):
    return gymnasium.Wrapper(env)
"""
OPTIONS = {"num_envs": 2, "total_steps": 60, "wrapper": ("sim.py:same",), "eval_freq": 20, "eval_episodes": 2}
OPTIONS |= {"save_freq": 30, "progress": "none", "log_info": ()}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    (tmp_path / "sim.py").write_text(SIM)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("ppo", {"num_steps": 10}), ("dqn", {"learning_starts": 20, "buffer_size": 100}), ("ppo", {"workers": 2})],
)
def test_a_run_stays_in_its_folder_and_goes_on_from_it(tmp_path, algorithm, options):
    before = {path.name for path in Path("/").iterdir()}
    for when in ("make", "reset"):
        env = {"env_kwargs": {"when": when}}
        run = hr.train(algorithm, "sim.py:Sim", **OPTIONS, **options, **env)
        assert run.path == Path(f"{tmp_path}/runs/{algorithm}/Sim_{1 + (when == 'reset')}") and Path.cwd() == tmp_path
        assert {"best", "last", "monitor.csv", "config.toml"} <= set(os.listdir(run.path)) and list(
            run.path.glob("step_*")
        )
    resumed = hr.train(resume=f"runs/{algorithm}/Sim_1", total_steps=100, progress="none")
    assert resumed.path == tmp_path / "runs" / algorithm / "Sim_1" and resumed.steps >= 100
    assert str(resumed).startswith(f"Run(runs/{algorithm}/Sim_1: ") and Path.cwd() == tmp_path
    again = hr.train(algorithm, "sim.py:Sim", init_from=f"runs/{algorithm}/Sim_2", **OPTIONS, **options)
    assert again.path.name == "Sim_3"
    assert {path.name for path in Path("/").iterdir()} == before


def test_evaluations_and_videos_find_their_files(tmp_path):
    run = hr.train("ppo", "sim.py:Sim", num_steps=10, **OPTIONS)
    for seed in (0, 1):
        assert hr.evaluate(run.policy, "sim.py:Sim", episodes=3, seed=seed).mean == 5.0
    pytest.importorskip("PIL")
    video = hr.play(run.policy, "sim.py:Sim", "sim.gif")
    assert video.path == tmp_path / "sim.gif" and video.path.exists() and Path.cwd() == tmp_path
