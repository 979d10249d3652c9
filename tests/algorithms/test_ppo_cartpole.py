"""PPO in a compiled environment."""

import contextlib

import pytest
import torch

from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.core import fused
from headrace.envs import make
from headrace.parallel.collector import InlineCollector


def test_ppo_balances_the_pole():
    config = PPOConfig(num_steps=32, minibatch_size=256, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9)
    env = make("CartPole-v1", 64)
    ppo = PPO.build(config, env.observation_space, env.action_space, 0, "cpu")
    collector = InlineCollector(env, ppo.policy, config.num_steps, ppo.columns(), seed=0)
    returns = torch.zeros(0)
    for iteration in range(60):
        rollout = collector.collect()
        ppo.update(rollout, iteration / 60)
        returns = torch.cat((returns, rollout.episode_return[~rollout.valid[:-1]]))[-100:]
        if len(returns) == 100 and returns.mean() >= 195:
            break
    env.close()
    assert returns.mean() >= 195


def reached(seed):
    """Mean return of the last 100 episodes after 20 iterations, while it still rises."""
    config = PPOConfig(num_steps=32, minibatch_size=256, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9)
    env = make("CartPole-v1", 32)
    learner = PPO.build(config, env.observation_space, env.action_space, seed, "cpu")
    collector = InlineCollector(env, learner.policy, config.num_steps, learner.columns(), seed=seed)
    returns = torch.zeros(0)
    for iteration in range(20):
        rollout = collector.collect()
        learner.update(rollout, iteration / 20)
        returns = torch.cat((returns, rollout.episode_return[~rollout.valid[:-1]]))[-100:]
    env.close()
    return returns.mean().item()


@pytest.mark.slow
def test_kernels_reach_the_returns_of_plain_torch_within_seed_noise():
    results = {}
    for name, context in (("fused", contextlib.nullcontext()), ("plain", fused.plain_only())):
        with context:
            results[name] = torch.tensor([reached(seed) for seed in range(6)])
    difference = (results["fused"].mean() - results["plain"].mean()).abs()
    random = ((results["fused"].var() + results["plain"].var()) / 6).sqrt()
    assert results["plain"].mean() > 40  # it has learned: a random policy reaches 22
    assert difference <= 3 * random
