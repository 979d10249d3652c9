"""Robot cart in a randomly laid out depot; the layout changes every episode. Double DQN."""
import random
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import torch
import torch.nn as nn


@dataclass
class Depot:
    n: int = 32
    density: float = 0.24
    limit: int = 60
    rng: random.Random = field(default_factory=lambda: random.Random(5))

    def fresh(self):
        while True:
            g = nx.grid_2d_graph(self.n, self.n)
            shelves = [c for c in list(g) if self.rng.random() < self.density]
            g.remove_nodes_from(shelves)
            free = list(g)
            start, goal = self.rng.sample(free, 2)
            if not nx.has_path(g, start, goal):
                continue
            self.dist = nx.single_source_shortest_path_length(g, goal)
            if 6 <= self.dist[start] <= 24:
                break
        self.wall = np.zeros((self.n + 4, self.n + 4), np.float32)
        self.wall[:2] = self.wall[-2:] = 1
        self.wall[:, :2] = self.wall[:, -2:] = 1
        for r, c in shelves:
            self.wall[r + 2, c + 2] = 1
        self.pos, self.goal, self.t = start, goal, 0
        return self.look()

    def look(self):
        r, c = self.pos
        patch = self.wall[r:r + 5, c:c + 5].ravel()
        return np.concatenate([patch, [(self.goal[0] - r) / self.n, (self.goal[1] - c) / self.n]]).astype(np.float32)

    def move(self, a):
        dr, dc = ((0, 1), (1, 0), (0, -1), (-1, 0))[a]
        new = (self.pos[0] + dr, self.pos[1] + dc)
        self.t += 1
        if self.wall[new[0] + 2, new[1] + 2]:
            return self.look(), -0.3, self.t >= self.limit, False
        gain = self.dist[self.pos] - self.dist[new]
        self.pos = new
        if new == self.goal:
            return self.look(), 5.0, True, True
        return self.look(), 0.1 * gain - 0.05, self.t >= self.limit, False


class Memory:
    def __init__(self, cap, dim):
        self.s = torch.zeros(cap, dim); self.s2 = torch.zeros(cap, dim)
        self.a = torch.zeros(cap, dtype=torch.long)
        self.r = torch.zeros(cap); self.d = torch.zeros(cap)
        self.cap, self.i, self.full = cap, 0, False

    def __len__(self):
        return self.cap if self.full else self.i

    def put(self, s, a, r, s2, d):
        i = self.i
        self.s[i] = torch.from_numpy(s); self.s2[i] = torch.from_numpy(s2)
        self.a[i], self.r[i], self.d[i] = a, r, d
        self.i = (i + 1) % self.cap
        self.full |= self.i == 0

    def batch(self, k):
        j = torch.randint(0, len(self), (k,))
        return self.s[j], self.a[j], self.r[j], self.s2[j], self.d[j]


def build():
    return nn.Sequential(nn.Linear(27, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 4))


def main(episodes=3_000_000):
    torch.set_num_threads(1)
    world, mem = Depot(), Memory(40_000, 27)
    q, qt = build(), build()
    qt.load_state_dict(q.state_dict())
    opt = torch.optim.AdamW(q.parameters(), lr=5e-4)
    steps, wins = 0, []
    for ep in range(episodes):
        s, over = world.fresh(), False
        eps = max(0.1, 1 - ep / 400)
        while not over:
            if random.random() < eps:
                a = random.randrange(4)
            else:
                with torch.no_grad():
                    a = int(q(torch.from_numpy(s)).argmax())
            s2, r, over, ok = world.move(a)
            mem.put(s, a, r, s2, float(ok))
            s = s2
            steps += 1
            if len(mem) >= 256 and steps % 16 == 0:
                b, ba, br, b2, bd = mem.batch(64)
                with torch.no_grad():
                    best = q(b2).argmax(1, keepdim=True)
                    y = br + 0.97 * (1 - bd) * qt(b2).gather(1, best).squeeze(1)
                loss = nn.functional.huber_loss(q(b).gather(1, ba[:, None]).squeeze(1), y)
                opt.zero_grad(); loss.backward(); opt.step()
                with torch.no_grad():
                    for p, pt in zip(q.parameters(), qt.parameters()):
                        pt.lerp_(p, 0.01)
        wins.append(ok)
        if ep % 100 == 0:
            print(ep, steps, f"{np.mean(wins[-100:]):.2f}", flush=True)


main()
