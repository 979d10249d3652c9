"""Collecting with policies that are compiled: the columns of plain PyTorch, whatever the environments are."""

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.bindings.collecting import compiled_collecting
from headrace.core import fused
from headrace.parallel.collector import steps


class Residual(hr.ActorCritic):
    """A network of a user's."""

    def __init__(self, observation_space, action_space, seed=0):
        super().__init__(observation_space, action_space, hidden=(16,), seed=seed)
        torch.manual_seed(seed)
        self.actor = nn.Sequential(self.actor, nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 16))


class Counting(Residual):
    """A policy whose act() cannot be compiled."""

    def act(self, observation, rnn_state, random):
        if observation.sum().item() > 1e9:
            raise ValueError
        return super().act(observation, rnn_state, random)


CASES = {
    "one block": ("CartPole-v1", 40, {"policy": Residual}),
    "two blocks": ("Pendulum-v1", 100, {"policy": Residual}),
    "three actions": ("Reach", 70, {"policy": Residual}),
    "one environment": ("CartPole-v1", 1, {"policy": Residual, "minibatch_size": 8}),
    "gru": ("CartPole-v1", 40, {"recurrent": "gru", "rnn_size": 16, "sequence_length": 4}),
    "of Python": ("gymnasium:CartPole-v1", 3, {"policy": Residual, "minibatch_size": 8}),
}


@pytest.fixture(autouse=True)
def said(monkeypatch):
    monkeypatch.setattr(fused, "_said", set())


def trained(env, num_envs, settings):
    usual = {} if "policy" in settings else {"normalize_observation": False}  # which is of Headrace's networks
    settings = {"num_steps": 16, "minibatch_size": 64, **usual, **settings}
    return hr.Trainer("ppo", env, num_envs=num_envs, seed=3, **settings)


def collected(env, num_envs, settings, plain):
    """The second rollout, and the recurrent state after it."""
    with fused.plain_only(plain):
        trainer = trained(env, num_envs, settings)
        trainer.collector.collect()
        rollout = trainer.collector.collect()
    columns = {name: getattr(rollout, name).clone() for name in rollout.columns}
    state = trainer.collector.rnn_state
    return columns | ({} if state is None else {"state": state})


@pytest.mark.parametrize("name", CASES)
def test_columns_are_the_plain_ones(name):
    found, expected = (collected(*CASES[name], plain) for plain in (False, True))
    assert found.keys() == expected.keys()
    for key in found:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-3, atol=1e-3, msg=key)


@pytest.mark.parametrize("name", ["one block", "three actions", "of Python"])
def test_the_compiled_policy_serves(name, monkeypatch):
    trainer = trained(*CASES[name])
    called = {kind: 0 for kind in (compiled_collecting._Steps, compiled_collecting.Rows)}
    for kind in called:

        def run(acts, collector, first_step, kind=kind, own=kind.run):
            called[kind] += 1
            own(acts, collector, first_step)

        monkeypatch.setattr(kind, "run", run)
    with torch.no_grad():
        assert fused.kernel_of(steps, trainer.collector, 0) is compiled_collecting.steps
    trainer.collector.collect()
    # all steps of compiled environments in one call, with the value of the last observation; others' one by one
    assert [*called.values()] == ([0, 1] if name == "of Python" else [1, 0])
    acts = compiled_collecting._acts.last(trainer.collector.rollout)
    assert name == "of Python" or acts.last is not None


def test_the_latest_weights_act():
    found = []
    for plain in (False, True):
        trainer = trained("CartPole-v1", 40, {"policy": Residual})
        with fused.plain_only(plain):
            trainer.collector.collect()
            with torch.no_grad():
                for parameter in trainer.algorithm.policy.parameters():
                    parameter.mul_(1.5)
            found.append(trainer.collector.collect().value.clone())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_bits_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(compiled_collecting, "WORTH_HELP", 0)
    monkeypatch.setattr("headrace.bindings.compiled.loss_program.WORTH_HELP", 0)
    found = []
    for threads in ("1", "2"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        found.append(collected("Pendulum-v1", 200, {"policy": Residual}, False))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_an_act_that_cannot_be_compiled_runs_plain_and_says_why(capsys):
    trainer = trained("CartPole-v1", 40, {"policy": Counting})
    trainer.collector.collect()
    said = capsys.readouterr().err
    assert "collector.steps runs in plain PyTorch: test_compiled_collecting.py" in said
