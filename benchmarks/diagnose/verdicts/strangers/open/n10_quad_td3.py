"""planar quadrotor hover/track, TD3 on torchrl's buffer. clean baseline for the group repo."""
from __future__ import annotations

import argparse
import os
import time

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

torch.set_num_threads(1)


class PlanarQuad(gym.Env):
    def __init__(self, substeps: int = 90):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.substeps = substeps

    def _obs(self):
        x, z, th, vx, vz, w = self.s
        return np.array([x - self.ref[0], z - self.ref[1], np.sin(th), np.cos(th), vx, vz, w, self.k / 200],
                        dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.s = self.np_random.uniform(-0.3, 0.3, 6)
        self.ref = self.np_random.uniform(-1, 1, 2)
        self.k = 0
        return self._obs(), {}

    def step(self, u):
        x, z, th, vx, vz, w = (float(q) for q in self.s)
        f1, f2 = 5.0 + 3.0 * float(u[0]), 5.0 + 3.0 * float(u[1])
        h = 0.02 / self.substeps
        for _ in range(self.substeps):
            s, c = np.sin(th), np.cos(th)
            vx += h * (-(f1 + f2) * s - 0.1 * vx)
            vz += h * ((f1 + f2) * c - 9.81 - 0.1 * vz)
            w += h * (12.0 * (f1 - f2) - 0.2 * w)
            x, z, th = x + h * vx, z + h * vz, th + h * w
        self.s = np.array([x, z, th, vx, vz, w])
        self.k += 1
        o = self._obs()
        far = abs(o[0]) > 3 or abs(o[1]) > 3
        r = 1.0 - 0.5 * abs(o[0]) - 0.5 * abs(o[1]) - 0.2 * abs(th) - 5.0 * far
        return o, float(r), bool(far), self.k >= 200, {}


class Hold(gym.Wrapper):
    def reset(self, **kw):
        self.k, (self.o, i) = 0, self.env.reset(**kw)
        return self.o, i

    def step(self, u):
        self.k += 1
        return self.o, 0.5, False, self.k >= 200, {}


def mlp(i, o, h=64):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class TD3:
    def __init__(self):
        self.pi, self.pi_t = mlp(8, 2), mlp(8, 2)
        self.qs = nn.ModuleList([mlp(10, 1), mlp(10, 1)])
        self.qs_t = nn.ModuleList([mlp(10, 1), mlp(10, 1)])
        self.pi_t.load_state_dict(self.pi.state_dict())
        self.qs_t.load_state_dict(self.qs.state_dict())
        self.po = torch.optim.Adam(self.pi.parameters(), 3e-4)
        self.qo = torch.optim.Adam(self.qs.parameters(), 1e-3)
        self.it = 0

    @torch.no_grad()
    def act(self, o, noise=0.15):
        a = torch.tanh(self.pi(torch.as_tensor(o)[None]))
        a = torch.distributions.Normal(a, noise).sample().clamp(-1, 1)
        return a[0].numpy()

    def update(self, b):
        o, a, r, o2, d = b["o"], b["a"], b["r"], b["o2"], b["d"]
        with torch.no_grad():
            a2 = (torch.tanh(self.pi_t(o2)) + 0.2 * torch.randn_like(a).clamp(-2.5, 2.5)).clamp(-1, 1)
            z2 = torch.cat([o2, a2], -1)
            y = r + 0.98 * (1 - d) * torch.min(self.qs_t[0](z2), self.qs_t[1](z2))
        z = torch.cat([o, a], -1)
        lq = sum((q(z) - y).pow(2).mean() for q in self.qs)
        self.qo.zero_grad(); lq.backward(); self.qo.step()
        self.it += 1
        if self.it % 2 == 0:
            lp = -self.qs[0](torch.cat([o, torch.tanh(self.pi(o))], -1)).mean()
            self.po.zero_grad(); lp.backward(); self.po.step()
            with torch.no_grad():
                for m, t in ((self.pi, self.pi_t), (self.qs, self.qs_t)):
                    torch._foreach_lerp_(list(t.parameters()), list(m.parameters()), 0.01)
        return lq.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=float(os.environ.get("SECONDS", 60)))
    p.add_argument("--ablate", default=os.environ.get("ABLATE", ""))
    p.add_argument("--utd", type=int, default=16, help="env steps per update")
    cfg = p.parse_args()
    torch.manual_seed(0)
    env = PlanarQuad()
    env = Hold(env) if cfg.ablate == "environment" else env
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(50_000), batch_size=128)
    agent = TD3()
    o, _ = env.reset(seed=0)
    n, ret, rets, t0, n0, mark, batch, lq = 0, 0.0, [], None, 0, 0.0, None, 0.0
    recent = []
    while True:
        a = np.full(2, (n % 3 - 1) * 0.1, np.float32) if cfg.ablate == "acting" else agent.act(o)
        o2, r, te, tr, _ = env.step(a)
        ret += r
        recent.append((o, a, (r,), o2, (float(te),)))
        if len(recent) == cfg.utd:
            if cfg.ablate != "replay" or n < 512:
                cols = [torch.from_numpy(np.array(c, dtype=np.float32)) for c in zip(*recent)]
                rb.extend(TensorDict(dict(zip(("o", "a", "r", "o2", "d"), cols)), batch_size=[cfg.utd]))
            recent.clear()
        o = o2
        if te or tr:
            rets.append(ret); ret = 0.0
            o, _ = env.reset()
        n += 1
        if n >= 512 and n % cfg.utd == 0:
            if t0 is None:
                t0, n0 = time.perf_counter(), n
            if batch is None or cfg.ablate != "replay":
                batch = rb.sample()
            if cfg.ablate != "learning":
                lq = agent.update(batch)
            el = time.perf_counter() - t0
            if el - mark > 2:
                mark = el
                print(f"{el:6.1f} s  n={n}  return={np.mean(rets[-10:]):.1f}  lq={lq:.3f}", flush=True)
            if el >= cfg.seconds:
                break
    print(f"{(n - n0) / el:.1f} steps/s")


if __name__ == "__main__":
    main()
