"""An actor with critics of its actions: bounds, exploration that may remember, and what a checkpoint needs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from headrace.algorithms.td3 import TD3Config
from headrace.data.spaces import Box, Dict, Discrete
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics

OBSERVATIONS = Box(-1, 1, (3,))
ACTIONS = Box(np.array([-2.0, 0.0], np.float32), np.array([4.0, 1.0], np.float32))


def made(deterministic=False, **options):
    policy = ActorQ(OBSERVATIONS, ACTIONS, (16,), deterministic=deterministic, **options)
    with torch.no_grad():
        policy.actor_out.weight.mul_(100)
    return policy


def random(rows, policy, seed=0):
    return torch.rand(rows, policy.num_draws, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("deterministic", [True, False])
def test_actions_lie_within_the_bounds_and_do_not_depend_on_the_batch(deterministic):
    policy = made(deterministic)
    policy.exploration.fill_(2.0)
    seen, draws = torch.randn(100, 3), random(100, policy)
    for given in (None, draws):
        action = policy.act(seen, None, given).action
        assert action.shape == (100, 2) and action.dtype == torch.float32
        assert (action >= torch.tensor([-2.0, 0.0])).all() and (action <= torch.tensor([4.0, 1.0])).all()
        assert action.std(0).min() > 0.1
        part = policy.act(seen[:7], None, None if given is None else draws[:7]).action
        assert torch.equal(part, action[:7])


@torch.no_grad()
@pytest.mark.parametrize("deterministic", [True, False])
def test_random_actions_fill_the_box_alike(deterministic):
    policy = made(deterministic)
    policy.random.fill_(1)
    action = policy.act(torch.randn(6400, 3), None, random(6400, policy)).action
    shares = (action - torch.tensor([-2.0, 0.0])) / torch.tensor([6.0, 1.0])
    counts = torch.stack([torch.histc(column, 8, 0, 1) for column in shares.t()])
    assert ((counts - 800).abs() < 150).all()


@torch.no_grad()
def test_noise_that_remembers_stays_normal_and_keeps_its_share():
    """The noise's variance is 1 once it has forgotten where it began; random actions still fill the box uniformly."""
    policy, rows = made(True, noise_autocorrelation=0.9), 4096
    policy.exploration.fill_(1.0)
    rnn_state, seen = policy.initial_state(rows), torch.zeros(rows, 3)
    assert (rnn_state == 0).all()
    for step in range(40):
        before, rnn_state = rnn_state, policy.act(seen, rnn_state, random(rows, policy, step)).rnn_state
    assert rnn_state.shape == (rows, 2) and rnn_state.std(0).sub(1).abs().max() < 0.05
    assert ((before * rnn_state).mean(0) - 0.9).abs().max() < 0.06
    policy.random.fill_(1)
    action = policy.act(seen, rnn_state, random(rows, policy, 41)).action[:, 1]
    assert (torch.histc(action, 8, 0, 1) - rows / 8).abs().max() < 120
    assert torch.equal(policy.act(seen, rnn_state, None).rnn_state, rnn_state)  # nothing is drawn


def test_without_memory_there_is_none():
    policy = made()
    assert policy.initial_state(4) is None
    decision = policy.act(torch.zeros(4, 3), None, random(4, policy))
    assert decision.rnn_state is None and decision.log_prob is None and decision.value is None


def test_its_config_makes_it_again():
    policy = made(True, critics=1, activation="tanh", noise_autocorrelation=0.5, normalize_observation=True)
    other = ActorQ.from_config(json.loads(json.dumps(policy.config())))
    other.load_state_dict(policy.state_dict())
    seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert (other.predict(seen)[0] == policy.predict(seen)[0]).all() and other.config() == policy.config()
    assert other.predict(seen[0])[0].shape == (2,)


def test_the_value_is_that_of_the_lowest_critic():
    policy, seen = made(), torch.randn(64, 3)  # a whole block: value() pads others
    values = policy.critics(seen, policy.best_action(seen))
    assert values.shape == (2, 64) and torch.equal(policy.value(seen), torch.minimum(values[0], values[1]))


def test_critics_side_by_side_are_those_one_by_one():
    critics = Critics(3, 4, 2, (8, 5), "tanh", torch.Generator().manual_seed(0))
    seen, action = torch.randn(6, 4), torch.randn(6, 2)
    together = critics(seen, action)
    for c in range(3):
        x = torch.cat((seen, action), 1)
        for weight, bias in zip(critics.weights, critics.biases, strict=True):
            x = x @ weight[c] + bias[c]
            x = x if weight.shape[2] == 1 else torch.tanh(x)
        torch.testing.assert_close(together[c], x[:, 0])
    assert not torch.equal(critics.weights[0][0], critics.weights[0][1])


@pytest.mark.parametrize("space", [Discrete(2), Box(-np.inf, np.inf, (2,)), Box(1.0, 1.0, (2,)), Box(-1, 1, (2, 2))])
def test_other_actions_are_refused(space):
    with pytest.raises(TypeError, match=r"Box of one dimension|needs bounds"):
        ActorQ(OBSERVATIONS, space)


def test_several_things_seen_at_once():
    policy = ActorQ(Dict({"a": OBSERVATIONS, "b": Discrete(3)}), ACTIONS, (8,))
    assert policy.predict({"a": np.zeros(3, np.float32), "b": 2})[0].shape == (2,)


@pytest.mark.parametrize("wrong", [{"activation": "none"}, {"hidden": (0,)}])
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ValueError, match=r"unknown activation|hidden sizes"):
        ActorQ(OBSERVATIONS, ACTIONS, **wrong)


def test_initial_weights_of_critics_alone_are_scaled():
    whole, less = made(), made(critic_init_scale=0.25)
    assert all(torch.equal(0.25 * a, b) for a, b in zip(whole.critics.weights, less.critics.weights, strict=True))
    assert torch.equal(whole.actor_out.weight, less.actor_out.weight)
    with pytest.raises(ValueError, match="critic_init_scale must be above 0, got 0"):
        TD3Config(critic_init_scale=0.0)
