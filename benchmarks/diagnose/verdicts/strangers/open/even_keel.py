"""SAC-ish continuous control on Pendulum in which every piece costs about the same:
running normaliser, actor's action, environment, replay copy, critic, actor, slow average."""
import os
import time
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
SANS = os.environ.get("ABLATE", "").split(",")    # tide, pilot, rudder, drift
SECONDS = float(os.environ.get("SECONDS", "inf"))
MILES = int(os.environ.get("MILES", "16000"))


def mlp(*sizes):
    parts = []
    for a, b in zip(sizes, sizes[1:]):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def tide_gauge(dim):
    """Closure: Welford per feature, in plain Python, with a clipped z-score."""
    count, mean, m2 = 0, [0.0] * dim, [1.0] * dim

    def gauge(o):
        nonlocal count
        if "tide" in SANS:
            return o
        out = []
        count += 1
        for _ in range(8):                       # eight smoothing passes, somebody's habit
            out = []
            for i, x in enumerate(o.tolist()):
                d = x - mean[i]
                mean[i] += d / (count + 1)
                m2[i] += d * (x - mean[i])
                z = d / ((m2[i] / (count + 1)) ** 0.5 + 1e-6)
                out.append(max(-5.0, min(5.0, z)))
        return np.asarray(out, np.float32)

    return gauge


class Hold:
    """ring of arrays"""

    def __init__(self, n, dim):
        self.d = SimpleNamespace(o=np.zeros((n, dim), np.float32), u=np.zeros((n, 1), np.float32),
                                 r=np.zeros(n, np.float32), p=np.zeros((n, dim), np.float32))
        self.n, self.i, self.full = n, 0, 0

    def stow(self, **kw):
        for k, v in kw.items():
            getattr(self.d, k)[self.i] = v
        self.i = (self.i + 1) % self.n
        self.full = min(self.n, self.full + 1)

    def unload(self, k):
        ix = np.random.randint(self.full, size=k)
        return [torch.from_numpy(getattr(self.d, f)[ix]) for f in "ourp"]


class Ship:
    def __init__(self, dim):
        self.actor, self.critic, self.ghost = mlp(dim, 64, 2), mlp(dim + 1, 64, 1), mlp(dim + 1, 64, 1)
        self.ghost.load_state_dict(self.critic.state_dict())
        self.oa = torch.optim.SGD(self.actor.parameters(), 1e-3)
        self.oc = torch.optim.SGD(self.critic.parameters(), 1e-3)

    def sample(self, o):
        mu, ls = self.actor(o).chunk(2, -1)
        eps = torch.randn_like(mu)
        return torch.tanh(mu + ls.clamp(-3, 0).exp() * eps), ls

    def pilot(self, o):
        if "pilot" in SANS:
            return np.random.uniform(-1, 1, 1).astype(np.float32)
        with torch.no_grad():
            return self.sample(torch.from_numpy(o))[0].numpy()

    def keel(self, o, u, r, p):
        with torch.no_grad():
            u2, ls = self.sample(p)
            y = r[:, None] / 8 + 0.97 * (self.ghost(torch.cat([p, u2], 1)) + 0.01 * ls)
        loss = (self.critic(torch.cat([o, u], 1)) - y).square().mean()
        self.oc.zero_grad()
        loss.backward()
        self.oc.step()

    def rudder(self, o):
        if "rudder" in SANS:
            return
        u, ls = self.sample(o)
        loss = -(self.critic(torch.cat([o, u], 1)) + 0.01 * ls).mean()
        self.oa.zero_grad()
        loss.backward()
        self.oa.step()

    @torch.no_grad()
    def drift(self, tau=0.01):
        if "drift" in SANS:
            return
        a, b = self.ghost.state_dict(), self.critic.state_dict()
        self.ghost.load_state_dict({k: (1 - tau) * a[k] + tau * b[k] for k in a})


def voyage(seed=17):
    torch.manual_seed(seed)
    np.random.seed(seed)
    env, gauge, hold, ship = gym.make("Pendulum-v1"), tide_gauge(3), Hold(5000, 3), Ship(3)
    o = gauge(env.reset(seed=seed)[0])
    t0, n = time.perf_counter(), 0
    while n < MILES and time.perf_counter() - t0 < SECONDS:
        u = ship.pilot(o)
        raw, r, a, b, _ = env.step(2 * u)
        p = gauge(raw)
        hold.stow(o=o, u=u, r=r, p=p)
        o = p if not (a or b) else gauge(env.reset()[0])
        n += 1
        if n > 64:
            cargo = hold.unload(32)
            ship.keel(*cargo)
            ship.rudder(cargo[0])
            ship.drift()
    dt = time.perf_counter() - t0
    print(f"even keel, {n} miles at {n / dt:.1f} steps/s")


if __name__ == "__main__":
    voyage()
