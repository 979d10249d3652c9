"""Decisions by programs of Headrace's own policies: the plain policy's."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch

from headrace.algorithms.adam import Adam
from headrace.bindings.collecting import acting
from headrace.core import fused, rng
from headrace.data.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from headrace.policies.actor_critic import ActorCritic

VECTOR = Box(-3, 3, (5,))
CASES = {
    "discrete": (Discrete(3), {}),
    "counted from 2": (Discrete(7, start=2), {"shared": True, "activation": "elu"}),
    "counted from 2^24 + 1": (Discrete(3, start=2**24 + 1), {"hidden": (10,)}),
    "multi-discrete": (MultiDiscrete([3, 2, 5], start=[0, 1, 0]), {"hidden": (10,)}),
    "gaussian": (Box(-2, 4, (3,)), {}),
    "squashed": (Box(-2, 4, (3,)), {"distribution": "squashed", "hidden": (20, 33)}),
    "layer norm": (Discrete(3), {"layer_norm": True, "activation": "gelu"}),
    "mish": (Discrete(3), {"activation": "mish", "hidden": (24, 70)}),
    "multi-binary": (MultiBinary(5), {}),
    "normalised": (Box(-1, 1, (2,)), {"normalize_observation": True, "normalize_return": True}),
}


def prepared(space, options):
    """A policy with varied outputs and parameters in one buffer."""
    policy = ActorCritic(VECTOR, space, **options)
    with torch.no_grad():
        policy.actor_out.weight.mul_(100)
        if hasattr(policy.head, "log_std"):
            policy.head.log_std.copy_(torch.linspace(-1, 0.3, policy.head.num_parameters))
        if policy.return_normalizer is not None:
            policy.return_normalizer.center.fill_(3)
            policy.return_normalizer.scale.fill_(2)
            policy.encoder.normalizer.scale.fill_(4)
    Adam(policy.parameters(), 1e-3)
    return policy


def observations(rows):
    """Observations with the layout of a rollout's column: feature-major, with other steps between its rows."""
    return torch.randn(5, 3, rows, generator=torch.Generator().manual_seed(rows))[:, 1].t()


@pytest.mark.parametrize("rows", [1, 64, 333, 5000])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_decisions_are_the_plain_policys(name, rows, capsys):
    policy, observation = prepared(*CASES[name]), observations(rows)
    drawn = rng.uniform(0, rng.Purpose.ACTION, 7, 1, rows, policy.num_draws, "cpu")[0]
    for random in (drawn, None):
        mine = policy.act(observation, None, random)
        with fused.plain_only():
            plain = policy.act(observation, None, random)
            expected = policy.log_prob_entropy_value(observation, mine.action).log_prob
        assert (mine.action.dtype, mine.action.shape) == (plain.action.dtype, plain.action.shape)
        if mine.action.dtype == torch.int32:
            same = (mine.action == plain.action).view(rows, -1).all(1)
            assert same.float().mean() > 0.999 and (rows > 1000 or same.all())
        else:
            torch.testing.assert_close(mine.action, plain.action, rtol=1e-5, atol=1e-5)
            same = torch.ones(rows, dtype=torch.bool)
        torch.testing.assert_close(mine.log_prob[same], expected[same], rtol=1e-6, atol=4e-6)
        torch.testing.assert_close(mine.value, plain.value, rtol=1e-6, atol=4e-6)
    assert "runs in plain PyTorch" not in capsys.readouterr().err


@torch.no_grad()
def test_bits_depend_neither_on_the_batch_nor_on_threads(monkeypatch):
    policy, observation = prepared(Box(-2, 4, (3,)), {}), observations(5000)
    random = torch.rand(5000, policy.num_draws, generator=torch.Generator().manual_seed(0))
    whole = []
    for threads in (1, 2):
        monkeypatch.setenv("HEADRACE_THREADS", str(threads))
        whole.append(policy.act(observation, None, random))
    for one, other in zip(*(d[:3] for d in whole), strict=True):
        assert torch.equal(one, other)
    for first, last in ((1003, 1100), (17, 18), (20, 28), (30, 39), (4990, 5000)):
        part = policy.act(observation[first:last], None, random[first:last])
        for one, few in zip(whole[0][:3], part[:3], strict=True):
            assert torch.equal(one[first:last], few)


