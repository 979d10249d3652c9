"""The benchmarks run, quickly, and print and keep what they promise: so they never rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def on_path(monkeypatch):
    """Benchmarks import one another as programs do: from their own folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(name: str, tmp_path: Path, *flags: object) -> tuple[str, dict]:
    """What a benchmark prints, and the JSON object of its last line, which is also kept."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--results", str(tmp_path)]
    done = subprocess.run([*command, *map(str, flags)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert (tmp_path / f"{name}.jsonl").read_text() == last + "\n"
    result = json.loads(last)
    assert result["benchmark"] == name
    assert {"cpu", "cores", "python", "versions"} <= result["machine"].keys()
    return done.stdout, result


def test_env_throughput(tmp_path):
    printed, result = run("env_throughput", tmp_path, "--libraries", "headrace", "gymnasium", "--num-envs", 1, 64)
    assert "median of three windows" in printed
    kinds = {(row["library"], row["config"], row["num_envs"]) for row in result["rows"]}
    assert {("headrace", "serial", 64), ("gymnasium", "loop", 1), ("gymnasium", "vectorised", 64)} <= kinds
    for row in result["rows"]:
        assert {"library", "config", "backend", "num_envs", "threads", "sps"} <= row.keys()
        assert 0 < row["sps_min"] <= row["sps"] <= row["sps_max"]


def test_solve(tmp_path):
    printed, result = run("solve", tmp_path, "--max-steps", 1024, "--set", "num_envs=8", "num_steps=128")
    (row,) = result["rows"]
    names = "library algorithm env seed cache solved held steps train_s total_s held_train_s held_total_s eval_mean"
    assert set(names.split()) <= row.keys()
    assert (row["library"], row["env"], row["seed"], row["cache"]) == ("headrace", "CartPole-v1", 0, "warm")
    assert row["held"] or row["last_step"] >= 1024
    assert "held" in printed


def test_a_task_is_solved_at_the_third_passed_check_in_a_row(on_path, monkeypatch):
    import judge

    means = iter([480.0, 300.0, 475.0, 490.0, 500.0])
    trial = judge.Judge("CartPole-v1", process_start=0.0)
    monkeypatch.setattr(trial.evaluation, "mean", lambda act: (next(means), True))
    over = [trial.check(step, act=None) for step in (1000, 1024, 2048, 3000, 3072, 4096, 5120)]
    assert over == [False] * 6 + [True]  # at 1,000 and 3,000 nothing is checked
    row = trial.row()
    assert (row["steps"], row["eval_mean"]) == (1024, 480.0)
    assert (row["held_steps"], row["held_eval_mean"]) == (5120, 500.0)
    assert row["held_train_s"] >= row["train_s"]


def test_a_run_out_of_steps_is_over_and_not_solved(on_path, monkeypatch):
    import judge

    trial = judge.Judge("CartPole-v1", process_start=0.0, max_steps=1500)
    monkeypatch.setattr(trial.evaluation, "mean", lambda act: (100.0, False))
    assert [trial.check(1200, act=None), trial.check(1500, act=None)] == [False, True]
    assert trial.row()["held"] is False
    assert trial.row()["train_s"] is None


def test_an_evaluation_is_given_up_once_the_threshold_is_out_of_reach(on_path):
    import judge
    import numpy as np

    evaluation = judge.Evaluation("CartPole-v1", judge.TASKS["CartPole-v1"])
    mean, complete = evaluation.mean(lambda observation: np.zeros(len(observation), int))  # pushes left, and falls
    assert not complete
    assert mean < 20


def test_ranges_of_seeds(on_path):
    from solve import seeds

    assert seeds("0-2,7") == [0, 1, 2, 7]


def test_a_failing_program_says_why(on_path):
    from common import run_program

    with pytest.raises(RuntimeError, match="invalid int value: 'one'"):
        run_program(sys.executable, "solve_one.py", "headrace", "--env", "CartPole-v1", "--seed", "one", timeout=60)
