"""Reasons for the end of a run are the same in the Run, `headrace runs`, `headrace eval` and the table of --seeds."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from helpers import forked

import headrace as hr
from headrace.cli.main import main
from headrace.cli.run_policy import describe
from headrace.data.spaces import Box, Discrete
from headrace.runs.listing import summary
from headrace.runs.run import ended_by

SMALL = {"num_envs": 2, "num_steps": 8, "total_steps": 48, "progress": "none", "hidden": (8,), "minibatch_size": 8}
SMALL |= {"window": 2, "on_interrupt": "return"}


class Short(gymnasium.Env):
    """Three steps an episode. `signal_at`: how many environments are made, before the next one sends SIGINT."""

    observation_space, action_space = Box(-1, 9, (1,), np.float32), Discrete(2)
    made, signal_at, fails_at = 0, 0, 0

    def __init__(self):
        Short.made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if Short.signal_at and Short.made >= Short.signal_at:
            Short.signal_at = 0
            os.kill(os.getpid(), signal.SIGINT)
        if Short.fails_at and Short.made >= Short.fails_at:
            raise ValueError("it broke")
        return np.full(1, self.steps, np.float32), 1.0, self.steps == 3, False, {}


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    Short.made = Short.signal_at = Short.fails_at = 0
    monkeypatch.chdir(tmp_path)


def said(run):
    """Reason that each of them gives, which must be the same."""
    told = describe(run.path / "last").rpartition("the run ended by ")[2]
    assert run.reason == summary(run.path).state == ended_by(run.path) == told
    return run.reason


@pytest.mark.parametrize("limit", [{}, {"max_seconds": 0.01}, {"max_episodes": 3}, {"target_return": 3.0}])
def test_of_a_limit(limit):
    run = hr.train("ppo", Short, **SMALL | {"total_steps": None if limit else 48} | limit)
    assert said(run) == next(iter(limit), "total_steps") and not run.interrupted and run.signal == ""


def test_of_a_signal_in_the_training():
    Short.signal_at = 2
    run = hr.train("ppo", Short, **SMALL)
    assert said(run) == "SIGINT" == run.signal and run.interrupted


def test_of_a_signal_while_the_best_policy_is_chosen(capsys):
    Short.signal_at = 3  # after the two of the training
    run = hr.train("ppo", Short, **SMALL | {"progress": "plain", "learning_rate": 0.1})
    assert said(run) == "total_steps" and run.interrupted and run.signal == "SIGINT"
    out = capsys.readouterr().out
    assert "is chosen by training episodes alone: SIGINT came first" in out and "ended by total_steps" in out
    assert "to go on" not in out and (run.path / "best").is_dir()
    Short.signal_at = 3
    Short.made = 0
    with pytest.raises(KeyboardInterrupt):
        hr.train("ppo", Short, **SMALL | {"on_interrupt": "raise"})


def test_of_a_signal_in_the_last_evaluation_which_resuming_makes():
    Short.signal_at = 4  # the environments of evaluations are made before the training
    Short.made = 4
    run = hr.train("ppo", Short, eval_freq=48, **SMALL)
    assert said(run) == "SIGINT" and run.interrupted
    again = hr.train(resume=run.path, env=Short, on_interrupt="return")
    assert said(again) == "total_steps" and not again.interrupted and again.metrics["eval_return"] == 3.0


def test_of_a_word_of_ones_own():
    with hr.Training("ppo", Short, **SMALL) as training:
        for _ in training:
            training.stop("good enough")
    assert said(training.run) == "good enough"


def test_of_an_exception_and_of_one_after_it_was_resumed():
    run = hr.train("ppo", Short, **SMALL)
    assert summary(run.path).state == "total_steps"
    Short.fails_at = 1
    with pytest.raises(ValueError, match="it broke"):
        hr.train(resume=run.path, env=Short, total_steps=200)
    assert ended_by(run.path) == "" and summary(run.path).state == "interrupted"  # and not what ended it before
    assert "the run ended by" not in describe(run.path / "last")


KILLED = """
import os, signal
import headrace as hr
with hr.Training("ppo", "CartPole-v1", num_envs=2, num_steps=8, hidden=(8,), minibatch_size=8, progress="none") as t:
    for row in t:
        t.save()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_of_a_kill():
    assert forked.run([sys.executable, "-c", textwrap.dedent(KILLED)]).returncode == -signal.SIGKILL
    (path,) = Path("runs/ppo").iterdir()
    assert ended_by(path) == "" and summary(path).state == "interrupted"


def test_of_runs_that_do_not_count_their_starts():
    run = hr.train("ppo", Short, **SMALL)
    (run.path / "command.txt").unlink()  # as of a copy that has only checkpoints
    assert ended_by(run.path) == "total_steps"


def test_the_table_of_seeds_says_the_same(capsys, monkeypatch):
    from headrace.cli import train
    from headrace.core.stopping import Stopped

    def evaluate(*arguments, watch, **options):
        signal.raise_signal(signal.SIGINT)
        assert watch(0, 8)
        raise Stopped

    monkeypatch.setattr(train, "evaluate", evaluate)
    words = ["train", "ppo", "CartPole-v1", "--num-envs", "2", "--num-steps", "8", "--total-steps", "48"]
    assert main([*words, "--progress", "none", "--seeds", "3-4"]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if "CartPole-v1_1" in line and line.lstrip().startswith("3"))
    assert "total_steps" in row and "SIGINT" not in row and "not begun: seeds 4" in out
    assert summary(Path("runs/ppo/CartPole-v1_1")).state == "total_steps"
