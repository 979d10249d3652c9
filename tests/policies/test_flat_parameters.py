"""Networks in one buffer."""

import copy

import pytest
import torch

from headrace.policies.flat_parameters import flatten, flatten_gradients, polyak


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def test_parameters_become_views_and_keep_their_values():
    module = network()
    before, x = {name: p.clone() for name, p in module.state_dict().items()}, torch.randn(5, 3)
    expected = module(x)
    flat = flatten(module.parameters())
    assert len(flat) == sum(p.numel() for p in module.parameters())
    assert all(torch.equal(before[name], p) for name, p in module.state_dict().items())
    assert torch.equal(module(x), expected)
    flat.zero_()
    assert not any(p.any() for p in module.parameters())


def test_gradients_are_added_in_place():
    module, other = network(), network()
    gradient = flatten_gradients(module.parameters())
    for _ in range(2):
        module(torch.ones(1, 3)).sum().backward()
        other(torch.ones(1, 3)).sum().backward()
    assert torch.equal(gradient, torch.cat([p.grad.flatten() for p in other.parameters()]))


def test_a_target_follows_as_parameter_by_parameter():
    source, target = network(0), network(1)
    slow, reference = flatten(target.parameters()), copy.deepcopy(target)
    fast = flatten(source.parameters())
    polyak(slow, fast, 0.1)
    for mine, old, new in zip(target.parameters(), reference.parameters(), source.parameters(), strict=True):
        torch.testing.assert_close(mine, 0.9 * old + 0.1 * new)
    polyak(slow, fast, 1.0)
    assert torch.equal(slow, fast)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"buffers of \(3,\) and \(4,\)"):
        polyak(torch.zeros(3), torch.zeros(4), 0.5)
    pair = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))]
    with pytest.raises(ValueError, match=r"one dtype.*float64"):
        flatten(pair)
