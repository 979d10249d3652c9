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
    monkeypatch.setattr(rnn_cpu, "WORTH_HELP", 0)
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


def test_sizes_that_are_no_whole_vectors_stay_with_torch(capsys, monkeypatch):
    monkeypatch.setattr(fused, "_said", set())  # others may have asked
    core, features, memory, valid = made("gru", 12)
    core.sequence(features, memory, valid)
    assert "rnn.recur runs in plain PyTorch: rnn_size 12 is not a multiple of 16" in capsys.readouterr().err


def stepped(kind: str, copies: int, rows: int, inputs: int = 5, size: int = 32):
    """A core, features and a state for one step."""
    core, *_ = made(kind, size, copies=copies)
    if inputs != 5:
        core = RNNCell(kind, copies, inputs, size, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        core.bias_hidden.normal_(generator=generator)
    return core, *(torch.randn(x, generator=generator) for x in ((copies, rows, inputs), (rows, copies * core.width)))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("copies", "rows", "inputs", "size"), [(1, 1, 5, 16), (2, 50, 5, 32), (2, 64, 67, 144)])
@torch.no_grad()
def test_a_step_is_that_of_torch(kind, copies, rows, inputs, size):
    core, features, state = stepped(kind, copies, rows, inputs, size)
    assert kernel_of(RNNCell.forward, core, features, state) is rnn_cpu.step
    for _ in range(3):  # a call is kept and pointed at other arrays; the state goes on from one to the next
        output, after = core(features, state)
        with plain_only():
            expected, then = core(features, state)
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(after, then, rtol=1e-5, atol=2e-6)
        features, state = features.flip(1), after


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@torch.no_grad()
def test_a_row_of_a_step_does_not_depend_on_those_beside_it_nor_on_strides(kind):
    core, features, state = stepped(kind, 2, 61)
    output, after = core(features, state)
    for rows in (slice(0, 1), slice(7, 30), slice(40, 61)):
        columns = state[rows].t().contiguous().t()
        part, then = core(features[:, rows], columns)
        assert torch.equal(part, output[:, rows]) and torch.equal(then, after[rows])


@torch.no_grad()
def test_the_number_of_threads_changes_no_bit_of_a_step(monkeypatch):
    given, found = stepped("lstm", 2, 60), []
    monkeypatch.setattr(rnn_cpu, "STEP_WORTH_HELP", 0)
    for threads in ("1", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        found.append(given[0](*given[1:]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@torch.no_grad()
def test_steps_follow_what_is_changed_in_the_cell(capsys, monkeypatch):
    monkeypatch.setattr(fused, "_said", set())
    core, *given = stepped("gru", 1, 4)
    before, _ = core(*given)
    core.weight_hidden.mul_(0.5)  # in place, as an optimizer does
    scaled, _ = core(*given)
    core.weight_hidden = torch.nn.Parameter(core.weight_hidden * 2)
    back, _ = core(*given)
    assert not torch.equal(before, scaled) and torch.equal(before, back)
    hook = core.register_forward_hook(lambda module, inputs, outputs: (outputs[0] + 1, outputs[1]))
    torch.testing.assert_close(core(*given)[0], before + 1, rtol=1e-5, atol=2e-6)
    assert "rnn.step runs in plain PyTorch: the RNNCell has a hook" in capsys.readouterr().err
    hook.remove()
    core.weight_input.requires_grad_(False)  # frozen: acting is the same
    assert torch.equal(core(*given)[0], before)
    core.weight_hidden.data = core.weight_hidden.transpose(1, 2).contiguous().transpose(1, 2)  # other strides
    torch.testing.assert_close(core(*given)[0], before, rtol=1e-5, atol=2e-6)


def test_a_step_with_gradients_is_torchs():
    core, features, state = stepped("lstm", 1, 4)
    assert kernel_of(RNNCell.forward, core, features, state) is None
    core(features, state)[0].sum().backward()
    assert core.weight_hidden.grad is not None
