"""Model-based control: an ensemble of networks learns Pendulum's dynamics and every
action comes from a cross-entropy search that unrolls all of them."""
import os
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
NOT = set(os.environ.get("ABLATE", "").split(","))     # dreaming, fitting
CAP = float(os.environ.get("SECONDS", "inf"))
LENGTH = int(os.environ.get("LENGTH", "2500"))


class Flock(torch.nn.Module):
    """K networks as batched matrices."""

    def __init__(self, k, i, o, h=64):
        super().__init__()
        def w(a, b):
            return torch.nn.Parameter(torch.randn(k, a, b) / a ** 0.5)
        def b(n):
            return torch.nn.Parameter(torch.zeros(k, 1, n))
        self.k = k
        self.ws = torch.nn.ParameterList([w(i, h), w(h, h), w(h, o)])
        self.bs = torch.nn.ParameterList([b(h), b(h), b(o)])

    def forward(self, x):
        for n, (w, b) in enumerate(zip(self.ws, self.bs)):
            x = torch.baddbmm(b, x, w)
            if n < 2:
                x = F.silu(x)
        return x


def cost_of(s, u):
    ang = torch.atan2(s[..., 1], s[..., 0])
    return ang ** 2 + 0.1 * s[..., 2] ** 2 + 0.001 * u[..., 0] ** 2


class Oracle:
    def __init__(self, flock, horizon=12, crowd=60, elites=8, turns=3):
        self.flock, self.H, self.N, self.E, self.T = flock, horizon, crowd, elites, turns
        self.mu = torch.zeros(horizon, 1)

    def __call__(self, obs):
        if "dreaming" in NOT:
            return np.random.uniform(-2, 2, 1).astype(np.float32)
        return self.search(torch.as_tensor(obs))

    @torch.no_grad()
    def imagine(self, s, plans):
        s = s.expand(self.flock.k, self.N, 3)
        total = torch.zeros(self.flock.k, self.N)
        for h in range(self.H):
            u = plans[:, h].expand(self.flock.k, self.N, 1)
            s = s + self.flock(torch.cat([s, u], -1))
            total += cost_of(s, u)
        return total.mean(0)

    @torch.no_grad()
    def search(self, s):
        mu, sd = torch.cat([self.mu[1:], torch.zeros(1, 1)]), torch.full((self.H, 1), 1.5)
        for _ in range(self.T):
            plans = (mu + sd * torch.randn(self.N, self.H, 1)).clamp(-2, 2)
            best = self.imagine(s, plans).topk(self.E, largest=False).indices
            mu, sd = plans[best].mean(0), plans[best].std(0) + 0.05
        self.mu = mu
        return mu[0].numpy()


class Diary:
    def __init__(self):
        self.x, self.y = [], []

    def note(self, s, u, s2):
        self.x.append(np.concatenate([s, u]))
        self.y.append(s2 - s)

    def pages(self, k, n=128):
        ix = np.random.randint(len(self.x), size=(k, n))
        pick = lambda src: torch.as_tensor(np.asarray(src, np.float32)[ix])
        return pick(self.x), pick(self.y)


def learn_dynamics(flock, opt, diary, reps=4):
    if "fitting" in NOT:
        return
    for _ in range(reps):
        x, y = diary.pages(flock.k)
        loss = (flock(x) - y).square().mean(dim=(1, 2)).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()


def control_loop():
    torch.manual_seed(21)
    np.random.seed(21)
    env = gym.make("Pendulum-v1")
    flock = Flock(4, 4, 3)
    opt = torch.optim.Adam(flock.parameters(), 2e-3)
    oracle, diary = Oracle(flock), Diary()
    s, _ = env.reset(seed=21)
    score, n, t0 = 0.0, 0, time.perf_counter()
    while n < LENGTH and time.perf_counter() - t0 < CAP:
        u = oracle(s)
        s2, r, term, trunc, _ = env.step(u)
        diary.note(s, u, s2)
        score += float(r)
        s, n = (env.reset()[0] if trunc or term else s2), n + 1
        if n % 2 == 0:
            learn_dynamics(flock, opt, diary)
    dt = time.perf_counter() - t0
    print(f"mean reward {score / n:.2f}")
    print(f"dream: {n / dt:.2f} steps/s over {n}")


control_loop()
