import json
import os
import random
import time
from collections import deque

import numpy as np
import torch
from torch import nn

BORN = time.time()
SECONDS = float(os.environ.get("SECONDS", 60))
OFF = {p: os.environ.get("ABLATE", "") == p for p in ("start-up", "acting", "learning")}
REMEDY = os.environ.get("REMEDY") == "1"
torch.set_num_threads(1)
random.seed(9)
H, W = 90, 90


class Hall:
    def __init__(self):
        self.shelf = np.zeros((H, W), bool)
        for y in range(3, H - 3, 4):
            for x in range(3, W - 3):
                self.shelf[y, x] = x % 9 != 0 and random.random() < 0.9
        self.free = [(y, x) for y in range(H) for x in range(W) if not self.shelf[y, x]]
        self.number = {c: i for i, c in enumerate(self.free)}
        self.near = {c: [n for n in ((c[0] + 1, c[1]), (c[0] - 1, c[1]), (c[0], c[1] + 1), (c[0], c[1] - 1))
                         if n in self.number] for c in self.free}

    def walk(self, goal):
        dist, line = {goal: 0}, deque([goal])
        while line:
            c = line.popleft()
            for n in self.near[c]:
                if n not in dist:
                    dist[n] = dist[c] + 1
                    line.append(n)
        return dist

    def distances(self):
        table = np.full((len(self.free), len(self.free)), 9999, np.int16)
        for i, goal in enumerate(self.free):
            for c, d in self.walk(goal).items():
                table[i, self.number[c]] = d
        return table

    def distances_sparse(self):
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import shortest_path
        pairs = np.array([(self.number[c], self.number[n]) for c in self.free for n in self.near[c]])
        graph = csr_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (len(self.free),) * 2)
        far = shortest_path(graph, method="D", unweighted=True)
        return np.where(np.isinf(far), 9999, far).astype(np.int16)


class Picker:
    def __init__(self, hall, table):
        self.hall, self.table = hall, table

    def dispatch(self):
        self.at, self.to = random.choice(self.hall.free), random.choice(self.hall.free)
        self.t = 0
        return self.view()

    def view(self):
        y, x = self.at
        row = self.table[self.hall.number[self.to]]
        here = row[self.hall.number[self.at]]
        hint = [(here - row[self.hall.number[c]]) if c in self.hall.number else -1
                for c in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1))]
        return np.array(hint + [(self.to[0] - y) / H, (self.to[1] - x) / W], np.float32)

    def move(self, k):
        y, x = self.at
        c = ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1))[k]
        row, old = self.table[self.hall.number[self.to]], self.hall.number[self.at]
        self.at = c if c in self.hall.number else self.at
        self.t += 1
        return self.view(), float(row[old] - row[self.hall.number[self.at]]), self.at == self.to or self.t > 200


hall = Hall()
if OFF["start-up"]:
    table = np.random.default_rng(0).integers(0, 150, (len(hall.free),) * 2).astype(np.int16)
else:
    table = hall.distances_sparse() if REMEDY else hall.distances()
picker = Picker(hall, table)
net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.Adam(net.parameters(), 1e-3)


def pick(o):
    if random.random() < 0.1:
        return random.randrange(4)
    with torch.no_grad():
        return int(net(torch.from_numpy(o)).argmax())


def learn(rows):
    o, a, r, z, d = (np.array(c) for c in zip(*rows))
    with torch.no_grad():
        y = torch.from_numpy(r).float() + 0.9 * torch.from_numpy(1.0 - d).float() * net(torch.from_numpy(z)).max(1)[0]
    q = net(torch.from_numpy(o)).gather(1, torch.from_numpy(a)[:, None])[:, 0]
    opt.zero_grad()
    nn.functional.mse_loss(q, y).backward()
    opt.step()


if OFF["acting"]:
    pick = lambda o: random.randrange(4)
if OFF["learning"]:
    learn = lambda rows: None
memory, steps, start, mark = deque(maxlen=10000), 0, time.time(), None
print(f"ready after {start - BORN:.1f} s", flush=True)
o = picker.dispatch()
while True:
    t = time.time() - start
    if mark is None and t > 1:
        mark = (t, steps)
    if t > SECONDS:
        break
    a = pick(o)
    z, r, over = picker.move(a)
    memory.append((o, a, r, z, over))
    o = picker.dispatch() if over else z
    steps += 1
    if steps % 8 == 0 and len(memory) > 64:
        learn(random.sample(memory, 64))
print(json.dumps({"steps_per_second": (steps - mark[1]) / (t - mark[0]), "start_up_seconds": start - BORN,
                  "whole_run_steps_per_second": steps / (time.time() - BORN)}))
