"""Curricula: parameters follow the episodes of each level, in the log, on resuming, and in other processes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.cli.main import main
from headrace.envs.curriculum import Curriculum
from headrace.runs import checkpoint
from headrace.training.config import read_toml

SMALL = {"num_envs": 4, "num_steps": 16, "hidden": [8], "target_return": None, "registered": False, "progress": "none"}
LEVELS = {"gravity": [9.8, 12.0, 20.0], "force": [10.0, 9.0, 8.0], "above": 15.0, "episodes": 8}


class Door(gymnasium.Env):
    """An episode of `length` steps, which succeeds where the last action was 1 or the door is open."""

    observation_space, action_space = Box(-1, 100, (1,)), Discrete(2)

    def __init__(self):
        self.length, self.open = 2, 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.array([self.length], np.float32), {}

    def step(self, action):
        self.steps += 1
        ended = self.steps >= self.length
        info = {"is_success": bool(self.open)} if ended else {}
        return np.array([self.length], np.float32), 1.0, ended, False, info


class Recorded:
    """Environments that note what set_params() is given."""

    def __init__(self):
        self.given = []

    def set_params(self, **params):
        self.given.append(params)


def test_the_next_level_begins_when_as_many_episodes_succeed():
    env = Recorded()
    curriculum = Curriculum({"gravity": [1, 2, 3], "above": 10, "episodes": 3}, env, [])
    assert env.given == [{"gravity": 1}] and curriculum.row() == {"curriculum/level": 0.0, "curriculum/gravity": 1.0}
    curriculum.follow([30.0, 30.0], {})  # too few
    assert curriculum.level == 0
    curriculum.follow([-35.0], {})  # mean 8.3
    assert curriculum.level == 0
    curriculum.follow([5.0, 60.0], {})  # of the last three: 10
    assert curriculum.level == 1 and env.given[-1] == {"gravity": 2}
    curriculum.follow([90.0, 90.0], {})  # those of the level before do not count
    assert curriculum.level == 1
    curriculum.follow([90.0], {})
    curriculum.follow([90.0] * 5, {})  # there is no further one
    assert curriculum.level == 2 and len(env.given) == 3


def test_success_rates_leave_out_episodes_without_one():
    curriculum = Curriculum(
        {"size": [1, 2], "above": 0.5, "episodes": 2, "by": "success_rate"}, Recorded(), ["is_success"]
    )
    curriculum.follow([9.0, 9.0], {"is_success": [0.0, float("nan")]})
    assert curriculum.level == 0
    curriculum.follow([0.0], {"is_success": [1.0]})
    assert curriculum.level == 1


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"above": 3}, "has the values"),
        ({"gravity": [9.8], "above": 3}, "two or more"),
        ({"gravity": [9.8, 12], "force": [1, 2, 3], "above": 3}, "as many"),
        ({"gravity": [9.8, 12], "abov": 3}, "did you mean 'above'"),
        ({"gravity": [9.8, 12]}, "needs `above`"),
        ({"gravity": [9.8, 12], "above": 3, "by": "length"}, "'return' or 'success_rate'"),
        ({"gravity": [9.8, 12], "above": 3, "by": "success_rate"}, "log_info"),
        ({"gravity": [9.8, 12], "above": 3, "episodes": 0}, "from 1 on"),
        ({"weight": [9.8, 12], "above": 3}, "weight"),
    ],
)
def test_wrong_curricula_are_named_before_the_training(settings, wrong, tmp_path):
    with pytest.raises(ValueError, match=wrong):
        hr.train("ppo", "CartPole-v1", curriculum=settings, log_folder=tmp_path, **SMALL)
    assert not [*tmp_path.iterdir()]


def test_actors_have_their_environments_elsewhere(tmp_path):
    with pytest.raises(ValueError, match="those of actors are in their processes"):
        hr.train("ppo", "CartPole-v1", curriculum=LEVELS, actors=1, log_folder=tmp_path, **SMALL)


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def state(folder: Path) -> dict:
    return checkpoint.load(folder / "last", "training")


def test_a_training_has_its_levels_in_the_log_and_resumes_with_the_same_bits(tmp_path):
    given = {"curriculum": LEVELS, "log_folder": tmp_path, **SMALL}
    whole = hr.train("ppo", "CartPole-v1", total_steps=2_000, **given)
    with hr.Training("ppo", "CartPole-v1", total_steps=2_000, **given) as t:
        seen = []
        for row in t:
            seen.append((row.details["curriculum/level"], dict(t.env.params)))
            if row.steps >= 1_000:
                t.stop("half")
    level = state(t.run.path)["learner"]["episodes"]["curriculum"]["level"]
    assert level == seen[-1][0] >= 1
    assert all(params["gravity"] == LEVELS["gravity"][int(level)] for level, params in seen)
    resumed = hr.train(resume=t.run.path)
    assert rows(whole.path)[-1]["curriculum/level"] == 2 == rows(resumed.path)[-1]["curriculum/level"]
    assert rows(resumed.path)[-1]["curriculum/force"] == 8.0
    one, other = (state(run.path)["learner"] for run in (whole, resumed))
    assert one["episodes"] == other["episodes"]
    networks = [learner["algorithm"]["policy"] for learner in (one, other)]
    assert all(torch.equal(x, networks[1][name]) for name, x in networks[0].items())


@pytest.mark.parametrize("workers", [None, 2])
def test_attributes_of_gymnasium_environments_by_success(workers, tmp_path):
    curriculum = {"length": [2, 5], "above": 0.9, "by": "success_rate", "episodes": 10}
    given = {"log_info": ["is_success"], "workers": workers, "total_steps": 400, "log_folder": tmp_path}
    run = hr.train("ppo", Door, curriculum=curriculum, **given, **SMALL)
    assert run.metrics["curriculum/level"] == 1 and run.metrics["success_rate"] == 1
    lengths = [int(line.split(",")[1]) for line in (run.path / "monitor.csv").read_text().splitlines()[2:]]
    assert lengths[:10] == [2] * 10 and lengths[-5:] == [5] * 5


def test_the_command_line_and_files_take_a_curriculum(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--num-envs", "4", "--num-steps", "16", "--hidden", "8", "--total-steps", "800", "--final-episodes", "0"]
    flags = ["--curriculum", "gravity=[9.8,15]", "above=10", "episodes=5"]
    assert main(["train", "ppo", "CartPole-v1", *flags, *words]) == 0
    folder = tmp_path / "runs/ppo/CartPole-v1_1"
    assert rows(folder)[-1]["curriculum/gravity"] == 15
    saved = read_toml(folder / "config.toml")["curriculum"]
    assert saved == {"gravity": [9.8, 15], "above": 10, "episodes": 5}
    assert main(["train", "--config", str(folder / "config.toml"), "--final-episodes", "0"]) == 0
    assert rows(tmp_path / "runs/ppo/CartPole-v1_2")[-1]["curriculum/level"] == 1


def test_gymnasium_s_own_vectors_name_the_backends_that_have_parameters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    levels = {"gravity": [9.8, 12.0], "above": 15.0, "episodes": 4}
    with pytest.raises(ValueError, match=r"backend 'vector', and have no set_params.*backend='inline' or 'workers'"):
        hr.Trainer("ppo", "gymnasium:CartPole-v1", curriculum=levels, **SMALL)
    with closing(hr.Trainer("ppo", "gymnasium:CartPole-v1", curriculum=levels, backend="inline", **SMALL)) as trainer:
        assert trainer.env.changed_params == {"gravity": 9.8}
