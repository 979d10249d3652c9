"""Infos that log_info names are logged for each episode: in monitor.csv, metrics.jsonl and TensorBoard's tags."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import headrace as hr
from headrace.data.spaces import Box, Discrete
from headrace.runs.logs import tensorboard_tags


class Coin(gymnasium.Env):
    """Episodes of 3 steps; every second one, of an environment, is a success."""

    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)
    episode = -1

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        ended = self.steps == 3
        info = {"is_success": self.episode % 2 == 1, "distance": np.float32(self.episode)} if ended else {}
        return np.zeros(1, np.float32), 1.0, ended, False, info


OPTIONS = {"num_envs": 2, "num_steps": 5, "total_steps": 60, "window": 4, "progress": "none", "scale": False}
NAMES = ("is_success", "distance")


def vector(mode):
    """A function that makes a gymnasium.vector.VectorEnv of coins."""
    return lambda num_envs: SyncVectorEnv([Coin] * num_envs, autoreset_mode=mode)


@pytest.mark.parametrize(
    ("env", "processes"),
    [
        *((Coin, processes) for processes in ({}, {"workers": 2}, {"actors": 1})),
        *((vector(mode), {}) for mode in AutoresetMode),
    ],
)
def test_infos_of_last_steps_are_logged(env, processes, tmp_path):
    run = hr.train("ppo", env, log_info=NAMES, log_folder=str(tmp_path), hidden=(4,), **OPTIONS, **processes)
    header, *rows = (run.path / "monitor.csv").read_text().splitlines()[1:]
    assert header == "r,l,t,is_success,distance" and len(rows) > 10
    values = [row.split(",") for row in rows]
    assert [float(row[4]) for row in values[:4]] == [0, 0, 1, 1]  # episode by episode, of two environments
    assert all(float(row[3]) == float(row[4]) % 2 for row in values)
    last = json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])
    recent = values[-4:]
    assert last["success_rate"] == pytest.approx(np.mean([float(row[3]) for row in recent]))
    assert last["info/distance"] == pytest.approx(np.mean([float(row[4]) for row in recent]))
    tags = tensorboard_tags(last)
    assert tags["rollout/success_rate"] == last["success_rate"] and "rollout/distance" in tags


@pytest.mark.parametrize("env", [Coin, vector(AutoresetMode.NEXT_STEP)])
def test_evaluations_have_the_infos_that_trainings_log(env, tmp_path, capsys):
    given = OPTIONS | {"eval_freq": 30, "eval_episodes": 6, "eval_envs": 2}
    run = hr.train("ppo", env, log_info=NAMES, log_folder=str(tmp_path), hidden=(4,), **given)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row for row in rows if "eval_return" in row]
    assert evaluated and tensorboard_tags(evaluated[0])["eval/success_rate"] == evaluated[0]["eval_success_rate"]
    assert all(row["eval/distance"] >= row["eval_success_rate"] >= 0 for row in evaluated)
    found = run.evaluate(6)  # three rounds of two environments
    first = 1 if env is Coin else 3  # of the second round: this vector is reset twice before it
    assert found.infos == {"is_success": (0, 0, 1, 1, 0, 0), "distance": (0, 0, first, first, 2 * first, 2 * first)}
    assert found.means() == {"is_success": pytest.approx(1 / 3), "distance": first}
    assert f"is_success 0.3333, distance {first}" in str(found) and "log_info" not in capsys.readouterr().err


def test_an_evaluation_leaves_out_numbers_that_an_episode_does_not_have():
    found = hr.Evaluation(1.0, 0.0, (1.0, 1.0), (3, 3), 0.0, infos={"a": (float("nan"), 4.0), "b": (float("nan"),) * 2})
    assert found.means() == {"a": 4.0} and str(found).endswith(", a 4")


def test_what_cannot_be_logged_is_refused(tmp_path):
    options = OPTIONS | {"log_folder": str(tmp_path), "hidden": (4,)}
    with pytest.raises(
        ValueError, match="log_info names goals, and the info of an episode's last step has 'is_success'"
    ):
        hr.train("ppo", Coin, log_info=("goals",), **options)
    with pytest.raises(ValueError, match="; did you mean 'distance'"):
        hr.train(
            "ppo", Coin, log_info=("distence",), **options | {"log_folder": str(tmp_path / "new"), "num_steps": 20}
        )
    assert not [*tmp_path.glob("new/ppo/*")]  # not a step was recorded
    with pytest.raises(ValueError, match=r"log_info=.* is for Gymnasium environments .* and not for CartPole-v1"):
        hr.train("ppo", "CartPole-v1", log_info=("is_success",), **options)


class Forgetful(Coin):
    """Every third episode says nothing of its success, or None."""

    def step(self, action):
        seen, reward, ended, truncated, info = super().step(action)
        if ended and self.episode % 3 == 0:
            info = {**info, "is_success": None} if self.episode % 2 else {"distance": info["distance"]}
        return seen, reward, ended, truncated, info


@pytest.mark.parametrize("env", [Forgetful, lambda num_envs: SyncVectorEnv([Forgetful] * num_envs)])
def test_an_episode_without_success_does_not_count_and_does_not_end_the_training(env, tmp_path, capsys):
    options = {**OPTIONS, "progress": "plain", "log_folder": str(tmp_path), "hidden": (4,)}
    run = hr.train("ppo", env, log_info=NAMES, **options)
    values = [row.split(",") for row in (run.path / "monitor.csv").read_text().splitlines()[2:]]
    told = [float(row[3]) for row in values if row[3]]
    assert {row[4] for row in values if not row[3]} <= {"0.0", "3.0", "6.0", "9.0", "12.0"} and len(told) < len(values)
    assert run.metrics["success_rate"] == pytest.approx(np.mean(told[-4:]))
    assert f"success rate {run.metrics['success_rate']:.0%}" in capsys.readouterr().out
    assert f"success rate {run.metrics['success_rate']:.0%}" in repr(run)


def test_a_success_that_never_comes_is_said_once(tmp_path, capsys):
    class Never(Coin):
        def step(self, action):
            return (*super().step(action)[:4], {"distance": 1.0})

    run = hr.train("ppo", Never, log_info=NAMES, log_folder=str(tmp_path), hidden=(4,), **OPTIONS)
    assert "success_rate" not in run.metrics and run.metrics["info/distance"] == 1.0
    assert capsys.readouterr().err.count("there is no success_rate until one has it") == 1


def test_success_rates_are_in_the_tables_of_runs_and_of_seeds(tmp_path, capsys, monkeypatch):
    from headrace.cli.main import main

    monkeypatch.chdir(tmp_path)
    hr.train("ppo", Coin, log_info=("is_success",), hidden=(4,), **OPTIONS)
    hr.train("ppo", Coin, hidden=(4,), **OPTIONS)
    assert main(["runs"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert "success rate" in heading and "50%" in rows[0] and "%" not in rows[1]
