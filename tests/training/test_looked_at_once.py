"""Trainings that look at functions and modules once: where none of the user's code runs in them, and nowhere else."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.algorithms import ppo
from headrace.cli import train as command
from headrace.cli.main import main
from headrace.core.closure import Reach

SMALL = {"num_envs": 4, "num_steps": 16, "hidden": (8,), "minibatch_size": 32, "epochs": 1, "registered": False}
SMALL |= {"total_steps": 64 * 40, "progress": "none"}
OWN = """
import headrace as hr


class Own(hr.ActorCritic):
    pass
"""


@pytest.fixture
def looks(monkeypatch):
    """How often it was looked whether functions are what they were."""
    found, before = [], Reach.is_current
    monkeypatch.setattr(Reach, "is_current", lambda reach: found.append(reach) or before(reach))
    return found


def test_nothing_of_the_users_is_looked_at_once(looks):
    hr.train("ppo", "CartPole-v1", **SMALL)
    assert 0 < len(looks) < 40  # of 40 updates


def test_the_command_does_the_same(looks):
    flags = "--num-envs 4 --num-steps 16 --hidden 8 --minibatch-size 32 --epochs 1 --no-registered --total-steps 2560"
    main(["train", "ppo", "CartPole-v1", *flags.split(), "--progress", "none", "--final-episodes", "0"])
    assert 0 < len(looks) < 40


@pytest.mark.parametrize("own", ["policy", "env", "function", "body", "each"])
def test_code_of_the_users_is_followed(own, looks, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    if own == "policy":
        hr.train("ppo", "CartPole-v1", policy=f"{tmp_path / 'own.py'}:Own", **SMALL)
    elif own == "env":
        hr.train("ppo", "gymnasium:CartPole-v1", **SMALL, backend="inline")
    elif own == "function":
        hr.train("ppo", "CartPole-v1", **SMALL, schedules={"clip": lambda progress: 0.2})
    elif own == "body":
        with hr.Training("ppo", "CartPole-v1", **SMALL) as training:
            for _ in training:
                pass
    else:
        command.train("ppo", "CartPole-v1", each=lambda training, row: None, **SMALL)
    assert len(looks) > 60


def test_a_function_that_was_replaced_before_runs(monkeypatch):
    hr.train("ppo", "CartPole-v1", **SMALL | {"total_steps": 128})  # its kernel is known
    calls, before = [], ppo.ppo_loss
    monkeypatch.setattr(ppo, "ppo_loss", lambda *given: calls.append(1) or before(*given))
    hr.train("ppo", "CartPole-v1", **SMALL | {"total_steps": 128})
    assert len(calls) >= 2


def test_the_policy_is_looked_at_again_afterwards():
    run, seen = hr.train("ppo", "CartPole-v1", **SMALL), []
    before, _ = run.policy.predict([0.0, 0.0, 0.0, 0.0])
    run.policy.actor.register_forward_hook(lambda *given: seen.append(1))
    run.policy.predict([0.0, 0.0, 0.0, 0.0])
    assert seen and before in (0, 1)
