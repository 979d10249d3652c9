"""REINFORCE: its updates against independent ones in float64, and that it learns."""

import dataclasses

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

from headrace.algorithms.reinforce import Reinforce, ReinforceConfig
from headrace.core import fused
from headrace.parallel.collector import InlineCollector

SMALL = ReinforceConfig(num_steps=8, hidden=(8,), normalize_observation=False, normalize_return=False)


@pytest.fixture(autouse=True)
def plain():
    with fused.plain_only():
        yield


def whole_returns(rollout, gamma):
    """Returns to each episode's end, and which rows lie in an episode that ends; one env and step at a time."""
    returns, counts = torch.zeros_like(rollout.reward, dtype=torch.float64), torch.zeros_like(rollout.terminated)
    for n in range(rollout.num_envs):
        following, finished = 0.0, False
        for t in reversed(range(rollout.num_steps)):
            if rollout.terminated[t, n] or rollout.truncated[t, n]:
                following, finished = 0.0, True
            following = rollout.reward[t, n].double() + gamma * following
            returns[t, n], counts[t, n] = following, finished and rollout.valid[t, n]
    return returns, counts


@pytest.mark.parametrize(
    "changes", [{}, {"normalize_advantage": False, "entropy_coef": 0.1}, {"baseline": False}, {"max_grad_norm": 1e-2}]
)
def test_ten_updates_equal_ten_in_float64(changes):
    config = dataclasses.replace(SMALL, **changes)
    reinforce, rollout = rehearsed(Reinforce, config)
    weights = doubles(reinforce.policy)
    adam = SlowAdam(weights, config.learning_rate, config.max_grad_norm)
    observation, action, counts = rows_of(rollout)
    if config.baseline:
        gain, returns = returns_by_loop(rollout, config.gamma, 1.0)
    else:
        returns, finished = whole_returns(rollout, config.gamma)
        gain, counts = returns, finished.reshape(-1)
    gain = gain.reshape(-1)[counts]
    if config.normalize_advantage:
        gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-8)
    for _ in range(10):
        for w in weights.values():
            w.requires_grad_()
        chances = log_probs(weights, observation[counts])
        chosen = chances[torch.arange(len(chances)), action[counts]]
        loss = -(chosen * gain).mean() + config.entropy_coef * (chances.exp() * chances).sum(1).mean()
        if config.baseline:
            error = values(weights, observation[counts]) - returns.reshape(-1)[counts]
            loss = loss + config.value_coef * (error**2).mean()
        gradients = gradients_of(loss, weights)
        with torch.no_grad():
            adam.step(gradients)
        for w in weights.values():
            w.requires_grad_(False)
        reinforce.update(rollout, 0.0)
    for name, ours in reinforce.policy.named_parameters():
        torch.testing.assert_close(ours.double(), weights[name], rtol=2e-4, atol=2e-5)


def test_what_a_rollout_cuts_off_does_not_count_without_a_baseline():
    config = dataclasses.replace(SMALL, baseline=False)
    reinforce, rollout = rehearsed(Reinforce, config)
    twin, _ = rehearsed(Reinforce, config)
    reinforce.update(rollout, 0.0)
    rollout.reward[6:] = 100.0  # every episode that ends does so by row 4
    metrics = twin.update(rollout, 0.0)
    assert torch.equal(reinforce.optimizer.flat, twin.optimizer.flat)
    assert "value_loss" not in metrics


def test_reinforce_learns_to_walk_the_corridor():
    config = ReinforceConfig(num_steps=32, hidden=(32, 32))
    env = Corridor(64)
    reinforce = Reinforce.build(config, env.observation_space, env.action_space, 1, "cpu")
    collector = InlineCollector(env, reinforce.policy, config.num_steps, reinforce.columns(), seed=1)
    for _ in range(60):
        rollout = collector.collect()
        reinforce.update(rollout, 0.0)
    assert rollout.episode_return[~rollout.valid[:-1]].mean() > 0.5
