"""State outside its arguments that a loss reads and writes: seen, refused, or left as it was; never lost."""

from __future__ import annotations

import dataclasses
import enum
import functools
import random

import numpy as np
import pytest
import torch
from torch import nn

import headrace as hr
from headrace.training.trainer import Trainer

ROWS = torch.linspace(-1, 1, 64).view(16, 4)


@dataclasses.dataclass(frozen=True)
class Config:
    coef: float = 1.0


class Mode(enum.Enum):
    FULL = 1.0
    SMALL = 0.1


class Setting:
    coef = 1.0


class Less(Setting):
    coef = 0.1


class Net(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 1))
        self.inner[0].held = held


REPLACED = {
    "a frozen dataclass": (Config(), Config(0.1), lambda x: x.coef),
    "a list": ([1.0], [0.1], lambda x: x[0]),
    "a dict": ({"a": 1.0}, {"a": 0.1}, lambda x: x["a"]),
    "a number of NumPy's": (np.float32(1), np.float32(0.1), float),
    "an array": (np.array([1.0]), np.array([0.1]), lambda x: float(x[0])),
    "an enum": (Mode.FULL, Mode.SMALL, lambda x: x.value),
    "a range": (range(10), range(1), lambda x: len(x) / 10),
    "a partial": (functools.partial(float, 1.0), functools.partial(float, 0.1), lambda x: x()),
    "an object of another class": (Setting(), Less(), lambda x: x.coef),
}


@pytest.mark.parametrize("name", REPLACED)
def test_an_attribute_that_is_replaced_by_another_object_counts(name):
    before, after, read = REPLACED[name]
    net = Net(before)

    def loss(net, x):
        return read(net.inner[0].held) * net.inner(x).square().mean()

    step = hr.compile(loss)
    for held in (before, after, before):
        net.inner[0].held = held
        net.zero_grad()
        value = step(net, ROWS)
        found = net.inner[0].weight.grad.clone()
        net.zero_grad()
        wanted = loss(net, ROWS)
        wanted.backward()
        torch.testing.assert_close(value, wanted.detach())
        torch.testing.assert_close(found, net.inner[0].weight.grad)


def test_a_tensor_attribute_of_another_shape_counts():
    net = Net(torch.ones(1))

    def loss(net, x):
        return (net.inner(x) * net.inner[0].held).square().mean()

    step = hr.compile(loss)
    for held in (torch.ones(1), torch.tensor([0.5]), torch.tensor([0.1, 0.2, 0.3])):
        net.inner[0].held = held
        torch.testing.assert_close(step(net, ROWS), loss(net, ROWS).detach())


@pytest.mark.parametrize("draw", [random.random, lambda: random.choice([1.0, 2.0]), lambda: float(np.random.rand())])
def test_random_numbers_of_python_and_numpy_are_refused(draw):
    net = nn.Linear(4, 1)

    def loss(net, x):
        return draw() * net(x).square().mean()

    step = hr.compile(loss)
    assert "draws random numbers of Python's or NumPy's" in step.why_not(net, ROWS)
    random.seed(1)
    np.random.seed(1)
    found = [step(net, ROWS).item() for _ in range(3)]
    random.seed(1)
    np.random.seed(1)
    assert found == [loss(net, ROWS).item() for _ in range(3)]


def test_what_is_taken_by_name_alone_or_behind_a_default_is_compiled():
    net = nn.Linear(4, 1)

    def loss(x, scale=2.0, *, coef, power=2):
        return scale * coef * net(x).abs().pow(power).mean()

    step = hr.compile(loss)
    for given in ({"coef": 0.5}, {"coef": 0.25}, {"coef": 0.5, "power": 3}, {"coef": 1.0, "scale": 1.0}):
        net.zero_grad()
        torch.testing.assert_close(step(ROWS, **given), loss(ROWS, **given).detach())
        found = net.weight.grad.clone()
        net.zero_grad()
        loss(ROWS, **given).backward()
        torch.testing.assert_close(found, net.weight.grad)
        assert step.why_not(ROWS, **given) is None
    with pytest.raises(TypeError, match="missing a required argument: 'coef'"):
        step(ROWS)


def test_arguments_of_any_name_run_in_plain_pytorch(capsys):
    net = nn.Linear(4, 1)

    def loss(net, x, **settings):
        return settings["coef"] * net(x).square().mean()

    step = hr.compile(loss)
    assert step(net, ROWS, coef=0.5).item() == loss(net, ROWS, coef=0.5).item()
    assert net.weight.grad is not None and "takes arguments as **kwargs" in capsys.readouterr().err


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


class Counted(hr.ActorCritic):
    def __init__(self, observation_space, action_space, hidden=(8,), seed=0):
        super().__init__(observation_space, action_space, hidden=hidden, seed=seed)
        self.actor = nn.Sequential(self.actor, Counting())
        self.updates, self.levels = 0, [1.0]

    def update_statistics(self, rollout, returns):
        self.updates += 1
        self.levels[0] *= 0.5


def test_what_acting_writes_into_buffers_is_written_at_each_step(capsys):
    settings = {"num_envs": 8, "num_steps": 16, "minibatch_size": 64, "epochs": 1, "registered": False}
    trainer = Trainer("ppo", "CartPole-v1", policy=Counted, progress="none", **settings)
    policy = trainer.policy
    assert policy.actor[1].calls == 0 and policy.updates == 0 and policy.levels == [1.0]  # making it leaves no trace
    for iteration in range(1, 4):
        trainer.iterate()
        assert policy.actor[1].calls == iteration * (16 + 2)  # acts, and learns from two minibatches
        assert policy.updates == iteration and policy.levels == [0.5**iteration]
    trainer.close()
    assert "writes to policy.actor.1.calls" in capsys.readouterr().err


def test_a_module_that_changes_all_the_time_is_given_up_soon_and_named():
    net = Net(0)

    def loss(net, x):
        return (1.0 + len(str(net.inner[0].held))) * net.inner(x).square().mean()

    step = hr.compile(loss)
    for held in range(20):
        net.inner[0].held = held
        torch.testing.assert_close(step(net, ROWS), loss(net, ROWS).detach())
    assert "it is traced again at each call, because of net.inner.0.held" in step.why_not(net, ROWS)
    assert sum(tries.made for tries in step._tries.values()) <= 10
