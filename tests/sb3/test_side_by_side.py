"""`headrace compare sb3`: both libraries get the same arguments. Trains where Stable-Baselines3 is installed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from headrace.cli import compare
from headrace.cli.main import main
from headrace.sb3.zoo import side_by_side
from headrace.sb3.zoo.side_by_side import Result


@pytest.fixture
def as_if_installed(monkeypatch):
    monkeypatch.setattr(side_by_side, "require", lambda package, message: None)


def test_without_the_library_a_line_has_the_command(capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "stable_baselines3", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["compare", "sb3", "ppo", "CartPole-v1"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("pip install stable-baselines3")
    assert main(["compare", "sb3", "tqc", "Pendulum-v1"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("pip install sb3-contrib")


def test_settings_are_those_that_mean_the_arguments(as_if_installed):
    task = side_by_side.task("ppo", "CartPole-v1", {"n_envs": 4, "n_steps": 32, "learning_rate": 1e-3}, steps=500)
    assert task.own["policy"] == "MlpPolicy" and task.own["n_timesteps"] == 500
    expected = {"num_envs": 4, "num_steps": 32, "minibatch_size": 64, "epochs": 10, "learning_rate": 1e-3}
    expected |= {"total_steps": 500, "gae_lambda": 0.95, "hidden": (64, 64), "registered": False}
    assert {name: task.settings[name] for name in expected} == expected
    assert side_by_side.task("dqn", "CartPole-v1", {}).settings["total_steps"] == 100_000


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        ("ppo", {"frame_stack": 4}, "frame_stack=4 is not compared: it would be another environment"),
        ("ppo", {"seed": 0}, "seed=0 is not compared: give --seeds"),
        ("ppo", {"n_step": 4}, "n_step is no argument of PPO; did you mean 'n_steps'"),
        ("ppo", {"rms_prop_eps": 1.0}, "rms_prop_eps is no argument"),
        ("apex", {}, "there is no model of apex"),
    ],
)
def test_arguments_that_one_library_has_not_are_refused(algorithm, given, message, as_if_installed):
    with pytest.raises(ValueError, match=message):
        side_by_side.task(algorithm, "CartPole-v1", given)


def test_schedules_of_the_zoo_fall_to_zero():
    assert side_by_side._plain("lin_0.5")(0.5) == 0.25 and side_by_side._plain([1, "step"]) == (1, "step")
    assert side_by_side._plain("auto") == "auto"


def test_the_table_has_means_of_each_library():
    results = [
        Result(library, seed, seed + base, math.nan, 1000, 2.0, 0.5, Path())
        for library, base in (("headrace", 0.0), ("stable-baselines3", 10.0))
        for seed in (1, 3)
    ]
    rows = [line.split() for line in compare.table(results).splitlines()]
    assert rows[1] == ["headrace", "1", "1", "nan", "1,000", "2.0", "500", "0.5"]
    assert [row[:3] for row in rows[-2:]] == [["headrace", "mean", "2"], ["stable-baselines3", "mean", "12"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rllib", "ppo", "CartPole-v1"], "compare has one other library, sb3"),
        (["--total-steps", "0"], "must be 1 or more"),
    ],
)
def test_wrong_words_are_refused(words, message, capsys):
    words = words if len(words) > 2 else ["sb3", "ppo", "CartPole-v1", *words]
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["ppo", "td3"])
def test_both_train(algorithm, tmp_path, capsys):
    pytest.importorskip("stable_baselines3")
    own = {"ppo": ["n_envs=2", "n_steps=32"], "td3": ["learning_starts=50", "batch_size=16"]}[algorithm]
    file = tmp_path / "zoo.yml"
    file.write_text("Pendulum-v1: {n_timesteps: 600, learning_rate: lin_0.001, policy_kwargs: 'dict(net_arch=[16])'}\n")
    own += ["normalize=true"] if algorithm == "ppo" else []
    words = ["compare", "sb3", algorithm, "Pendulum-v1", "--zoo", str(file), "--episodes", "1", "--arguments", *own]
    words += ["--total-steps", "500"]  # an episode of Pendulum has 200, of each of two environments
    assert main([*words, "--folder", str(tmp_path / "runs"), "--output", str(tmp_path / "x.svg")]) == 0
    said = capsys.readouterr().out
    rows = {row[0]: row for row in map(str.split, said.splitlines()) if row[1:2] == ["0"]}
    assert all(np.isfinite(float(rows[name][2])) and float(rows[name][3]) < 0 for name in rows) and len(rows) == 2
    assert all(500 <= int(row[4]) < 600 for row in rows.values())
    assert (tmp_path / "x.svg").stat().st_size > 10_000