@torch.no_grad()
def test_a_step_of_learning_is_seen():
    policy, observation = prepared(Discrete(3), {}), observations(64)
    before = policy.act(observation, None, None).value.clone()
    policy.critic_out.bias.add_(1)
    torch.testing.assert_close(policy.act(observation, None, None).value, before + 1)
    policy.load_state_dict({k: v.clone() for k, v in ActorCritic(VECTOR, Discrete(3), seed=5).state_dict().items()})
    with fused.plain_only():
        expected = policy.act(observation, None, None).value
    torch.testing.assert_close(policy.act(observation, None, None).value, expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_whatever_differs_from_call_to_call_is_seen():
    policy = prepared(*CASES["normalised"])
    normalizer, returns = policy.encoder.normalizer, policy.return_normalizer

    def agrees(rows, random):
        observation = observations(rows)
        mine = policy.act(observation, None, random)
        with fused.plain_only():
            plain = policy.act(observation, None, random)
        for one, other in zip(mine[:3], plain[:3], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

    agrees(64, torch.rand(64, 2))
    agrees(3, None)
    agrees(100, torch.rand(2, 100).t())
    normalizer.center.fill_(0.5)
    returns.center.fill_(-7)
    agrees(1, torch.rand(1, 2))
    normalizer.center, returns.scale = torch.full((5,), -2.0), torch.tensor(0.3)
    normalizer.limit = 0.1
    agrees(1, torch.rand(1, 2))


@torch.no_grad()
def test_nan_stays_with_its_observation():
    policy, observation = prepared(Discrete(3), {}), observations(100).clone()
    observation[7, 2] = torch.nan
    decision = policy.act(observation, None, torch.rand(100, 1))
    assert decision.value.isnan().nonzero().flatten().tolist() == [7]
    assert decision.log_prob.isnan().nonzero().flatten().tolist() == [7]


def test_gradients_are_left_to_torch():
    policy = prepared(Discrete(3), {})
    assert policy.act(observations(64), None, None).value.requires_grad
    assert fused.kernel_of(ActorCritic.act, policy, observations(64), None, None) is None


@torch.no_grad()
def test_copies_and_replaced_parameters_have_the_same_bits():
    policy, observation = prepared(Discrete(3), {}), observations(64)
    expected, other = policy.act(observation, None, None), deepcopy(policy)
    other.actor_out.weight = torch.nn.Parameter(other.actor_out.weight.clone())
    assert fused.kernel_of(ActorCritic.act, other, observation, None, None) is acting.act
    assert all(map(torch.equal, other.act(observation, None, None)[:3], expected[:3]))


@torch.no_grad()
def test_what_is_patched_acts(monkeypatch):
    policy, observation = prepared(Discrete(3), {}), observations(64)
    before = policy.act(observation, None, None).value
    with monkeypatch.context() as patch:
        patch.setattr(ActorCritic, "_value", lambda self, features: self.critic_out(features).flatten() + 3)
        torch.testing.assert_close(policy.act(observation, None, None).value, before + 3)
    assert torch.equal(policy.act(observation, None, None).value, before)


def test_another_thread_acts_at_the_same_time():
    policy, observation = prepared(Box(-2, 4, (3,)), {"hidden": (64, 64)}), observations(64)

    @torch.no_grad()
    def acted(_):
        return policy.act(observation, None, None)[:3]

    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(acted, range(40))]
    assert all(all(map(torch.equal, one, acted(0))) for one in found)


@torch.no_grad()
def test_a_value_has_the_bits_of_a_decisions():
    policy, observation = prepared(*CASES["normalised"]), observations(100)
    assert torch.equal(policy.value(observation), policy.act(observation, None, torch.rand(100, 2)).value)
