#!/usr/bin/env python
# double dqn + rank-based buffer (schaul 2016 appendix), lunar lander
import os, random, sys
from time import time as now
import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
T_MAX = float(os.environ.get('SECONDS', 60))
OFF = os.environ.get('ABLATE', '')
BS = 64
CAP = 12000
ALPHA, BETA = 0.7, 0.5


class Slot:
    __slots__ = ('s', 'a', 'r', 's2', 'd', 'err')

    def __init__(self, s, a, r, s2, d, err):
        self.s, self.a, self.r, self.s2, self.d, self.err = s, a, r, s2, d, err


class Bag:
    def __init__(self):
        self.items = []
        self.top = 1.0
        self.ptr = 0
        self.keep = None

    def put(self, s, a, r, s2, d):
        it = Slot(s, a, r, s2, d, self.top)
        if len(self.items) < CAP:
            self.items.append(it)
        else:
            self.items[self.ptr] = it
            self.ptr = (self.ptr + 1) % CAP

    def draw(self):
        if OFF == 'replay' and self.keep is not None:
            return self.keep
        ranked = sorted(self.items, key=lambda q: -q.err)
        p = np.array([(1.0 / (i + 1)) ** ALPHA for i in range(len(ranked))])
        p /= p.sum()
        idx = np.random.choice(len(ranked), BS, p=p)
        got = [ranked[i] for i in idx]
        w = (len(ranked) * p[idx]) ** -BETA
        w = w / w.max()
        self.keep = (got,
                     torch.tensor(np.array([g.s for g in got])), torch.tensor([g.a for g in got]),
                     torch.tensor([g.r for g in got], dtype=torch.float32),
                     torch.tensor(np.array([g.s2 for g in got])),
                     torch.tensor([g.d for g in got], dtype=torch.float32),
                     torch.tensor(w, dtype=torch.float32))
        return self.keep

    def note(self, got, err):
        for g, e in zip(got, err):
            g.err = e
        self.top = max(self.top * 0.9999, max(err))


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(8, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128),
                               torch.nn.ReLU(), torch.nn.Linear(128, 4))


env = gym.make('LunarLander-v3')
random.seed(5); np.random.seed(5); torch.manual_seed(5)
q, qt = mlp(), mlp()
qt.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), 5e-4)
bag = Bag()

# warm up with random play
s, _ = env.reset(seed=5)
while len(bag.items) < CAP - 2000:
    a = random.randrange(4)
    s2, r, te, tr, _ = env.step(a)
    bag.put(s, a, r, s2, float(te))
    s = env.reset()[0] if te or tr else s2

s, _ = env.reset()
n = 0
score, scores = 0.0, []
start = now()
said = start
frozen = (s.copy(), -0.1, False, False, {})
while now() - start < T_MAX:
    eps = max(0.05, 0.5 - n / 20000)
    if OFF == 'acting':
        a = n & 3
    elif random.random() < eps:
        a = random.randrange(4)
    else:
        with torch.no_grad():
            a = int(q(torch.from_numpy(s)[None]).argmax())
    s2, r, te, tr, _ = frozen if OFF == 'environment' else env.step(a)
    bag.put(s, a, r, s2, float(te))
    score += r
    s = s2
    if te or tr:
        scores.append(score)
        score = 0.0
        s, _ = env.reset()
    n += 1
    if n % 2 == 0:
        got, S, A, R, S2, D, W = bag.draw()
        if OFF != 'learning':
            with torch.no_grad():
                best = q(S2).argmax(1, keepdim=True)
                y = R + 0.99 * (1 - D) * qt(S2).gather(1, best)[:, 0]
            td = q(S).gather(1, A[:, None])[:, 0] - y
            loss = (W * F.huber_loss(td, torch.zeros_like(td), reduction='none')).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            bag.note(got, td.detach().abs().add(1e-3).tolist())
    if n % 1000 == 0:
        qt.load_state_dict(q.state_dict())
    if now() - said > 2:
        said = now()
        print(n, 'eps %.2f' % eps, 'avg', np.mean(scores[-20:]) if scores else None)
        sys.stdout.flush()
env.close()
print('%.1f steps/s' % (n / (now() - start)))
