"""Changes that users make in a target network or a temperature take effect as in plain torch."""

import copy

import pytest
import torch
from helpers.learned import made, updated, weights
from helpers.plainly import compile_no_losses
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations

from headrace.core import fused
from headrace.core.device import torch_threads
from headrace.policies.networks import ACTIVATIONS

LEARN = ("dqn", "sac", "tqc", "td3", "ddpg")


@pytest.fixture(autouse=True)
def said(monkeypatch):
    monkeypatch.setattr(fused, "_said", set())
    with torch_threads(1):
        yield


def part(target):
    """The module of a target network that gives its values."""
    return target.out if hasattr(target, "trunk") else target.critics


def name_of_part(target):
    return "out" if hasattr(target, "trunk") else "critics"


def halved(module, given, output):
    return output / 2


def hook(target):
    part(target).register_forward_hook(halved)


def hook_before(target):
    part(target).register_forward_pre_hook(lambda module, given: tuple(x / 2 for x in given))


def patched(target):
    forward = part(target).forward
    part(target).forward = lambda *given: forward(*given) / 2


def replaced(target):
    other = copy.deepcopy(part(target))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    setattr(target, name_of_part(target), other)


def another_class(target):
    kind = type(part(target))
    part(target).__class__ = type("Other", (kind,), {"forward": lambda self, *given: kind.forward(self, *given) / 2})


def another_activation(target):
    mlp = target.trunk if hasattr(target, "trunk") else target.critics
    mlp.activation, mlp._activate = "silu", ACTIVATIONS["silu"]


def no_normalizer(target):
    target.encoder.normalizer = None


def other_statistics(target):
    target.encoder.normalizer.center = target.encoder.normalizer.center + 1


def parameter(target):
    if hasattr(target, "trunk"):
        target.out.bias = nn.Parameter(target.out.bias.detach() + 1)
    else:
        target.critics.biases[-1] = nn.Parameter(target.critics.biases[-1].detach() + 1)


def parametrized(target):
    if hasattr(target, "trunk"):
        parametrizations.weight_norm(target.out)
        with torch.no_grad():
            target.out.parametrizations.weight.original0.mul_(0.5)
    else:
        hook(target)  # whose weights are in lists, which have no parametrizations


EFFECTIVE = (
    *(hook, hook_before, patched, replaced, another_class, another_activation, no_normalizer, other_statistics),
    *(parameter, parametrized),
)


HOOKS = (hook, hook_before, patched)
COMPILED = ("dqn", "sac")  # the others are compiled likewise


def changed(name, change):
    algorithm, rollout = made(name, normalize_observation=True)
    change(algorithm.networks.target)
    return algorithm, rollout


@pytest.mark.parametrize("change", EFFECTIVE, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", LEARN)
def test_a_change_takes_effect_as_in_plain_torch(name, change, capsys, monkeypatch):
    hooked = change in HOOKS or (change is parametrized and name != "dqn")
    if not hooked and name not in COMPILED:
        compile_no_losses(monkeypatch)
    unchanged = updated(*made(name, normalize_observation=True))
    found = updated(*changed(name, change))
    said = capsys.readouterr().err  # of what calls do besides their class; the rest is compiled from its source
    assert ("learning from replay runs in plain PyTorch: in networks.target, " in said) == hooked
    by_torch = changed(name, change)
    with fused.plain_only():
        expected = updated(*by_torch)
    assert alike(found, expected) and not alike(found, unchanged)


def alike(one, other):
    return all(torch.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in zip(one, other, strict=True))


def backward_hook(target):
    part(target).register_full_backward_hook(lambda *_: None)


def learned(target):
    target.requires_grad_(True)


def saved_with_hook(target):
    target.register_state_dict_pre_hook(lambda *_: None)


@pytest.mark.parametrize("change", [backward_hook, learned, saved_with_hook], ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", LEARN)
def test_what_has_no_effect_in_plain_torch_has_none(name, change):
    found, expected = updated(*changed(name, change)), updated(*made(name, normalize_observation=True))
    assert alike(found, expected)


@pytest.mark.parametrize("name", LEARN)
def test_kernels_serve_again_once_a_hook_is_gone(name, capsys):
    algorithm, rollout = made(name)
    handle = part(algorithm.networks.target).register_forward_hook(halved)
    algorithm.update(rollout, 0.0)
    assert "has a hook" in capsys.readouterr().err
    handle.remove()
    fused._said.clear()
    algorithm.update(rollout, 0.0)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", LEARN)
def test_hooks_on_all_modules_are_called(name):
    algorithm, rollout = made(name)
    calls, target = [], part(algorithm.networks.target)
    handle = register_module_forward_hook(lambda module, *_: calls.append(module))
    try:
        algorithm.update(rollout, 0.0)
    finally:
        handle.remove()
    assert any(module is target for module in calls)


@pytest.mark.parametrize("name", ["sac", "tqc", "crossq"])
def test_a_frozen_temperature_stays(name):
    algorithm, rollout = made(name)
    algorithm.log_temperature.requires_grad_(False)
    before, start = algorithm.log_temperature.clone(), weights(algorithm)
    assert not all(map(torch.equal, updated(algorithm, rollout), start))
    assert torch.equal(algorithm.log_temperature, before)
