"""PPO in CleanRL's style, with torch.distributions; hr.compile() computes the loss and its gradients."""

import torch
from torch import nn
from torch.distributions import Categorical

import headrace as hr

ENVS, STEPS, EPOCHS, MINIBATCHES, UPDATES = 32, 64, 4, 4, 30


class Agent(nn.Module):
    def __init__(self, inputs, actions):
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions)
        )
        self.critic = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def loss(agent, obs, action, old_log_prob, advantage, returns):
    policy = Categorical(logits=agent.actor(obs))
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (policy.log_prob(action) - old_log_prob).exp()
    policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    value_loss = (agent.critic(obs).squeeze(-1) - returns).square().mean()
    return policy_loss + 0.5 * value_loss - 0.01 * policy.entropy().mean()


torch.manual_seed(1)
envs = hr.make_vec("CartPole-v1", ENVS)
agent = Agent(4, 2)
optimizer = torch.optim.Adam(agent.parameters(), 2.5e-3, eps=1e-5)
step = hr.compile(loss)  # the first of two lines

obs, _ = envs.reset(seed=1)
lengths = torch.zeros(ENVS)
for update in range(UPDATES):
    kept, episodes = [], []
    for _ in range(STEPS):
        with torch.no_grad():
            seen = torch.as_tensor(obs)
            policy = Categorical(logits=agent.actor(seen))
            action = policy.sample()
            value = agent.critic(seen).squeeze(-1)
        obs, reward, terminated, truncated, _ = envs.step(action.numpy())
        done = torch.as_tensor(terminated | truncated)
        lengths += 1
        episodes += lengths[done].tolist()
        lengths[done] = 0
        kept.append((seen, action, policy.log_prob(action), value, torch.as_tensor(reward), done.float()))
    seen, action, log_prob, value, reward, done = (torch.stack(column) for column in zip(*kept, strict=True))
    with torch.no_grad():
        following, advantage, sums = agent.critic(torch.as_tensor(obs)).squeeze(-1), 0.0, []
        for t in reversed(range(STEPS)):
            delta = reward[t] + 0.99 * following * (1 - done[t]) - value[t]
            advantage = delta + 0.99 * 0.95 * (1 - done[t]) * advantage
            sums.insert(0, advantage)
            following = value[t]
        advantage = torch.stack(sums)
    batch = [x.flatten(0, 1).float() if x.is_floating_point() else x.flatten(0, 1) for x in (seen, action, log_prob)]
    batch += [advantage.flatten().float(), (advantage + value).flatten().float()]
    for _ in range(EPOCHS):
        for rows in torch.randperm(ENVS * STEPS).chunk(MINIBATCHES):
            optimizer.zero_grad()
            step(agent, *(column[rows] for column in batch))  # the second: in place of loss(...).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    if episodes:
        print(f"update {update}: mean length of {len(episodes)} episodes {sum(episodes) / len(episodes):.1f}")
envs.close()
