"""A2C, REINFORCE, PQN and TRPO's critic by programs made of their losses: equal to the plain ones."""

import copy

import pytest
import torch
from helpers.fused_calls import BOX, CHOICES, OBSERVATIONS, on_policy
from helpers.plainly import plainly

from headrace.algorithms import a2c, pqn, reinforce, trpo
from headrace.algorithms.adam import Adam
from headrace.core import fused
from headrace.data.spaces import Discrete
from headrace.policies.actor_critic import ActorCritic

SHARED = {"shared": True, "activation": "relu", "distribution": "squashed"}
GRADIENTS = {
    "a2c, Box": (a2c, a2c.A2C, BOX, {"normalize_return": False}),
    "a2c, Discrete": (a2c, a2c.A2C, CHOICES, {"normalize_advantage": True, "entropy_coef": 0.3, "activation": "elu"}),
    "a2c, shared": (a2c, a2c.A2C, BOX, SHARED),
    "reinforce": (reinforce, reinforce.Reinforce, CHOICES, {"entropy_coef": 0.1}),
    "reinforce without baseline": (reinforce, reinforce.Reinforce, BOX, {"baseline": False}),
}
LEARNED = {
    "pqn": (pqn.learn, pqn.PQN, CHOICES, {}),
    "pqn, counted from 2^24 + 1": (pqn.learn, pqn.PQN, Discrete(3, start=2**24 + 1), {}),
    "pqn, tanh": (pqn.learn, pqn.PQN, CHOICES, {"layer_norm": False, "activation": "tanh", "max_grad_norm": 0.1}),
    "trpo": (trpo.learn_critic, trpo.TRPO, BOX, {}),
    "trpo, Discrete": (trpo.learn_critic, trpo.TRPO, CHOICES, {"activation": "gelu", "max_grad_norm": 0.1}),
}


def arguments(kind, space, settings):
    """on_policy()'s, with masked rows and units of return of their own."""
    policy, *others = on_policy(space, kind, **settings)
    rollout, targets = others[1:3]
    rollout.valid[2, ::3] = False
    if getattr(policy, "return_normalizer", None) is not None:
        policy.return_normalizer.center.fill_(0.5)
        policy.return_normalizer.scale.fill_(3.0)
    return policy, others[0], rollout, targets._replace(valid=rollout.valid[:-1]), *others[3:]


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_equal_the_plain_ones_and_are_added(name, capsys):
    module, kind, space, settings = GRADIENTS[name]
    policy, optimizer, rollout, targets, _, config = arguments(kind, space, settings)
    metrics = module.gradient(policy, rollout, targets, config)
    found = optimizer.gradient.clone()
    optimizer.gradient.zero_()
    with fused.plain_only():
        expected = module.gradient(policy, rollout, targets, config)
    assert metrics.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(metrics[key], value, rtol=1e-4, atol=1e-5)
    assert optimizer.gradient.abs().max() > 1e-3
    torch.testing.assert_close(found, optimizer.gradient, rtol=1e-4, atol=1e-5 * float(found.abs().max()))
    module.gradient(policy, rollout, targets, config)
    torch.testing.assert_close(2 * found, optimizer.gradient, rtol=1e-4, atol=1e-4 * float(found.abs().max()))
    assert "runs in plain PyTorch" not in capsys.readouterr().err


@pytest.mark.parametrize("name", LEARNED)
def test_steps_equal_the_plain_ones(name, capsys):
    function, kind, space, settings = LEARNED[name]
    policy, optimizer, rollout, targets, order, config = arguments(kind, space, settings)
    other = copy.deepcopy(policy)
    plain = Adam(other.parameters(), config.learning_rate)
    before = optimizer.flat.clone()
    for _ in range(3):
        found = function(policy, optimizer, rollout, targets.returns, order, config)
        expected = plainly(function)(other, plain, rollout, targets.returns, order, config)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert optimizer.steps == plain.steps == 3 * 2 * 3
    assert not torch.equal(optimizer.flat, before)
    torch.testing.assert_close(optimizer.flat, plain.flat, rtol=0, atol=1e-5)
    if kind is trpo.TRPO:
        actor = torch.cat([p.detach().flatten() for p in policy.actor_parameters()])
        kept = torch.cat([p.detach().flatten() for p in other.actor_parameters()])
        assert torch.equal(actor, kept)
    assert "runs in plain PyTorch" not in capsys.readouterr().err


def test_shared_layers_stay_as_they_are_where_the_critic_alone_learns():
    _, _, rollout, targets, order, config = on_policy(BOX, trpo.TRPO)
    policy = ActorCritic(OBSERVATIONS, BOX, shared=True)
    optimizer, other = Adam(policy.parameters(), 1e-3), copy.deepcopy(policy)
    plain = Adam(other.parameters(), 1e-3)
    before = policy.actor.layers[0].weight.clone()
    found = trpo.learn_critic(policy, optimizer, rollout, targets.returns, order, config)
    expected = plainly(trpo.learn_critic)(other, plain, rollout, targets.returns, order, config)
    torch.testing.assert_close((found, optimizer.flat), (expected, plain.flat), rtol=1e-4, atol=1e-6)
    assert torch.equal(policy.actor.layers[0].weight, before)


def test_gradients_that_were_taken_away_are_made_again():
    policy, optimizer, rollout, targets, _, config = on_policy(BOX, a2c.A2C)
    a2c.gradient(policy, rollout, targets, config)
    expected = optimizer.gradient.clone()
    policy.zero_grad()
    a2c.gradient(policy, rollout, targets, config)
    found = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_bits_do_not_depend_on_threads(monkeypatch):
    found = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        monkeypatch.setattr("headrace.bindings.compiled.loss_program.WORTH_HELP", 0)
        policy, optimizer, rollout, targets, _, config = on_policy(BOX, a2c.A2C, num_steps=96)
        a2c.gradient(policy, rollout, targets, config)
        found.append(optimizer.gradient.clone())
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
