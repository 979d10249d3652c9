import json
import os
import random
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn

SECONDS = float(os.environ.get("SECONDS", 60))
OFF = {p: p == os.environ.get("ABLATE", "") for p in ("environment", "acting", "learning", "replay")}
REMEDY = os.environ.get("REMEDY") == "1"
torch.set_num_threads(1)
device = torch.device("cpu")


class RankMemory:
    def __init__(self, capacity=40000, alpha=0.7):
        self.capacity, self.alpha = capacity, alpha
        self.items, self.errors, self.head = [], [], 0

    def push(self, item):
        top = max(self.errors[-100:], default=1.0)
        if len(self.items) < self.capacity:
            self.items.append(item)
            self.errors.append(top)
        else:
            self.items[self.head] = item
            self.errors[self.head] = top
            self.head = (self.head + 1) % self.capacity

    def sample(self, n):
        order = sorted(range(len(self.items)), key=self.errors.__getitem__, reverse=True)
        picks = [order[int(len(order) * random.random() ** (1 / (1 - self.alpha)))] for _ in range(n)]
        return picks, [self.items[i] for i in picks]

    def settle(self, picks, errors):
        for i, e in zip(picks, errors):
            self.errors[i] = e


class BucketMemory(RankMemory):
    order, age = None, 0

    def sample(self, n):
        if self.age % 200 == 0:
            self.order = np.argsort(np.negative(self.errors))
        self.age += 1
        picks = self.order[(len(self.order) * np.random.rand(n) ** (1 / (1 - self.alpha))).astype(int)].tolist()
        return picks, [self.items[i] for i in picks]


class DuelingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.adv, self.val = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, x):
        h = self.base(x)
        a = self.adv(h)
        return self.val(h) + a - a.mean(1, keepdim=True)


class Agent:
    def __init__(self):
        self.online, self.target = DuelingNet(), DuelingNet()
        self.target.load_state_dict(self.online.state_dict())
        self.optim = torch.optim.Adam(self.online.parameters(), lr=5e-4)
        self.memory = BucketMemory() if REMEDY else RankMemory()
        self.updates = 0

    def choose(self, state):
        if random.random() < 0.1:
            return random.randint(0, 1)
        with torch.no_grad():
            return int(self.online(torch.as_tensor(state, device=device)[None]).argmax())

    def train(self, batch):
        s, a, r, z, d = map(np.array, zip(*batch))
        s, z = torch.from_numpy(s), torch.from_numpy(z)
        a, r, d = torch.from_numpy(a), torch.from_numpy(r).float(), torch.from_numpy(d).float()
        with torch.no_grad():
            best = self.online(z).argmax(1, keepdim=True)
            y = r + 0.99 * (1 - d) * self.target(z).gather(1, best)[:, 0]
        delta = self.online(s).gather(1, a[:, None])[:, 0] - y
        self.optim.zero_grad()
        delta.pow(2).mean().backward()
        self.optim.step()
        self.updates += 1
        if self.updates % 250 == 0:
            self.target.load_state_dict(self.online.state_dict())
        return delta.detach().abs().tolist()


env = gym.make("CartPole-v1")
agent = Agent()
obs = env.reset(seed=0)[0]
for _ in range(40000):
    a = env.action_space.sample()
    nxt, r, term, trunc, _ = env.step(a)
    agent.memory.push((obs, int(a), r, nxt, term))
    obs = env.reset()[0] if term or trunc else nxt
agent.memory.errors = np.random.exponential(1.0, 40000).tolist()

env_step = env.step
if OFF["environment"]:
    env_step = lambda a: (obs, 1.0, False, False, {})
if OFF["acting"]:
    agent.choose = lambda s: random.randint(0, 1)
if OFF["learning"]:
    agent.train = lambda b, e=[1.0] * 64: e
if OFF["replay"]:
    once = agent.memory.sample(64)
    agent.memory.sample = lambda n: once
    agent.memory.settle = lambda p, e: None

frames, start, mark = 0, time.time(), None
while True:
    elapsed = time.time() - start
    if mark is None and elapsed > 1:
        mark = (elapsed, frames)
    if elapsed > SECONDS:
        break
    action = agent.choose(obs)
    nxt, reward, term, trunc, _ = env_step(action)
    agent.memory.push((obs, action, reward, nxt, term))
    obs = env.reset()[0] if term or trunc else nxt
    frames += 1
    if frames % 2 == 0:
        picks, batch = agent.memory.sample(64)
        agent.memory.settle(picks, agent.train(batch))

print(json.dumps({"steps_per_second": (frames - mark[1]) / (elapsed - mark[0])}))
