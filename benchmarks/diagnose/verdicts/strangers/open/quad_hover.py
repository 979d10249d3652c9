"""Planar quadrotor tracking a moving reference; deterministic actor-critic with own dynamics."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class PlanarQuad:
    """m x'' = -u1 sin(th), m z'' = u1 cos(th) - m g, I th'' = u2 with first-order rotors, RK4."""
    m, inertia, arm, g, tau = 0.6, 0.004, 0.15, 9.81, 0.04

    def __init__(self, seed=0, dt=0.02, sub=4):
        self.rng = np.random.default_rng(seed)
        self.dt, self.sub = dt, sub

    def reset(self):
        self.x = np.zeros(8)
        self.x[:2] = self.rng.uniform(-0.5, 0.5, 2)
        self.x[6:] = self.m * self.g / 2
        self.phase = self.rng.uniform(0, 2 * math.pi)
        self.k = 0
        return self.sense()

    def ref(self):
        t = self.k * self.dt
        return 0.5 * math.sin(0.7 * t + self.phase), 0.3 * math.cos(0.9 * t + self.phase)

    def deriv(self, x, cmd):
        f1, f2 = x[6], x[7]
        s, c = math.sin(x[4]), math.cos(x[4])
        u = f1 + f2
        return np.array([x[2], x[3], -u * s / self.m, u * c / self.m - self.g, x[5],
                         (f1 - f2) * self.arm / self.inertia, (cmd[0] - f1) / self.tau, (cmd[1] - f2) / self.tau])

    def sense(self):
        rx, rz = self.ref()
        x = self.x
        return np.array([x[0] - rx, x[1] - rz, x[2], x[3], math.sin(x[4]), math.cos(x[4]), 0.2 * x[5],
                         x[6] - 2.9, x[7] - 2.9], np.float32)

    def step(self, a):
        cmd = 2.943 * (1.0 + 0.7 * np.asarray(a, float))
        h = self.dt / self.sub
        for _ in range(self.sub):
            k1 = self.deriv(self.x, cmd)
            k2 = self.deriv(self.x + h / 2 * k1, cmd)
            k3 = self.deriv(self.x + h / 2 * k2, cmd)
            k4 = self.deriv(self.x + h * k3, cmd)
            self.x = self.x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        self.k += 1
        o = self.sense()
        err = math.hypot(float(o[0]), float(o[1]))
        crash = err > 2.0 or abs(self.x[4]) > 1.4
        return o, 1.0 - err - 0.05 * abs(self.x[5]) - 5.0 * crash, crash, self.k >= 300


def net(i, o, end=None):
    m = [nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, o)]
    return nn.Sequential(*m, *([end] if end else []))


def soft(dst, src, tau=0.005):
    with torch.no_grad():
        torch._foreach_lerp_(list(dst.parameters()), list(src.parameters()), tau)


def train(total=10_000_000):
    sim = PlanarQuad()
    pi, pi_t = net(9, 2, nn.Tanh()), net(9, 2, nn.Tanh())
    qf, qf_t = net(11, 1), net(11, 1)
    pi_t.load_state_dict(pi.state_dict()); qf_t.load_state_dict(qf.state_dict())
    opt_p = torch.optim.Adam(pi.parameters(), 3e-4, foreach=True)
    opt_q = torch.optim.Adam(qf.parameters(), 1e-3, foreach=True)
    cap = 100_000
    buf = torch.zeros(cap, 9 + 2 + 1 + 1 + 9)
    rng = np.random.default_rng(7)
    o, acc, hist = sim.reset(), 0.0, []
    for t in range(total):
        with torch.no_grad():
            a = pi(torch.from_numpy(o)).numpy()
        a = np.clip(a + 0.15 * rng.standard_normal(2), -1, 1).astype(np.float32)
        o2, r, dead, late = sim.step(a)
        buf[t % cap] = torch.from_numpy(np.concatenate([o, a, [r, dead], o2]).astype(np.float32))
        o, acc = o2, acc + r
        if dead or late:
            hist.append(acc)
            o, acc = sim.reset(), 0.0
        if t >= 400 and t % 32 == 0:
            s, u, rr, d, s2 = buf[torch.randint(0, min(t, cap), (64,))].split([9, 2, 1, 1, 9], 1)
            with torch.no_grad():
                y = rr + 0.98 * (1 - d) * qf_t(torch.cat([s2, pi_t(s2)], 1))
            lq = F.mse_loss(qf(torch.cat([s, u], 1)), y)
            opt_q.zero_grad(); lq.backward(); opt_q.step()
            lp = -qf(torch.cat([s, pi(s)], 1)).mean()
            opt_p.zero_grad(); lp.backward(); opt_p.step()
            soft(qf_t, qf); soft(pi_t, pi)
        if t % 5000 == 0:
            print(t, np.mean(hist[-20:]) if hist else 0.0, flush=True)


if __name__ == "__main__":
    train()
