"""
Model-based swing-up on our cart rig (mujoco twin of the bench setup).
ensemble dynamics + cem, refit on the fly.
"""
import os
import time
from dataclasses import dataclass, field

import mujoco
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
RIG = """
<mujoco><option timestep="0.01" integrator="RK4"/>
<worldbody>
 <body name="cart" pos="0 0 0"><joint name="x" type="slide" axis="1 0 0" range="-2 2" limited="true" damping="0.2"/>
  <geom type="box" size=".12 .08 .05" mass="1"/>
  <body name="pole"><joint name="th" type="hinge" axis="0 1 0" damping="0.01"/>
   <geom type="capsule" fromto="0 0 0 0 0 -0.6" size=".025" mass=".2"/></body></body>
</worldbody>
<actuator><motor joint="x" gear="12" ctrlrange="-1 1" ctrllimited="true"/></actuator></mujoco>
"""


@dataclass
class Cfg:
    seconds: float = float(os.environ.get("SECONDS", 60))
    skip: str = os.environ.get("ABLATE", "")
    members: int = 5
    horizon: int = 18
    pop: int = 200
    iters: int = 4
    elites: int = 20
    refit_every: int = 5
    batch: int = 128


class Rig:
    def __init__(self, cfg):
        self.cfg = cfg
        self.m = mujoco.MjModel.from_xml_string(RIG)
        self.d = mujoco.MjData(self.m)

    def reset(self):
        mujoco.mj_resetData(self.m, self.d)
        self.d.qpos[:] = np.random.uniform(-.05, .05, 2)
        mujoco.mj_forward(self.m, self.d)
        self.k = 0
        return self.read()

    def read(self):
        x, th = self.d.qpos
        return np.array([x, np.sin(th), np.cos(th), self.d.qvel[0], self.d.qvel[1]], np.float32)

    def apply(self, u):
        self.k += 1
        if self.cfg.skip == "sim":
            return self.frozen, -1.0, self.k >= 150
        self.d.ctrl[0] = u
        for _ in range(4):
            mujoco.mj_step(self.m, self.d)
        o = self.frozen = self.read()
        return o, float(-o[2] - 0.1 * o[0] ** 2), self.k >= 150

    frozen = np.zeros(5, np.float32)


class Bunch(nn.Module):
    """E networks in one go, delta prediction"""

    def __init__(self, e, i, o, h=96):
        super().__init__()
        mk = lambda a, b: nn.Parameter(torch.randn(e, a, b) / a ** .5)
        self.w1, self.w2, self.w3 = mk(i, h), mk(h, h), mk(h, o)
        self.b1, self.b2, self.b3 = (nn.Parameter(torch.zeros(e, 1, k)) for k in (h, h, o))

    def forward(self, z):
        z = nn.functional.silu(torch.baddbmm(self.b1, z, self.w1))
        z = nn.functional.silu(torch.baddbmm(self.b2, z, self.w2))
        return torch.baddbmm(self.b3, z, self.w3)


@dataclass
class Pilot:
    cfg: Cfg
    net: Bunch
    mu: torch.Tensor = field(default=None)
    u_old: float = 0.0

    @torch.no_grad()
    def __call__(self, o):
        c = self.cfg
        if c.skip == "planner":
            self.u_old = -self.u_old if self.u_old else 0.7
            return self.u_old
        mu = torch.zeros(c.horizon) if self.mu is None else torch.cat([self.mu[1:], self.mu[-1:]])
        sd = torch.full((c.horizon,), 0.6)
        o = torch.from_numpy(o)
        for _ in range(c.iters):
            U = (mu + sd * torch.randn(c.pop, c.horizon)).clamp(-1, 1)
            s = o.expand(c.members, c.pop, 5)
            J = torch.zeros(c.members, c.pop)
            for t in range(c.horizon):
                u = U[:, t].expand(c.members, c.pop).unsqueeze(-1)
                s = s + self.net(torch.cat([s, u], -1))
                J += -s[..., 2] - 0.1 * s[..., 0] ** 2
            top = U[J.mean(0).topk(c.elites).indices]
            mu, sd = top.mean(0), top.std(0) + 0.02
        self.mu = mu
        return float(mu[0])


def run(cfg):
    torch.manual_seed(2); np.random.seed(2)
    rig = Rig(cfg)
    net = Bunch(cfg.members, 6, 5)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    fly = Pilot(cfg, net)
    X = np.zeros((20000, 6), np.float32)
    Y = np.zeros((20000, 5), np.float32)
    n = 0
    o = rig.reset()
    for _ in range(300):
        u = np.random.uniform(-1, 1)
        o2, _, end = rig.apply(u)
        X[n], Y[n] = np.append(o, u), o2 - o
        n += 1
        o = rig.reset() if end else o2

    t0, steps, J, last, fit = time.perf_counter(), 0, 0.0, 0, 0.0
    while True:
        u = fly(o)
        o2, r, end = rig.apply(u)
        X[n % 20000], Y[n % 20000] = np.append(o, np.float32(u)), o2 - o
        n += 1; steps += 1; J += r
        o = o2
        if end:
            print(f"episode cost {-J:.1f}  fit {fit:.2e}  n {n}", flush=True) if cfg.skip != "planner" or steps % 3000 == 0 else None
            J, o, fly.mu = 0.0, rig.reset(), None
        if steps % cfg.refit_every == 0 and cfg.skip != "fit":
            for _ in range(2):
                i = np.random.randint(0, min(n, 20000), (cfg.members, cfg.batch))
                err = (net(torch.from_numpy(X[i])) - torch.from_numpy(Y[i])).pow(2).mean()
                opt.zero_grad(); err.backward(); opt.step()
            fit = err.item()
        el = time.perf_counter() - t0
        if el > cfg.seconds:
            return steps / el


if __name__ == "__main__":
    print(f"{run(Cfg()):.1f} steps/s")
