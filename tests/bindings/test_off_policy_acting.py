"""Actions of Q-networks and off-policy actors by programs: the plain policy's."""

import pytest
import torch

from headrace.algorithms.adam import Adam
from headrace.bindings.collecting import acting
from headrace.core import fused
from headrace.core.fused import kernel_of
from headrace.data.spaces import Box, Discrete
from headrace.policies.actor_q import ActorQ
from headrace.policies.q_network import QNetwork

VECTOR = Box(-3, 3, (5,))
CASES = {
    "single": (QNetwork, Discrete(4), {}),
    "dueling": (QNetwork, Discrete(7, start=2), {"dueling": True, "hidden": (20, 33), "layer_norm": True}),
    "dueling, branches alone": (QNetwork, Discrete(3), {"dueling": True, "hidden": (24,)}),
    "stochastic": (ActorQ, Box(-2, 4, (3,)), {"hidden": (20, 33)}),
    "deterministic": (ActorQ, Box(-2, 4, (3,)), {"hidden": (20,), "deterministic": True}),
}


def prepared(name, scattered=False):
    kind, space, options = CASES[name]
    policy = kind(VECTOR, space, seed=3, **options)
    policy.exploration.fill_(0.3)
    if not scattered:
        Adam(policy.parameters(), 1e-3)
    return policy


def same(policy, observation, random):
    """Acts by a program, and compares with plain torch."""
    assert kernel_of(type(policy).act, policy, observation, None, random).__module__ == acting.__name__
    mine = policy.act(observation, None, random)
    with fused.plain_only():
        plain = policy.act(observation, None, random)
    assert (mine.action.dtype, mine.action.shape) == (plain.action.dtype, plain.action.shape)
    if mine.value is None:
        torch.testing.assert_close(mine.action, plain.action, rtol=1e-5, atol=1e-5)
        return mine
    torch.testing.assert_close(mine.value, plain.value, rtol=1e-5, atol=1e-5)
    assert (mine.action != plain.action).float().mean() < 0.005  # near ties
    return mine


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_actions_are_the_plain_policys(name):
    policy = prepared(name)
    generator = torch.Generator().manual_seed(1)
    returned = []
    for rows in (1, 70, 64):  # other numbers of rows in one call's arguments
        columns = torch.randn(5, 3, rows, generator=generator)[:, 1].t()  # as a rollout's, feature-major
        for observation in (columns, columns.contiguous()):
            random = torch.rand(rows, policy.num_draws, generator=generator)
            for given in (random, None):
                output = same(policy, observation, given)
                returned.append((output.action, output.action.clone()))
    assert all(torch.equal(*pair) for pair in returned)  # later calls write elsewhere


@torch.no_grad()
def test_a_dueling_network_sees_steps_of_learning_and_scattered_parameters():
    policy, observation = prepared("dueling", scattered=True), torch.randn(64, 5)
    before = same(policy, observation, None).value
    policy.value_out.bias.add_(2.0)
    torch.testing.assert_close(same(policy, observation, None).value, before + 2)
    policy.exploration.fill_(1.0)
    random = torch.rand(64, 2)
    assert torch.equal(same(policy, observation, random).action, (random[:, 1] * 7).int() + 2)
