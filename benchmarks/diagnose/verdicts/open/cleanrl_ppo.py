import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from task import Rate

if __name__ == "__main__":
    torch.set_num_threads(1)
    kind = gym.vector.AsyncVectorEnv
    envs = kind([lambda: gym.make("CartPole-v1")] * 4)
    actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-4, eps=1e-5)
    obs = torch.zeros((64, 4, 4))
    actions, logprobs, rewards = (torch.zeros((64, 4)) for _ in range(3))
    next_obs, _ = envs.reset(seed=1)
    rate = Rate()
    while True:
        for step in range(64):
            rate.tick(4)
            obs[step] = torch.as_tensor(next_obs)
            with torch.no_grad():
                probs = torch.distributions.Categorical(logits=actor(obs[step]))
                actions[step] = probs.sample()
                logprobs[step] = probs.log_prob(actions[step])
            next_obs, reward, terminations, truncations, infos = envs.step(actions[step].long().numpy())
            rewards[step] = torch.as_tensor(reward)
        returns = torch.flip(torch.cumsum(torch.flip(rewards, (0,)), 0), (0,)).flatten()
        for _ in range(2):
            inds = torch.as_tensor(np.random.permutation(256))
            new = torch.distributions.Categorical(logits=actor(obs.reshape(-1, 4)[inds]))
            ratio = (new.log_prob(actions.flatten()[inds]) - logprobs.flatten()[inds]).exp()
            value = critic(obs.reshape(-1, 4)[inds]).flatten()
            advantage = returns[inds] - value.detach()
            loss = -(ratio * advantage).mean() + 0.5 * (value - returns[inds]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
            optimizer.step()
