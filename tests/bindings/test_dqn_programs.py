"""DQN learns by a program of its loss what plain PyTorch learns, with the same bits for any number of threads."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from helpers.off_policy_oracle import take

from headrace import Trainer
from headrace.algorithms.dqn import DQN, DQNConfig
from headrace.algorithms.objectives import take_steps
from headrace.bindings.compiled import compiled_objectives, loss_program
from headrace.core import fused
from headrace.data.replay import Batch
from headrace.data.spaces import Box, Discrete

STEPS, SIZE = 21, 48
NO_DRAWS = torch.zeros(STEPS, SIZE, 0)
SMALL = {"num_envs": 4, "num_steps": 8, "learning_starts": 64, "prioritized": False, "target_return": None}


def made_up(actions: int, start: int) -> Batch:
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(STEPS, SIZE, *shape, generator=generator)

    action = torch.randint(start, start + actions, (STEPS, SIZE), generator=generator).int()
    weight = normal().abs() * (normal() > -1)
    rows = torch.zeros(STEPS, SIZE, dtype=torch.int64)
    return Batch(normal(3), action, 2 * normal(), normal().abs().clamp(max=0.99), normal(3), weight, rows)


def by_program(dqn: DQN, batch: Batch, tau: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Do what take() does, by a program."""
    objectives, networks = dqn.objectives()
    objectives = [each._replace(tau=tau) for each in objectives]
    given = objectives, networks, batch, NO_DRAWS[: len(tau)], dqn.config
    assert fused.kernel_of(take_steps, *given) is compiled_objectives.take_steps
    return take_steps(*given)


def compare(tau: float = 0.3, interval: int = 5, **settings: object) -> None:
    """Metrics, parameters, target and errors after learning, in plain PyTorch and by a program."""
    config, found = DQNConfig(learning_rate=1e-2, **settings), []
    follow = torch.tensor([tau if step % interval == 0 else 0.0 for step in range(1, STEPS + 1)])
    for program in (False, True):
        dqn = DQN.build(config, Box(-9, 9, (3,)), Discrete(5, start=2), 3, "cpu")
        batch = made_up(5, 2)
        if config.normalize_observation:
            dqn.policy.encoder.update_statistics(deepcopy(batch.observation[0]) * 3 + 1, torch.ones(SIZE).bool())
        with torch.no_grad():  # that each one's weight and bias count
            for norm in (x for x in dqn.policy.modules() if isinstance(x, torch.nn.LayerNorm)):
                norm.weight += torch.linspace(-0.5, 0.5, len(norm.weight))
                norm.bias += torch.linspace(0.3, -0.2, len(norm.bias))
        dqn.networks.target_flat.copy_(dqn.optimizer.flat * 0.9)
        metrics, error = by_program(dqn, batch, follow) if program else take(dqn, batch, NO_DRAWS, tau=follow)
        found.append((metrics, dqn.optimizer.flat, dqn.networks.target_flat, error, dqn.optimizer.steps))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(("hidden", "interval", "tau"), [((16, 9), 4, 1.0), ((16, 24), 100, 1.0), ((8, 8, 8), 1, 0.1)])
def test_it_learns_what_plain_pytorch_learns(double, dueling, hidden, interval, tau):
    settings = {"double": double, "dueling": dueling, "hidden": hidden, "normalize_observation": True}
    compare(tau, interval, max_grad_norm=0.5, **settings)


@pytest.mark.parametrize("double", [False, True])
def test_a_value_of_nan_is_the_largest(double):
    """Whichever action has it, as in torch."""
    first = Batch(*(column[:1] for column in made_up(3, 0)))
    for action in range(3):
        errors = []
        for learn in (take, by_program):
            dqn = DQN.build(DQNConfig(hidden=(16,), double=double), Box(-9, 9, (3,)), Discrete(3), 3, "cpu")
            chosen_by = dqn.policy if double else dqn.networks.target
            with torch.no_grad():
                chosen_by.out.bias[action] = torch.nan
            given = (NO_DRAWS[:1],) if learn is take else ()
            errors.append(learn(dqn, first, *given, tau=torch.zeros(1))[1].clone())
        torch.testing.assert_close(errors[1], errors[0], equal_nan=True, rtol=1e-4, atol=1e-5)
        assert errors[0].isnan().any()


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh", "silu", "elu"])
def test_layer_normalisation_and_activations(activation, dueling):
    compare(hidden=(16, 9), activation=activation, dueling=dueling, layer_norm=True, max_grad_norm=0.5)


@pytest.mark.parametrize(
    "settings",
    [{"hidden": ()}, {"hidden": (), "dueling": True}, {"hidden": (12,), "dueling": True}, {"hidden": (700, 20)}],
)
def test_any_number_and_width_of_layers(settings):
    """One case has two branches that both read the observation."""
    compare(activation="tanh", **settings)


def learned(rows: int, **settings: object) -> torch.Tensor:
    """Parameters after some gradient steps on minibatches of so many rows."""
    trainer = Trainer("dqn", "CartPole-v1", seed=1, batch_size=rows, **SMALL | settings)
    for _ in range(6):
        trainer.iterate()
    return trainer.algorithm.optimizer.flat.clone()


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (64, {"double": False, "hidden": (160, 130)}),
        (50, {"double": True, "hidden": (33, 17, 70), "target_interval": 3, "tau": 0.3}),
        (30, {"dueling": True, "layer_norm": True, "hidden": (33, 17)}),
    ],
)
def test_the_number_of_threads_changes_no_bit(monkeypatch, rows, settings):
    monkeypatch.setattr(loss_program, "WORTH_HELP", 0)
    found = []
    for threads in ("1", "2", "4"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        found.append(learned(rows, **settings))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    with fused.plain_only():
        expected = learned(rows, **settings)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=2e-6)
