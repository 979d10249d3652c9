"""DQN's learning call without autograd against the plain one."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

import headrace.bindings.dqn as q_cpu
import headrace.bindings.dqn_manual as dqn_cpu
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
    compiled = () if dueling else (q_cpu.learn,)
    for call in (learn.plain, dqn_cpu.learn, *compiled):
        dqn = DQN.build(config, Box(-9, 9, (3,)), Discrete(5, start=2), 3, "cpu")
        dqn.policy.encoder.update_statistics(deepcopy(batch.observation[0]) * 3 + 1, torch.ones(SIZE).bool())
        follow = torch.tensor([tau if step % interval == 0 else 0.0 for step in range(1, STEPS + 1)])
        arguments = (dqn.networks, batch, follow, config)
        assert dqn_cpu.serves(*arguments) is True and q_cpu.serves(*arguments) is not dueling
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
    for found in results[1:]:
        for plain, fast in zip(results[0], found, strict=True):
            torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_a_value_of_nan_is_the_largest(double):
    """Whichever action has it, as in torch."""
    first = Batch(*(column[:1] for column in made_up(3, 0)))
    for action in range(3):
        errors = []
        for call in (learn.plain, q_cpu.learn):
            dqn = DQN.build(DQNConfig(hidden=(16,), double=double), Box(-9, 9, (3,)), Discrete(3), 3, "cpu")
            chosen_by = dqn.policy if double else dqn.networks.target
            with torch.no_grad():
                chosen_by.out.bias[action] = torch.nan
            errors.append(call(dqn.networks, first, torch.zeros(1), dqn.config)[1].clone())
        torch.testing.assert_close(errors[1], errors[0], equal_nan=True, rtol=1e-4, atol=1e-5)
        assert errors[0].isnan().any()


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_layer_normalisation_is_written_out(activation, dueling):
    config = DQNConfig(hidden=(16, 9), activation=activation, dueling=dueling, layer_norm=True, learning_rate=1e-2)
    found = []
    for call in (learn.plain, dqn_cpu.learn):
        dqn = DQN.build(config, Box(-9, 9, (3,)), Discrete(5, start=2), 3, "cpu")
        arguments = (dqn.networks, made_up(5, 2), torch.ones(STEPS), config)
        assert dqn_cpu.serves(*arguments) is True and q_cpu.serves(*arguments) is False
        _, error = call(*arguments)
        found.append((dqn.networks.optimizer.flat, error))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["elu", "silu"])
def test_other_activations_are_compiled(activation):
    config = DQNConfig(hidden=(16, 9), activation=activation, learning_rate=1e-2)
    found = []
    for call in (learn.plain, q_cpu.learn):
        dqn = DQN.build(config, Box(-9, 9, (3,)), Discrete(5, start=2), 3, "cpu")
        arguments = (dqn.networks, made_up(5, 2), torch.ones(STEPS), config)
        assert q_cpu.serves(*arguments) is True
        _, error = call(*arguments)
        found.append((dqn.networks.optimizer.flat, error))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_what_it_was_not_written_for_goes_to_the_plain_call():
    spaces = Box(-9, 9, (3,)), Discrete(3)
    for settings, reason in (
        ({"activation": "elu"}, "relu and tanh"),
        ({"dueling": True}, "no hidden layer"),
    ):
        config = DQNConfig(hidden=(4,), **settings)
        dqn = DQN.build(config, *spaces, 0, "cpu")
        answer = dqn_cpu.serves(dqn.networks, None, torch.zeros(1), config)
        assert reason in answer
    dqn = DQN.build(DQNConfig(hidden=(4,)), *spaces, 0, "cpu")
    dqn.optimizer.beta2 = 0.99
    assert "not for 0.9, 0.99" in dqn_cpu.serves(dqn.networks, None, torch.zeros(1), dqn.config)
