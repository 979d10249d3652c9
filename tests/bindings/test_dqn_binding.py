"""DQN's compiled learning call against the plain one."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from helpers.plainly import plainly

import headrace.bindings.dqn as dqn_cpu
from headrace.algorithms.dqn import DQN, DQNConfig, learn
from headrace.data.replay import Batch
from headrace.data.spaces import Box, Discrete

STEPS, SIZE = 21, 48


def made_up(actions: int, start: int) -> Batch:
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(STEPS, SIZE, *shape, generator=generator)

    action = torch.randint(start, start + actions, (STEPS, SIZE), generator=generator).int()
    weight = normal().abs() * (normal() > -1)
    rows = torch.zeros(STEPS, SIZE, dtype=torch.int64)
    return Batch(normal(3), action, 2 * normal(), normal().abs().clamp(max=0.99), normal(3), weight, rows)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(("hidden", "interval", "tau"), [((16, 9), 4, 1.0), ((16, 24), 100, 1.0), ((8, 8, 8), 1, 0.1)])
def test_it_learns_what_the_plain_call_learns(activation, double, dueling, hidden, interval, tau):
    config = DQNConfig(
        double=double,
        dueling=dueling,
        hidden=hidden,
        activation=activation,
        target_interval=interval,
        tau=tau,
        max_grad_norm=0.5,
        learning_rate=1e-2,
    )
    batch = made_up(5, 2)
    results = []
    for call in (plainly(learn), dqn_cpu.learn):
        dqn = DQN.build(config, Box(-9, 9, (3,)), Discrete(5, start=2), 3, "cpu")
        dqn.policy.encoder.update_statistics(deepcopy(batch.observation[0]) * 3 + 1, torch.ones(SIZE).bool())
        follow = torch.tensor([tau if step % interval == 0 else 0.0 for step in range(1, STEPS + 1)])
        arguments = (dqn.networks, batch, follow, config)
        assert dqn_cpu.serves(*arguments) is True
        metrics, error = call(*arguments)
        results.append(
            (
                dqn.networks.optimizer.flat,
                dqn.networks.target_flat,
                error,
                metrics["loss"],
                metrics["q_value"],
                dqn.networks.optimizer.steps,
            )
        )
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_a_value_of_nan_is_the_largest(double):
    """Whichever action has it, as in torch."""
    first = Batch(*(column[:1] for column in made_up(3, 0)))
    for action in range(3):
        errors = []
        for call in (plainly(learn), dqn_cpu.learn):
            dqn = DQN.build(DQNConfig(hidden=(16,), double=double), Box(-9, 9, (3,)), Discrete(3), 3, "cpu")
            chosen_by = dqn.policy if double else dqn.networks.target
            with torch.no_grad():
                chosen_by.out.bias[action] = torch.nan
            errors.append(call(dqn.networks, first, torch.zeros(1), dqn.config)[1].clone())
        torch.testing.assert_close(errors[1], errors[0], equal_nan=True, rtol=1e-4, atol=1e-5)
        assert errors[0].isnan().any()


def compare(**settings):
    """Parameters, target and errors after learning, by the plain call and by the kernel."""
    config, found = DQNConfig(learning_rate=1e-2, **settings), []
    for call in (plainly(learn), dqn_cpu.learn):
        dqn = DQN.build(config, Box(-9, 9, (3,)), Discrete(5, start=2), 3, "cpu")
        with torch.no_grad():  # that each one's weight and bias count
            for norm in (x for x in dqn.policy.modules() if isinstance(x, torch.nn.LayerNorm)):
                norm.weight += torch.linspace(-0.5, 0.5, len(norm.weight))
                norm.bias += torch.linspace(0.3, -0.2, len(norm.bias))
        dqn.networks.target_flat.copy_(dqn.optimizer.flat * 0.9)
        follow = torch.tensor([0.3 if step % 5 == 0 else 0.0 for step in range(STEPS)])
        arguments = (dqn.networks, made_up(5, 2), follow, config)
        assert dqn_cpu.serves(*arguments) is True
        _, error = call(*arguments)
        found.append((dqn.optimizer.flat, dqn.networks.target_flat, error))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
def test_layer_normalisation(activation, dueling, double):
    compare(hidden=(16, 9), activation=activation, dueling=dueling, double=double, layer_norm=True, max_grad_norm=0.5)


@pytest.mark.parametrize(
    "settings",
    [{"hidden": ()}, {"hidden": (), "dueling": True}, {"hidden": (12,), "dueling": True}, {"hidden": (700, 20)}],
)
def test_any_number_and_width_of_layers(settings):
    """Also two branches that both read the observation."""
    compare(activation="tanh", **settings)


@pytest.mark.parametrize("activation", ["elu", "silu"])
def test_other_activations(activation):
    compare(hidden=(16, 9), activation=activation)


def test_what_it_was_not_written_for_goes_to_the_plain_call():
    spaces = Box(-9, 9, (3,)), Discrete(3)
    dqn = DQN.build(DQNConfig(hidden=(1025,)), *spaces, 0, "cpu")
    assert "hidden layers of 1025" in dqn_cpu.serves(dqn.networks, None, torch.zeros(1), dqn.config)
    dqn = DQN.build(DQNConfig(hidden=(4,)), *spaces, 0, "cpu")
    dqn.optimizer.beta2 = 0.99
    assert "not for 0.9, 0.99" in dqn_cpu.serves(dqn.networks, None, torch.zeros(1), dqn.config)
