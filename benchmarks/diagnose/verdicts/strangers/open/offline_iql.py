"""Implicit Q-learning from logged shards (written once at the start by a scripted controller)."""
import glob
import os
import queue
import tempfile
import threading

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def swing(th, om, u):
    om = om + 0.05 * (15 * np.sin(th) + 3 * u)
    om = np.clip(om, -8, 8)
    th = th + 0.05 * om
    cost = ((th + np.pi) % (2 * np.pi) - np.pi) ** 2 + 0.1 * om ** 2 + 0.001 * u ** 2
    return th, om, -cost


def write_shards(folder, count=16, rows=12000):
    rng = np.random.default_rng(0)
    th, om = rng.uniform(-3, 3, rows), rng.uniform(-1, 1, rows)
    for k in range(count):
        u = np.clip(np.where(np.cos(th) > 0.8, -8 * np.sin(th) - 1.5 * om, np.sign(om) * 2) + rng.normal(0, 0.7, rows), -2, 2)
        th2, om2, r = swing(th, om, u)
        cam = rng.integers(0, 40, (rows, 16), dtype=np.uint8)
        np.savez_compressed(os.path.join(folder, f"shard{k:03d}.npz"), s=np.c_[np.cos(th), np.sin(th), om],
                            a=u[:, None], r=r, s2=np.c_[np.cos(th2), np.sin(th2), om2], cam=cam)
        th, om = th2, om2


class ShardSet:
    def __init__(self, folder, batch):
        self.files = sorted(glob.glob(os.path.join(folder, "*.npz")))
        self.batch, self.rng = batch, np.random.default_rng(1)

    def one(self):
        with np.load(self.files[self.rng.integers(len(self.files))]) as z:
            i = self.rng.integers(0, len(z["r"]), self.batch)
            return [torch.from_numpy(z[k][i].astype(np.float32)) for k in ("s", "a", "r", "s2")]

    def stream(self, q):
        while True:
            q.put(self.one())


def net(i, o, h=64):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class IQL:
    def __init__(self):
        self.q, self.qt, self.v, self.pi = net(4, 2), net(4, 2), net(3, 1), net(3, 1)
        self.qt.load_state_dict(self.q.state_dict())
        self.opts = [torch.optim.Adam(m.parameters(), 3e-4) for m in (self.q, self.v, self.pi)]

    def fit(self, s, a, r, s2):
        with torch.no_grad():
            tq = self.qt(torch.cat([s, a], 1)).min(1).values
            y = r * 0.1 + 0.98 * self.v(s2).squeeze(1)
        v = self.v(s).squeeze(1)
        d = tq - v
        lv = (torch.where(d > 0, 0.8, 0.2) * d ** 2).mean()
        lq = F.mse_loss(self.q(torch.cat([s, a], 1)), y[:, None].expand(-1, 2))
        w = (3 * d.detach()).exp().clamp(max=50)
        lp = (w * (torch.tanh(self.pi(s)).squeeze(1) * 2 - a.squeeze(1)) ** 2).mean()
        for o in self.opts:
            o.zero_grad()
        (lv + lq + lp).backward()
        for o in self.opts:
            o.step()
        with torch.no_grad():
            for p, t in zip(self.q.parameters(), self.qt.parameters()):
                t.mul_(0.995).add_(p, alpha=0.005)
        return lv.item(), lq.item(), lp.item()

    @torch.no_grad()
    def trial(self, n=64, steps=100):
        th, om, tot = np.full(n, np.pi), np.random.randn(n) * 0.1, 0.0
        for _ in range(steps):
            x = torch.from_numpy(np.c_[np.cos(th), np.sin(th), om]).float()
            th, om, r = swing(th, om, 2 * torch.tanh(self.pi(x)).squeeze(1).numpy())
            tot += r.mean()
        return tot


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_shards(folder)
        data, agent, pipe = ShardSet(folder, 256), IQL(), queue.Queue(4)
        threading.Thread(target=data.stream, args=(pipe,), daemon=True).start()
        for it in range(10_000_000):
            losses = agent.fit(*pipe.get())
            if it % 1000 == 0:
                print(it, *("%.3f" % l for l in losses), "return %.0f" % agent.trial(), flush=True)
