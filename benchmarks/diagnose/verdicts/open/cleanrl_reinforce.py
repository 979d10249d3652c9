from time import sleep as nap

import gymnasium as gym
import torch
import torch.nn as nn
from task import Rate

torch.set_num_threads(1)
env = gym.make("CartPole-v1")
agent = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
obs, _ = env.reset(seed=1)
rate, logprobs, rewards = Rate(), [], []
while rate.more():
    probs = torch.distributions.Categorical(logits=agent(torch.as_tensor(obs)))
    action = probs.sample()
    logprobs.append(probs.log_prob(action))
    obs, reward, terminated, truncated, _ = env.step(action.item())
    rewards.append(reward)
    nap(0.003)
    if terminated or truncated:
        loss = -torch.stack(logprobs).sum() * sum(rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logprobs.clear()
        rewards.clear()
        obs, _ = env.reset()
