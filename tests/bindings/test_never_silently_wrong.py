"""Losses that were once compiled wrongly in silence, found by an independent reader. Each is right now, or refused."""

import argparse
import collections
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

import headrace as hr
from headrace.bindings.compiled import compiled_losses, loss_check
from headrace.kernels.rows.tracing.captured import has_parts

ROWS = 64


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


@pytest.fixture
def x():
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))


def gradients(of, step, *arguments, **named):
    """The loss and its gradients."""
    of.zero_grad()
    loss = step(*arguments, **named)
    if loss.requires_grad:
        loss.backward()
    return torch.cat([loss.detach().view(1), *(own.grad.flatten() for own in of.parameters())])


def is_right(net, loss, *arguments):
    """Compare a compiled loss with the plain one; returns whether it is compiled."""
    step = loss if isinstance(loss, compiled_losses.CompiledLoss) else hr.compile(loss)
    torch.testing.assert_close(gradients(net, step, *arguments), gradients(net, step.plain, *arguments))
    return step.why_not(*arguments) is None


class Own(collections.UserDict):
    """A container of a user's, derived from one of the standard library's."""


HOLDERS = {
    "namespace": (
        lambda: argparse.Namespace(coef=0.5),
        lambda held: held.coef,
        lambda held: setattr(held, "coef", 3.0),
    ),
    "user dict": (lambda: collections.UserDict(a=0.5), lambda held: held["a"], lambda held: held.update(a=3.0)),
    "own dict": (lambda: Own(a=0.5), lambda held: held["a"], lambda held: held.update(a=3.0)),
    "bytes": (lambda: bytearray(b"\1\2"), lambda held: held[1], lambda held: held.__setitem__(1, 9)),
    "list": (lambda: [0.5], lambda held: held[0], lambda held: held.__setitem__(0, 3.0)),
}


@pytest.mark.parametrize("name", HOLDERS)
@pytest.mark.parametrize("given", [False, True], ids=["in the closure", "as an argument"])
def test_what_an_object_holds_is_read_at_each_call(net, x, name, given):
    make, read, change = HOLDERS[name]
    held = make()
    if given:
        step, arguments = hr.compile(lambda net, x, held: read(held) * net(x).square().mean()), (net, x, held)
    else:
        step, arguments = hr.compile(lambda net, x: read(held) * net(x).square().mean()), (net, x)
    assert is_right(net, step, *arguments)
    change(held)
    assert is_right(net, step, *arguments)


class Noting(nn.Module):
    """A network that notes something in what it holds."""

    def __init__(self, note):
        super().__init__()
        self.inner, self.note = nn.Linear(4, 1), note
        self.info, self.calls, self.seen, self.kept = {"n": 0}, collections.Counter(), set(), np.zeros(2)
        self.recent = collections.deque([1, 2, 3], maxlen=3)

    def forward(self, x):
        y = self.inner(x)
        self.note(self, y)
        return y


NOTES = {
    "a dict": lambda own, y: own.info.update(mean=y.detach().mean()),
    "a counter": lambda own, y: own.calls.update(["n"]),
    "a set": lambda own, y: own.seen.add(len(own.seen)),
    "an array": lambda own, y: own.kept.__setitem__(0, own.kept[0] + 1),
    "a deque": lambda own, y: own.recent.append(4),
}


def held_by(net):
    return dict(net.info), dict(net.calls), set(net.seen), net.kept.tolist(), list(net.recent)


@pytest.mark.parametrize("name", NOTES)
def test_a_module_that_notes_something_is_refused_and_left_as_it_was(x, name):
    net = Noting(NOTES[name])
    before = held_by(net)
    why = hr.compile(lambda net, x: net(x).mean()).why_not(net, x)
    assert why is not None and "changes net." in why and "when it is called" in why
    assert held_by(net) == before


@pytest.mark.parametrize("given", [{"n": 0}, [1.0], argparse.Namespace(n=0)], ids=["dict", "list", "namespace"])
def test_a_loss_that_writes_to_an_argument_is_refused(net, x, given):
    def loss(net, x, log):
        value = net(x).square().mean()
        if isinstance(log, list):
            log.append(value.detach())
        elif isinstance(log, dict):
            log["n"] += 1
        else:
            log.n += 1
        return value

    before = str(given)
    assert "changes log" in hr.compile(loss).why_not(net, x, given)
    assert str(given) == before


COUNTS = {"n": 0}


def counting(y):
    """A helper that counts its calls."""
    COUNTS["n"] += 1
    return y


def test_what_a_helper_counts_is_left_as_it_was(net, x):
    assert "when it is called" in hr.compile(lambda net, x: counting(net(x)).mean()).why_not(net, x)
    assert COUNTS == {"n": 0}


