"""Time to solve: the benchmark runs, quickly, and its judge decides for all libraries in the same way."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.benchmark import is_png, run

from benchmarks import judge
from benchmarks.returns.solve import cases, seeds


def test_solve(tmp_path):
    printed, result = run("returns.solve", tmp_path, "--max-steps", 1024, "--set", "num_envs=8", "num_steps=128")
    (row,) = result["rows"]
    names = "library algorithm env seed cache solved held steps train_s total_s held_train_s held_total_s eval_mean"
    assert set(names.split()) <= row.keys()
    assert (row["library"], row["env"], row["seed"], row["cache"]) == ("headrace", "CartPole-v1", 0, "warm")
    assert row["held"] or row["last_step"] >= 1024
    assert "held" in printed


def test_a_task_is_solved_at_the_third_passed_check_in_a_row(monkeypatch):
    means = iter([480.0, 300.0, 475.0, 490.0, 500.0])
    trial = judge.Judge("CartPole-v1", process_start=0.0)
    monkeypatch.setattr(trial.evaluation, "mean", lambda act: (next(means), True))
    over = [trial.check(step, act=None) for step in (1000, 1024, 2048, 3000, 3072, 4096, 5120)]
    assert over == [False] * 6 + [True]  # at 1,000 and 3,000 nothing is checked
    row = trial.row()
    assert (row["steps"], row["eval_mean"]) == (1024, 480.0)
    assert (row["held_steps"], row["held_eval_mean"]) == (5120, 500.0)
    assert row["held_train_s"] >= row["train_s"]


def test_a_run_out_of_steps_is_over_and_not_solved(monkeypatch):
    trial = judge.Judge("CartPole-v1", process_start=0.0, max_steps=1500)
    monkeypatch.setattr(trial.evaluation, "mean", lambda act: (100.0, False))
    assert [trial.check(1200, act=None), trial.check(1500, act=None)] == [False, True]
    assert trial.row()["held"] is False
    assert trial.row()["train_s"] is None


def test_an_evaluation_is_given_up_once_the_threshold_is_out_of_reach():
    evaluation = judge.Evaluation("CartPole-v1", judge.TASKS["CartPole-v1"])
    mean, complete = evaluation.mean(lambda observation: np.zeros(len(observation), int))  # pushes left, and falls
    assert not complete
    assert mean < 20


def test_ranges_of_seeds():
    assert seeds("0-2,7") == [0, 1, 2, 7]


def test_what_solve_is_asked_for():
    options = SimpleNamespace(library=["headrace", "sb3"], config=None, cache=["warm", "cold"])
    own = [("headrace", None, "warm"), ("headrace", None, "cold")]
    assert cases(options) == [*own, ("sb3", "large", None), ("sb3", "zoo", None)]
    options.config = ["large"]
    assert cases(options) == [("headrace", "large", "warm"), ("sb3", "large", None)]


@pytest.mark.slow
def test_return_over_time(tmp_path):
    _, result = run("returns.return_over_time", tmp_path, "--lines", "kernel, tuned")
    (row,) = result["rows"]
    times = [point["seconds"] for point in row["points"]]
    assert times == sorted(times)
    assert times[-1] >= 0.3
    assert all(0 < point["mean_return"] <= 500 for point in row["points"])
    assert is_png(tmp_path / "return_over_time.png")


@pytest.mark.slow
def test_scaling(tmp_path):
    printed, result = run("returns.scaling", tmp_path)
    rows = {(row["settings"], row["num_envs"]): row for row in result["rows"]}
    assert rows["rule", 16]["num_steps"] * 16 == rows["rule", 8]["num_steps"] * 8
    assert rows["fixed", 16]["num_steps"] == rows["fixed", 8]["num_steps"]
    assert all(row["updates"] > 0 and row["train_s"] > 0 for row in result["rows"])
    assert "rule_envs" in printed
    assert (tmp_path / "scaling.png").exists()
