"""Compiled losses and policies as a GPU computes them, on the CPU: a loop stands for each step's threads."""

import math

import pytest
import torch

import headrace as hr
from headrace.algorithms.adam import Adam
from headrace.bindings.collecting import gpu_collecting
from headrace.bindings.compiled import gpu_learning, loss_conditions
from headrace.core import fused
from headrace.kernels.rows.gpu import gpu_program
from headrace.kernels.rows.gpu.gpu_program import GpuProgram
from tests.bindings import test_compiled_collecting as collecting
from tests.bindings import test_compiled_learning as learning
from tests.bindings import test_compiled_losses as losses
from tests.bindings import test_compiled_objectives as objectives
from tests.bindings.losses import ALL
from tests.bindings.test_compiled_losses_kept import agrees


@pytest.fixture(autouse=True)
def as_on_gpu(monkeypatch):
    monkeypatch.setattr(loss_conditions, "on_gpu", lambda device: True)
    monkeypatch.setattr(fused, "_said", set())


@pytest.mark.parametrize("make", ALL)
def test_gradients_are_those_of_autograd(make):
    losses.test_gradients_are_those_of_autograd(make)


@pytest.mark.parametrize("name", ["ppo, stopped by KL", "ppo, lstm", "ppo, writes to buffers", "a2c", "pqn"])
def test_updates_equal_the_plain_ones(name, capsys):
    learning.test_three_updates_equal_the_plain_ones(name, capsys)


def test_frozen_weights_stay():
    learning.test_frozen_weights_stay()


@pytest.mark.parametrize("kind", ["sac", "dqn", "td3"])
def test_steps_of_the_replay_equal_the_plain_ones(kind):
    objectives.test_compiled_steps_are_those_of_plain_pytorch(kind)


def test_delayed_losses_count_the_steps_that_measured_them():
    objectives.test_delayed_losses_count_the_steps_that_measured_them(1)


@pytest.mark.parametrize("name", ["one block", "gru"])
def test_columns_are_the_plain_ones(name, monkeypatch):
    trainers = [collecting.trained(*collecting.CASES[name]) for _ in range(2)]
    for trainer in trainers:
        trainer.collector.collect()
    served, plain = (trainer.collector for trainer in trainers)
    with torch.no_grad():
        for collector in (served, plain):
            collector._advance()
        assert gpu_collecting.serves(served, served.steps) is True
        assert isinstance(gpu_collecting._program(served).code, GpuProgram)
        gpu_collecting.steps(served, served.steps)
        with fused.plain_only():
            plain.fill(plain.steps)
    for column in plain.rollout.columns:
        found, expected = (getattr(collector.rollout, column) for collector in (served, plain))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3, msg=column)
    if plain.rnn_state is not None:
        torch.testing.assert_close(served.rnn_state, plain.rnn_state, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("number", [5, 70_000])
@pytest.mark.parametrize(("max_norm", "skip"), [(math.inf, None), (0.5, None), (0.5, 0.0), (0.5, 1.0)])
def test_steps_of_adam_are_the_plain_ones(number, max_norm, skip):
    weights = torch.randn(number, generator=torch.Generator().manual_seed(0))
    own, plain = (Adam([torch.nn.Parameter(weights.clone())], 1e-2) for _ in range(2))
    for seed in range(4):
        gradient = torch.randn(number, generator=torch.Generator().manual_seed(seed)) * 10.0**-seed
        left_out = None if skip is None else torch.tensor(skip)
        for optimizer in (own, plain):
            optimizer.gradient.copy_(gradient)
        gpu_learning.step(own, max_norm, left_out)
        plain.step(max_norm, left_out)
    assert own.steps == plain.steps
    torch.testing.assert_close(own.flat, plain.flat, rtol=0, atol=1e-6)
    torch.testing.assert_close(own.square, plain.square, rtol=1e-5, atol=1e-12)


def test_few_rows_and_many_have_programs_of_their_own():
    def loss(net, x):
        return net(x).square().mean()

    step, net = hr.compile(loss), torch.nn.Linear(3, 2)
    for rows in (100, 300, 5000, 200, 6000):
        x = torch.randn(rows, 3)
        assert agrees(step, net, x) is None
    assert [program.code.layout.lanes for program in step._programs] == [32, 4]


def test_a_refusal_of_many_rows_is_none_of_few(monkeypatch):
    monkeypatch.setattr(gpu_program, "WIDE", 10)
    monkeypatch.setattr(gpu_program, "LARGE", 100_000)

    def loss(net, x):
        return net(x).square().mean()

    step, net = hr.compile(loss), torch.nn.Linear(5, 4)
    assert "plain PyTorch is faster" in step.why_not(net, torch.randn(20_000, 5))
    assert step.why_not(net, torch.randn(50, 5)) is None
    assert "plain PyTorch is faster" in step.why_not(net, torch.randn(20_000, 5))
