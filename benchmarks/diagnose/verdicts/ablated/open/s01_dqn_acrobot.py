"""DQN on Acrobot, homework 3."""
import json
import os
import random
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SECONDS = float(os.environ.get("SECONDS", 60))
REMEDY = os.environ.get("REMEDY") == "1"
PARTS = ["environment", "acting", "learning", "replay", "logging"]
OFF = {p: os.environ.get("ABLATE", "") == p for p in PARTS}

torch.manual_seed(3)
torch.set_num_threads(1)

GAMMA = 0.99
BATCH = 128
TRAIN_EVERY = 12
env = gym.make("Acrobot-v1")


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 96)
        self.fc2 = nn.Linear(96, 96)
        self.fc3 = nn.Linear(96, 3)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


policy_net = QNet()
target_net = QNet()
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.Adam(policy_net.parameters(), lr=1e-3)
memory = deque(maxlen=20000)
recent = deque([0.0] * 100, maxlen=100)


def select_action(state, eps):
    if random.random() < eps:
        return random.randrange(3)
    with torch.no_grad():
        q = policy_net(torch.from_numpy(state).unsqueeze(0))
    return q.argmax(1).item()


def sample_batch():
    batch = random.sample(memory, BATCH)
    s, a, r, s2, d = zip(*batch)
    return (torch.tensor(np.array(s)), torch.tensor(a), torch.tensor(r, dtype=torch.float32),
            torch.tensor(np.array(s2)), torch.tensor(d, dtype=torch.float32))


def optimize(batch):
    s, a, r, s2, d = batch
    q = policy_net(s).gather(1, a.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        target = r + GAMMA * (1 - d) * target_net(s2).max(1).values
    loss = F.smooth_l1_loss(q, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


state, _ = env.reset(seed=1)
for _ in range(1000):
    action = env.action_space.sample()
    nxt, reward, term, trunc, _ = env.step(action)
    memory.append((state, int(action), float(reward), nxt, float(term)))
    state = nxt if not (term or trunc) else env.reset()[0]

if REMEDY:
    TRAIN_EVERY = 24

log = open("/tmp/acrobot_%d.jsonl" % os.getpid(), "w")
env_step = env.step


def log_row(row):
    log.write(json.dumps(row) + "\n")
    log.flush()


if OFF["environment"]:
    canned = env.step(1)
    env_step = lambda a: (canned[0], -1.0, False, random.random() < 0.002, {})
if OFF["acting"]:
    select_action = lambda s, eps: 1
if OFF["learning"]:
    optimize = lambda b: 0.0
if OFF["replay"]:
    fixed = sample_batch()
    sample_batch = lambda: fixed
if OFF["logging"]:
    log_row = lambda row: None

loss = 0.0
steps = 0
ep_return = 0.0
episode = 0
first = None
start = time.time()
while True:
    now = time.time()
    if first is None and now - start > 1:
        first = (now, steps)
    if now - start > SECONDS:
        break
    action = select_action(state, 0.05)
    nxt, reward, term, trunc, _ = env_step(action)
    memory.append((state, action, float(reward), nxt, float(term)))
    ep_return += reward
    recent.append(ep_return)
    state = nxt
    steps += 1
    if steps % TRAIN_EVERY == 0:
        loss = optimize(sample_batch())
    if steps % 500 == 0:
        target_net.load_state_dict(policy_net.state_dict())
    log_row({"step": steps, "episode": episode, "action": action, "reward": float(reward), "loss": loss,
             "return": ep_return, "mean": float(np.mean(recent)),
             "std": float(np.std(recent)), "state": [round(float(v), 4) for v in nxt], "time": now - start})
    if term or trunc:
        episode += 1
        ep_return = 0.0
        state, _ = env.reset()

log.close()
os.remove(log.name)
print(json.dumps({"steps_per_second": (steps - first[1]) / (now - first[0])}))
