"""Recurrent cores by the CPU's kernel: outputs and gradients of plain torch's autograd."""

from __future__ import annotations

import pytest
import torch

from headrace.bindings import rnn_cpu
from headrace.core import fused
from headrace.core.fused import kernel_of, plain_only
from headrace.kernels.runtime.thread_pool import WorkQueue
from headrace.policies.rnn import GATES, RNNCell


def made(kind: str, size: int = 32, envs: int = 3, copies: int = 2, steps: int = 7):
    """A core, features, the memory before the first step, and which rows are valid."""
    generator = torch.Generator().manual_seed(0)
    core = RNNCell(kind, copies, 5, size, generator)
    with torch.no_grad():
        core.bias_hidden.normal_(generator=generator)
    features = torch.randn(copies, steps, envs, 5, generator=generator, requires_grad=True)
    memory = torch.randn(envs, copies * core.width, generator=generator)
    valid = torch.rand(steps, envs, generator=generator) > 0.3
    return core, features, memory, valid


def learned(core, features, memory, valid, burn_in):
    """Outputs, and the gradients of something made of them."""
    outputs = core.sequence(features, memory, valid, burn_in)
    weight = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
    return outputs, torch.autograd.grad((outputs.sin() * weight).sum(), [features, *core.parameters()])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("size", "envs", "burn_in"), [(32, 3, 0), (16, 1, 3), (48, 50, 2)])
def test_outputs_and_gradients_are_those_of_autograd(kind, size, envs, burn_in):
    given = made(kind, size, envs)
    projected = torch.empty(2, 7, envs, GATES[kind] * size)
    assert kernel_of(RNNCell.recur, given[0], projected, given[2], given[3], burn_in) is rnn_cpu.recur
    outputs, gradients = learned(*given, burn_in)
    with plain_only():
        expected, slopes = learned(*given, burn_in)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=2e-6)
    for gradient, slope in zip(gradients, slopes, strict=True):
        torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-5 * slope.abs().max().item())


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gradients_can_be_differentiated_in_turn(kind):
    core, features, memory, valid = made(kind)

    def curvature():
        slopes = torch.autograd.grad(core.sequence(features, memory, valid).sin().sum(), features, create_graph=True)
        return torch.autograd.grad(slopes[0].square().sum(), core.weight_hidden)[0]

    fused = curvature()
    with plain_only():
        torch.testing.assert_close(fused, curvature(), rtol=1e-4, atol=1e-5)


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    given, results, asked = made("lstm", 64, 60), [], []
    monkeypatch.setattr(rnn_cpu, "WORTH_HELP", dict.fromkeys(rnn_cpu.WORTH_HELP, 0))
    run = WorkQueue.run
    monkeypatch.setattr(WorkQueue, "run", lambda team, call, threads: (asked.append(threads), run(team, call, threads)))
    for threads in ("1", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        outputs, gradients = learned(*given, 0)
        results.append([outputs, *gradients])
    assert set(asked) == {1, 3}
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_without_gradients_it_serves_too():
    core, features, memory, valid = made("gru")
    with torch.no_grad():
        outputs = core.sequence(features, memory, valid)
        with plain_only():
            torch.testing.assert_close(outputs, core.sequence(features, memory, valid), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("size", "envs", "copies"), [(32, 16, 2), (16, 1, 1), (48, 50, 2)])
def test_one_step_is_that_of_torch(kind, size, envs, copies):
    core, features, memory, _ = made(kind, size, envs, copies, steps=1)
    given = features[:, 0].detach()
    with torch.no_grad():
        assert kernel_of(RNNCell.forward, core, given, memory) is rnn_cpu.step
        found = core(given, memory)
        with plain_only():
            expected = core(given, memory)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


def test_a_step_depends_neither_on_other_rows_nor_on_threads(monkeypatch):
    core, features, memory, _ = made("lstm", 64, 60, steps=1)
    given = features[:, 0].detach()
    with torch.no_grad():
        output, after = core(given, memory)
        few = core(given[:, 7:9].contiguous(), memory[7:9])
        monkeypatch.setattr(rnn_cpu, "WORTH_HELP", dict.fromkeys(rnn_cpu.WORTH_HELP, 0))
        monkeypatch.setenv("HEADRACE_THREADS", "3")
        threaded = core(given, memory)
    assert torch.equal(output[:, 7:9], few[0]) and torch.equal(after[7:9], few[1])
    assert torch.equal(output, threaded[0]) and torch.equal(after, threaded[1])


def test_a_step_that_is_learned_from_or_altered_stays_with_torch():
    core, features, memory, _ = made("gru", steps=1)
    given = features[:, 0].detach()
    assert kernel_of(RNNCell.forward, core, given, memory) is None  # gradients are wanted
    with torch.no_grad():
        core._step = lambda *args: RNNCell._step(core, *args)
        assert kernel_of(RNNCell.forward, core, given, memory) is None


def test_sizes_that_are_no_whole_vectors_stay_with_torch(capsys, monkeypatch):
    monkeypatch.setattr(fused, "_said", set())  # others may have asked
    core, features, memory, valid = made("gru", 12)
    core.sequence(features, memory, valid)
    assert "rnn.recur not fused: rnn_size 12 is not a multiple of 16" in capsys.readouterr().err