def test_tracing_leaves_random_states_of_python_and_numpy(net, x):
    own = np.random.default_rng(3)

    def loss(net, x):
        return net(x).mean() * (1 + random.random() + np.random.rand() + own.random())

    before = random.getstate(), np.random.get_state()[1].tolist(), own.bit_generator.state
    assert hr.compile(loss).why_not(net, x) is not None
    assert (random.getstate(), np.random.get_state()[1].tolist(), own.bit_generator.state) == before


CHOICES = {
    "even": lambda rows: rows % 2 == 0,
    "a minibatch": lambda rows: rows == 256,
    "many": lambda rows: rows > 1000,
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_by_the_number_of_rows_is_noticed_where_it_is_made(net, name):
    step = hr.compile(lambda net, x: net(x).square().mean() * (3.0 if CHOICES[name](len(x)) else 1.0))
    for rows in (37, 64, 256, 1024, 37, 256):
        is_right(net, step, net, torch.randn(rows, 4))


def test_minibatches_of_ever_new_lengths_are_not_compared_for_ever(net, monkeypatch):
    compared = []
    later = loss_check.differs_later
    monkeypatch.setattr(loss_check, "differs_later", lambda *given: compared.append(1) or later(*given))
    step = hr.compile(lambda net, x: net(x).square().mean())
    for rows in range(10, 60):
        step(net, torch.randn(rows, 4))
    assert len(compared) == compiled_losses.ROWS - 1


def test_whole_numbers_beyond_32_bits_run_in_plain_pytorch(net, x, capsys):
    step = hr.compile(lambda net, x, i: (net(x)[:, 0] * (i % 7)).mean())
    small = torch.arange(ROWS)
    assert is_right(net, step, net, x, small)
    assert not is_right(net, step, net, x, small + 2**33 + 1)
    assert "i has numbers that do not fit into 32 bits" in capsys.readouterr().err
    assert is_right(net, step, net, x, small)


def test_arguments_by_name(net, x):
    step = hr.compile(lambda net, x, coef=1.0: coef * net(x).square().mean())
    torch.testing.assert_close(gradients(net, step, net, x, coef=2.0), gradients(net, step.plain, net, x, 2.0))
    torch.testing.assert_close(gradients(net, step, x=x, net=net), gradients(net, step.plain, net, x))
    with pytest.raises(TypeError, match="unexpected keyword argument 'coeff'"):
        step(net, x, coeff=2.0)


def test_threads_that_share_a_network_add_all_their_gradients(net, x):
    step = hr.compile(lambda net, x: net(x).square().mean())
    one = gradients(net, step, net, x)[1:]
    for _ in range(30):
        net.zero_grad()
        threads = [threading.Thread(target=step, args=(net, x)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.testing.assert_close(torch.cat([own.grad.flatten() for own in net.parameters()]), 8 * one)


def test_the_comparison_at_a_later_call_leaves_other_threads_what_they_read(net, x):
    step = hr.compile(lambda net, x: net(x).square().mean())
    want = float(step(net, x))
    for _ in range(compiled_losses.LOOK_AGAIN - 4):
        step(net, x)
    found = []
    threads = [threading.Thread(target=lambda: found.append([float(step(net, x)) for _ in range(9)])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {value for own in found for value in own} == {want} and step.why_not(net, x) is None


def test_a_program_that_is_wrong_on_other_numbers_alone_is_refused(net, x, monkeypatch):
    """The second half of the comparison: the first minibatch does not reach the other side of a comparison."""
    loss = lambda net, x: torch.where(x[:, 0] > 2.5, 5.0, net(x)[:, 0]).mean()  # noqa: E731
    x = x.clamp(-2.0, 2.0)
    compiled = hr.compile(loss)
    assert compiled.why_not(net, x) is None
    (program,) = compiled._programs
    program.plain = lambda net, x: net(x)[:, 0].mean()  # equal on these rows
    reason = loss_check.differs(program, (net, x))
    assert reason is not None and "on other numbers" in reason


def test_a_program_that_turns_wrong_is_refused_at_the_hundredth_call(net, x, monkeypatch, capsys):
    step = hr.compile(lambda net, x: net(x).square().mean() * 1.5)
    step(net, x)
    (program,) = step._programs
    monkeypatch.setattr(type(program.conditions), "keep", lambda *_: None)  # which later processes would find
    program.plain = lambda net, x: 2 * net(x).square().mean()
    for _ in range(compiled_losses.LOOK_AGAIN):
        step(net, x)
    assert "differs from plain PyTorch's on this minibatch" in step.why_not(net, x)
    assert "is not compiled" in capsys.readouterr().err


def test_modules_and_functions_are_not_looked_into():
    """torch is a global variable of most losses."""
    assert has_parts(argparse.Namespace(coef=0.5)) and has_parts(Own(a=1))
    assert not any(map(has_parts, (torch, argparse, nn.Linear, hr.train, threading.Lock(), random.Random())))
