"""PPO on a compiled world."""

import torch

from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.envs import make
from headrace.parallel.collector import Collector


def test_ppo_balances_the_pole():
    config = PPOConfig(num_steps=32, minibatch_size=256, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9)
    env = make("CartPole-v1", 64)
    ppo = PPO.build(config, env.observation_space, env.action_space, 0, "cpu")
    collector = Collector(env, ppo.policy, config.num_steps, ppo.columns(), seed=0)
    returns = torch.zeros(0)
    for iteration in range(60):
        rollout = collector.collect()
        ppo.update(rollout, iteration / 60)
        returns = torch.cat((returns, rollout.episode_return[~rollout.valid[:-1]]))[-100:]
        if len(returns) == 100 and returns.mean() >= 195:
            break
    env.close()
    assert returns.mean() >= 195
