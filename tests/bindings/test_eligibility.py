"""Changes of users to a policy take effect, whichever algorithm learns, or plain torch runs and a line says why."""

import copy
import gc
import re
import weakref

import numpy as np
import pytest
import torch
from helpers.learned import FORCES, VECTOR, made, updated, weights
from helpers.plainly import compile_no_losses
from torch.nn.utils import parametrizations, prune

from headrace.algorithms.base import ALGORITHMS
from headrace.core import fused
from headrace.core.device import torch_threads
from headrace.core.looking import looked_once
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.examination import examine
from headrace.policies.flat_parameters import flatten
from headrace.policies.networks import MLP

SAYING = ("dqn", "sac", "td3", "ddpg", "ppo")  # whose learning says why it is plain


@pytest.fixture(autouse=True)
def said(monkeypatch):
    monkeypatch.setattr(fused, "_said", set())
    with torch_threads(1):  # several, on a machine that others use, take a hundred times as long
        yield


def first_mlp(policy):
    return policy.trunk if hasattr(policy, "trunk") else policy.actor


@pytest.mark.parametrize("name", ALGORITHMS)
def test_frozen_weights_stay_and_the_others_learn(name, capsys, monkeypatch):
    if name not in SAYING:
        compile_no_losses(monkeypatch)
    algorithm, rollout = made(name)
    frozen = first_mlp(algorithm.policy).layers[0].weight.requires_grad_(False)
    other = first_mlp(algorithm.policy).layers[1].weight
    before = frozen.clone(), other.detach().clone()
    updated(algorithm, rollout)
    assert torch.equal(frozen, before[0]) and not torch.equal(other, before[1])
    if name in SAYING:
        assert "plain PyTorch" not in capsys.readouterr().err  # their losses are compiled without that gradient
    frozen.requires_grad_(True)
    updated(algorithm, rollout)
    assert not torch.equal(frozen, before[0])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_replaced_parameters_are_learned_as_if_their_values_had_been_copied(name):
    copied, rollout = made(name)
    assigned, _ = made(name)
    state = {key: value.clone() for key, value in made(name, seed=5)[0].policy.state_dict().items()}
    copied.policy.load_state_dict(state)
    assigned.policy.load_state_dict(state, assign=True)
    start = weights(assigned)
    found, expected = updated(assigned, rollout), updated(copied, rollout)
    assert all(map(torch.equal, found, expected))
    names = [name for name, _ in assigned.policy.named_parameters()]
    stayed = [own for own, x, y in zip(names, found, start, strict=True) if torch.equal(x, y)]
    assert stayed == [own for own in names if name == "bc" and own.startswith("critic")]  # which learns no values


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradients_that_were_taken_away_are_there_again(name):
    cleared, rollout = made(name)
    other, _ = made(name)
    cleared.policy.zero_grad()
    assert all(map(torch.equal, updated(cleared, rollout), updated(other, rollout)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_hooks_are_called(name, capsys):
    algorithm, rollout = made(name)
    calls, layer = [], first_mlp(algorithm.policy).layers[0]
    handles = [layer.register_forward_hook(lambda *_: calls.append("module"))]
    updated(algorithm, rollout, 1)
    assert calls
    if name in SAYING:
        assert "layers.0 has a hook" in capsys.readouterr().err
    handles.pop().remove()
    calls.clear()
    weight, before = layer.weight, layer.weight.detach().clone()
    handle = weight.register_hook(lambda gradient: calls.append("gradient"))
    updated(algorithm, rollout, 1)
    assert calls and not torch.equal(weight, before)
    if name in SAYING:
        assert "layers.0.weight has a gradient hook" in capsys.readouterr().err
        handle.remove()
        assert serving(algorithm, rollout)


def serving(algorithm, rollout):
    """Tell whether an update is quiet: a kernel runs."""
    fused._said.clear()
    updated(algorithm, rollout, 1)
    return not fused._said


@pytest.mark.parametrize("name", ALGORITHMS)
def test_functions_and_modules_put_in_take_effect(name, monkeypatch):
    if name not in ("dqn", "sac", "ppo"):
        compile_no_losses(monkeypatch)
    algorithm, rollout = made(name)
    part = "trunk" if hasattr(algorithm.policy, "trunk") else "actor"
    own, calls = first_mlp(algorithm.policy), []
    own.forward = lambda *given: calls.append(1) or type(own).forward(own, *given)
    updated(algorithm, rollout, 1)
    assert calls
    put_in = MLP(5, (16, 16), own.activation, torch.Generator().manual_seed(9))
    setattr(algorithm.policy, part, put_in)
    if name == "crossq":  # a plain MLP lacks its normalisation
        with pytest.raises(ValueError, match="by one of other sizes"):
            updated(algorithm, rollout, 1)
        return
    before = put_in.layers[0].weight.detach().clone()
    updated(algorithm, rollout, 1)
    assert not torch.equal(put_in.layers[0].weight, before)
    torch_one = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh())
    setattr(algorithm.policy, part, torch_one)
    torch_one.norms = ()
    before = torch_one[0].weight.detach().clone()
    updated(algorithm, rollout, 1)
    assert not torch.equal(torch_one[0].weight, before)


def test_a_module_of_other_sizes_is_learned_where_there_is_no_target_network(capsys):
    algorithm, rollout = made("ppo")
    algorithm.policy.actor = MLP(5, (8, 16), "tanh", torch.Generator().manual_seed(9))
    before = weights(algorithm)
    assert not any(map(torch.equal, updated(algorithm, rollout), before))
    assert "ppo: the policy has other parameters now, and its optimizer begins again" in capsys.readouterr().err
    algorithm, rollout = made("dqn")
    algorithm.policy.trunk = MLP(5, (8, 16), "relu", torch.Generator().manual_seed(9))
    with pytest.raises(ValueError, match="make a new DQN of this policy"):
        algorithm.update(rollout, 0.0)


def acting(hidden=(16,)):
    policy = ActorCritic(VECTOR, FORCES, hidden)
    policy.actor_out.weight.data.mul_(50)
    flatten(policy.parameters())
    return policy, np.random.default_rng(0).normal(size=(7, 5))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: setattr(p.actor_out, "weight", torch.nn.Parameter(torch.ones_like(p.actor_out.weight))),
        lambda p: p.actor.layers[0].register_forward_hook(lambda module, given, found: found + 1),
        lambda p: p.actor.register_forward_pre_hook(lambda module, given: (given[0] + 1,)),
        lambda p: setattr(p, "forward", lambda seen: forward_of(p, seen + 1)),
        lambda p: setattr(p.actor, "_activate", torch.relu_),
        lambda p: setattr(p.head, "squash", True),
        lambda p: prune.random_unstructured(p.actor.layers[0], "weight", 0.9),
        lambda p: prune.random_unstructured(p.actor_out, "weight", 0.9),
        lambda p: parametrizations.spectral_norm(p.actor.layers[0]),
        lambda p: p.load_state_dict(acting_state(seed=4), assign=True),
        lambda p: p.actor_out.bias.data.add_(1),
    ],
)
def test_actions_are_those_of_the_changed_policy(change):
    policy, seen = acting()
    before, _ = policy.predict(seen)[0], policy.predict(seen[0])  # one observation goes another way
    change(policy)
    found, one = policy.eval().predict(seen)[0], policy.predict(seen[0])[0]
    with fused.plain_only():
        expected = policy.predict(seen)[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(one, found[0])
    assert np.abs(found - before).max() > 1e-3


def forward_of(policy, seen):
    return ActorCritic.forward(policy, seen)


def acting_state(seed):
    policy = ActorCritic(VECTOR, FORCES, (16,), seed=seed)
    policy.actor_out.weight.data.mul_(50)
    return policy.state_dict()


def test_functional_calls_use_the_parameters_that_they_are_given():
    policy, seen = acting()
    seen = torch.tensor(seen, dtype=torch.float32)
    doubled = {name: 2 * parameter.detach() for name, parameter in policy.named_parameters()}
    other = copy.deepcopy(policy)
    other.load_state_dict(doubled, strict=False)
    found = torch.func.functional_call(policy, doubled, (seen,))[1]
    assert torch.equal(found, other(seen)[1]) and not torch.equal(found, policy(seen)[1])


def test_what_was_found_does_not_keep_a_policy():
    made, seen = acting()
    policy = weakref.ref(made)
    with torch.no_grad():
        made.act(torch.tensor(seen, dtype=torch.float32), None, None)
    del made
    gc.collect()
    assert policy() is None


def test_the_same_is_found_until_something_changes():
    policy, _ = acting()
    found = examine(policy)
    for quiet in (policy.eval, policy.train, lambda: policy.critic_out.bias.data.add_(1), policy.state_dict):
        quiet()
        assert examine(policy) is found
    torch.nn.Linear(2, 2).register_forward_hook(print)  # another module's
    assert examine(policy) is found
    policy.critic_out.bias.requires_grad_(False)
    with looked_once():  # looks first
        now = examine(policy)
        assert now is not found
        policy.critic_out.bias.requires_grad_(True)
        assert examine(policy) is now
    assert examine(policy) is not now


@pytest.mark.parametrize(
    ("seen", "random", "error"),
    [
        (np.zeros((3, 5), np.float32), None, "predict() takes NumPy arrays"),
        ([[0.0] * 5], None, "got list"),
        (torch.zeros(3, 5, dtype=torch.float64), None, "dtype"),
        (torch.zeros(3, 4), None, "shape"),
        (torch.zeros(3, 5), torch.zeros(3, 7), "size"),
        (torch.zeros(3, 5), torch.zeros(2, 2), "rows each, got 2 and 3"),
    ],
)
def test_what_a_kernel_cannot_read_is_refused_in_words(seen, random, error):
    policy, _ = acting()
    with torch.no_grad(), pytest.raises((TypeError, ValueError, RuntimeError), match=re.escape(error)):
        policy.act(seen, None, random)
    if random is None:
        with torch.no_grad(), pytest.raises((TypeError, ValueError, RuntimeError), match=re.escape(error)):
            policy.value(seen)
