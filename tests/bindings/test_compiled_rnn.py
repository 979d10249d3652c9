"""Sequences of recurrent cells by row programs: outputs and gradients of plain torch's autograd."""

from __future__ import annotations

import pytest
import torch

from headrace.bindings.compiled import compiled_rnn, loss_program, row_functions
from headrace.core import fused
from headrace.core.fused import kernel_of, plain_only
from headrace.kernels.runtime.thread_pool import WorkQueue
from headrace.policies.rnn import RNNCell


def made(kind: str, size: int = 16, envs: int = 3, copies: int = 2, steps: int = 5):
    """A core, features, the memory before the first step, and which rows are valid."""
    generator = torch.Generator().manual_seed(0)
    core = RNNCell(kind, copies, 5, size, generator)
    with torch.no_grad():
        core.bias_hidden.normal_(generator=generator)
    features = torch.randn(copies, steps, envs, 5, generator=generator, requires_grad=True)
    memory = torch.randn(envs, copies * core.width, generator=generator)
    valid = torch.rand(steps, envs, generator=generator) > 0.3
    return core, features, memory, valid


def learned(core, features, memory, valid, burn_in=0, wanted=()):
    """Outputs, and the gradients of something made of them."""
    outputs = core.sequence(features, memory, valid, burn_in)
    weight = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
    wanted = wanted or [features, *core.parameters()]
    return outputs, torch.autograd.grad((outputs.sin() * weight).sum(), wanted)


def is_served(core, features, memory, valid, burn_in=0):
    return kernel_of(RNNCell.sequence, core, features, memory, valid, burn_in) is compiled_rnn.sequence


def compare(given, burn_in=0, wanted=()):
    assert is_served(*given, burn_in)
    outputs, gradients = learned(*given, burn_in, wanted)
    with plain_only():
        expected, slopes = learned(*given, burn_in, wanted)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=2e-6)
    for gradient, slope in zip(gradients, slopes, strict=True):
        torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-5 * slope.abs().max().item())


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("size", "envs", "burn_in"), [(13, 3, 0), (16, 1, 3), (24, 50, 2)])
def test_outputs_and_gradients_are_those_of_autograd(kind, size, envs, burn_in):
    compare(made(kind, size, envs), burn_in)


def test_many_sequences_have_sums_over_parts():
    compare(made("gru", 16, 600, copies=1, steps=3))


def test_the_first_state_may_be_learned():
    core, features, memory, valid = made("lstm")
    memory.requires_grad_()
    compare((core, features, memory, valid), 2, wanted=[memory, core.weight_input])
    core.sequence(features, memory, valid).sum().backward()  # in which it is never learned
    assert not memory.grad.any()


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
    given, results, asked = made("lstm", 16, 200), [], []
    monkeypatch.setattr(loss_program, "WORTH_HELP", 0)
    run = WorkQueue.run
    monkeypatch.setattr(WorkQueue, "run", lambda team, call, threads: (asked.append(threads), run(team, call, threads)))
    for threads in ("1", "2"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        outputs, gradients = learned(*given)
        results.append([outputs, *gradients])
    assert 2 in asked
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_sequence_does_not_depend_on_those_beside_it():
    core, features, memory, valid = made("gru", 16, 61)
    with torch.no_grad():
        whole = core.sequence(features, memory, valid)
        for rows in (slice(0, 1), slice(7, 30), slice(40, 61)):
            assert torch.equal(core.sequence(features[:, :, rows], memory[rows], valid[:, rows]), whole[:, :, rows])
        with plain_only():
            torch.testing.assert_close(whole, core.sequence(features, memory, valid), rtol=1e-5, atol=2e-6)


def test_frozen_weights_have_no_gradient():
    core, features, memory, valid = made("gru")
    core.weight_hidden.requires_grad_(False)
    compare((core, features, memory, valid), wanted=[features, core.weight_input])
    core.sequence(features, memory, valid).sum().backward()
    assert core.weight_hidden.grad is None and core.weight_input.grad is not None


def test_weights_that_change_before_the_backward_pass_are_an_error():
    core, features, memory, valid = made("gru")
    outputs = core.sequence(features, memory, valid)
    with torch.no_grad():
        core.weight_hidden.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


def test_weights_that_are_replaced_before_the_backward_pass_have_their_gradient():
    found = []
    for _ in range(2):
        core, features, memory, valid = made("gru")
        old = core.weight_hidden
        outputs = core.sequence(features, memory, valid)
        if found:
            core.weight_hidden = torch.nn.Parameter(torch.zeros_like(old))
            core.sequence(features, memory, valid)
        found.append(torch.autograd.grad(outputs.sum(), old)[0])
    assert torch.equal(*found)


def test_what_is_changed_in_the_cell_takes_effect(capsys, monkeypatch):
    monkeypatch.setattr(fused, "_said", set())
    core, *given = made("gru", copies=1)
    with torch.no_grad():
        before = core.sequence(*given)
        core.weight_hidden.mul_(0.5)  # in place, as an optimizer does
        scaled = core.sequence(*given)
        core.weight_hidden = torch.nn.Parameter(core.weight_hidden * 2)
        assert torch.equal(core.sequence(*given), before) and not torch.equal(before, scaled)
        with monkeypatch.context() as patch:
            patch.setattr(RNNCell, "_project", lambda self, x: torch.baddbmm(self.bias_input + 1, x, self.weight_input))
            assert (core.sequence(*given) - before).abs().max() > 0.01
        hook = core.register_forward_hook(lambda *_: None)
        torch.testing.assert_close(core.sequence(*given), before, rtol=1e-5, atol=2e-6)
        assert "rnn.sequence runs in plain PyTorch: the RNNCell has a hook" in capsys.readouterr().err
        hook.remove()
        core.weight_hidden.data = core.weight_hidden.transpose(1, 2).contiguous().transpose(1, 2)  # other strides
        assert torch.equal(core.sequence(*given), before)


class Doubled(RNNCell):
    def _step(self, projected, state):
        return 2 * super()._step(projected, state)


def test_what_is_not_served_is_plain_torchs(capsys, monkeypatch):
    monkeypatch.setattr(fused, "_said", set())
    core, *given = made("gru")
    wide = RNNCell("gru", 2, 5, 16, torch.Generator()).double()
    assert not is_served(wide, *(x.double() if x.is_floating_point() else x for x in given))
    other = Doubled("gru", 2, 5, 16, torch.Generator())
    assert not is_served(other, *given)
    assert "it is written for RNNCell, not for Doubled" in capsys.readouterr().err
    monkeypatch.setattr(row_functions, "MOST", 2)
    with torch.no_grad():  # programs are made for so many lengths
        served = [is_served(core, given[0][:, :steps], given[1], given[2][:steps]) for steps in (1, 2, 3)]
    assert served == [True, True, False]
