"""Trainings that look at functions and modules once: where none of the user's code runs in them, and nowhere else."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest
import torch

import headrace as hr
from headrace.algorithms import ppo
from headrace.bindings.compiled.compiled_losses import CompiledLoss
from headrace.cli import train as command
from headrace.cli.main import main
from headrace.core.closure import Reach
from headrace.training import loop
from headrace.training.trainer import Trainer

SMALL = {"num_envs": 4, "num_steps": 16, "hidden": (8,), "minibatch_size": 32, "epochs": 1, "registered": False}
SMALL |= {"total_steps": 64 * 40, "progress": "none"}
OWN = """
import headrace as hr
from headrace.algorithms import ppo

SCALE = 1.0


def scaled(policy, batch, config):
    loss, metrics = ppo.ppo_loss(policy, batch, config)
    return loss * SCALE, metrics


class Own(hr.ActorCritic):
    def value(self, observation, rnn_state=None):
        return super().value(observation, rnn_state) * SCALE


class Counting(Own):
    def update_statistics(self, rollout, returns):
        super().update_statistics(rollout, returns)


class Changing(Own):
    def act(self, observation, rnn_state, random):
        global SCALE
        if random is None:  # in evaluations
            SCALE = 0.5
        return super().act(observation, rnn_state, random)


class Mine(hr.PPO):
    loss = staticmethod(scaled)


MineConfig = BeginningConfig = ppo.PPOConfig


class Beginning(hr.PPO):
    def begin_update(self, *given):
        return super().begin_update(*given)
"""


@pytest.fixture
def looks(monkeypatch):
    """List with an entry for each time that an iteration has checked whether functions are unchanged."""
    found, inside, before, iterate = [], [], Reach.is_current, Trainer.iterate

    def counted(reach):
        found.extend(inside)
        return before(reach)

    def iteration(*given):
        inside.append(1)
        try:
            return iterate(*given)
        finally:
            inside.clear()

    monkeypatch.setattr(Reach, "is_current", counted)
    monkeypatch.setattr(Trainer, "iterate", iteration)
    return found


def test_nothing_of_the_users_is_looked_at_once(looks):
    hr.train("ppo", "CartPole-v1", **SMALL)
    assert 0 < len(looks) < 40  # of 40 updates


def test_the_command_does_the_same(looks):
    flags = "--num-envs 4 --num-steps 16 --hidden 8 --minibatch-size 32 --epochs 1 --no-registered --total-steps 2560"
    main(["train", "ppo", "CartPole-v1", *flags.split(), "--progress", "none", "--final-episodes", "0"])
    assert 0 < len(looks) < 40


@pytest.mark.parametrize("given", [{"policy": "Own"}, {"algorithm": "Mine"}])
def test_what_programs_are_made_of_is_looked_at_once(given, looks, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    given = {name: f"{tmp_path / 'own.py'}:{x}" for name, x in given.items()}
    hr.train(**{"algorithm": "ppo", "env": "CartPole-v1", **SMALL, **given, "total_steps": 64 * 20})
    began = len(looks)
    looks.clear()
    hr.train(**{"algorithm": "ppo", "env": "CartPole-v1", **SMALL, **given, "total_steps": 64 * 95})
    assert len(looks) < began + 75  # of 75 more updates, in each of which it was looked five times


def test_programs_are_compared_again_at_a_later_call(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    calls, before = [], CompiledLoss._differs_later
    monkeypatch.setattr(
        CompiledLoss, "_differs_later", lambda *given: calls.append(given[1].use.calls) or before(*given)
    )
    hr.train("ppo", "CartPole-v1", policy=f"{tmp_path / 'own.py'}:Own", **SMALL | {"total_steps": 64 * 120})
    assert [call for call in calls if call >= 100] == [100]  # of the loss


def weights_after(tmp_path, kind, **settings):
    """The weights of a training with a class of a file that is read again."""
    own = tmp_path / "own.py"
    for module in [x for x in sys.modules.values() if getattr(x, "__file__", "") == str(own)]:
        module.SCALE = 1.0
    run = hr.train("ppo", "CartPole-v1", policy=f"{own}:{kind}", **SMALL | settings)
    return torch.cat([p.detach().flatten() for p in run.policy.parameters()])


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Changing", {"eval_freq": 640, "eval_episodes": 1}),
        ("Own", {"curriculum": {"gravity": [9.8, 15.0], "above": 12, "episodes": 5}}),
    ],
)
def test_what_changes_in_the_training_takes_effect(kind, settings, tmp_path, monkeypatch):
    """Weights have the same bits as where all is looked at before each call."""
    (tmp_path / "own.py").write_text(OWN)
    once = weights_after(tmp_path, kind, **settings)
    without = weights_after(tmp_path, kind)
    monkeypatch.setattr(loop, "looked_once", lambda **given: nullcontext())
    assert torch.equal(once, weights_after(tmp_path, kind, **settings))
    assert not torch.equal(once, without)


@pytest.mark.parametrize("own", ["policy", "algorithm", "env", "function", "body", "each"])
def test_code_of_the_users_is_followed(own, looks, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    if own == "policy":
        hr.train("ppo", "CartPole-v1", policy=f"{tmp_path / 'own.py'}:Counting", **SMALL)
    elif own == "algorithm":
        hr.train(f"{tmp_path / 'own.py'}:Beginning", "CartPole-v1", **SMALL)
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
