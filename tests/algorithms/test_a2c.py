"""A2C: its updates against independent ones in float64, and that it learns."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.corridor import Corridor
from helpers.on_policy_oracle import (
    SlowAdam,
    doubles,
    gradients_of,
    log_probs,
    rehearsed,
    returns_by_loop,
    rows_of,
    values,
)

from headrace.algorithms.a2c import A2C, A2CConfig
from headrace.core import fused
from headrace.parallel.collector import InlineCollector

SMALL = A2CConfig(num_steps=8, hidden=(8,), normalize_observation=False, normalize_return=False)


@pytest.fixture(autouse=True)
def plain():
    with fused.plain_only():
        yield


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"entropy_coef": 0.1, "value_coef": 0.25, "gae_lambda": 0.9},
        {"normalize_advantage": True, "max_grad_norm": 1e-2, "schedule": "linear"},
    ],
)
def test_ten_updates_equal_ten_in_float64(changes):
    config = dataclasses.replace(SMALL, learning_rate=3e-3, **changes)
    a2c, rollout = rehearsed(A2C, config)
    weights = doubles(a2c.policy)
    adam = SlowAdam(weights, 0.0, config.max_grad_norm)
    advantage, returns = returns_by_loop(rollout, config.gamma, config.gae_lambda)
    observation, action, valid = rows_of(rollout)
    gain = advantage.reshape(-1)[valid]
    if config.normalize_advantage:
        gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-8)
    for iteration in range(10):
        for w in weights.values():
            w.requires_grad_()
        chances = log_probs(weights, observation[valid])
        chosen = chances[torch.arange(len(chances)), action[valid]]
        entropy = -(chances.exp() * chances).sum(1).mean()
        error = ((values(weights, observation[valid]) - returns.reshape(-1)[valid]) ** 2).mean()
        loss = -(chosen * gain).mean() + config.value_coef * error - config.entropy_coef * entropy
        gradients = gradients_of(loss, weights)
        adam.rate = config.learning_rate * (1 - iteration / 10 if config.schedule == "linear" else 1)
        with torch.no_grad():
            adam.step(gradients)
        for w in weights.values():
            w.requires_grad_(False)
        metrics = a2c.update(rollout, iteration / 10)
        assert metrics["value_loss"] == pytest.approx(error.item(), rel=1e-4)
        assert metrics["entropy_loss"] == pytest.approx(-entropy.item(), rel=1e-4)
    for name, ours in a2c.policy.named_parameters():
        torch.testing.assert_close(ours.double(), weights[name], rtol=2e-4, atol=2e-5)


def test_going_on_from_a_state_is_bit_equal():
    config = dataclasses.replace(SMALL, normalize_observation=True, normalize_return=True)
    a2c, rollout = rehearsed(A2C, config)
    a2c.update(rollout, 0.1)
    other, _ = rehearsed(A2C, config, seed=5)
    other.load_state_dict(a2c.state_dict())
    a2c.update(rollout, 0.2)
    other.update(rollout, 0.2)
    assert torch.equal(a2c.optimizer.flat, other.optimizer.flat) and other.iteration == 2


def test_settings_out_of_range_are_named():
    with pytest.raises(ValueError, match="num_steps must be 1 or more, got 0"):
        A2CConfig(num_steps=0)
    with pytest.raises(ValueError, match="learning_rate must be a number, got nan"):
        A2CConfig(learning_rate=float("nan"))


def test_a2c_learns_to_walk_the_corridor():
    config = A2CConfig(num_steps=8, learning_rate=2e-3, hidden=(32, 32))
    env = Corridor(64)
    a2c = A2C.build(config, env.observation_space, env.action_space, 1, "cpu")
    collector = InlineCollector(env, a2c.policy, config.num_steps, a2c.columns(), seed=1)
    for _ in range(200):
        rollout = collector.collect()
        a2c.update(rollout, 0.0)
    ended = ~rollout.valid[:-1]
    assert rollout.episode_return[ended].mean() > 0.5
    assert a2c.policy.predict(np.stack([np.linspace(-1, 0.6, 5), np.ones(5)], 1))[0].tolist() == [1] * 5
