import json
import os
import time

import mujoco
import numpy as np
import torch
from torch import nn

SECONDS = float(os.environ.get("SECONDS", 60))
ABLATED = os.environ.get("ABLATE", "")
cut = {k: k == ABLATED for k in ("environment", "acting", "learning", "logging")}
COARSE = os.environ.get("REMEDY") == "1"
torch.set_num_threads(1)


def segment(i, n):
    if i == n:
        return ""
    foot = (f'<geom name="f{i}" type="capsule" fromto="0 -0.1 0 0 -0.18 -0.05" size="0.02"/>'
            f'<geom name="g{i}" type="capsule" fromto="0 0.1 0 0 0.18 -0.05" size="0.02"/>')
    joint = "<freejoint/>" if i == 0 else (f'<joint name="j{i}" type="hinge" axis="0 {i % 2} {1 - i % 2}" '
                                           'range="-0.6 0.6" limited="true" damping="0.3"/>')
    pos = "0 0 0.15" if i == 0 else "-0.2 0 0"
    return (f'<body name="b{i}" pos="{pos}">{joint}<geom type="box" size="0.08 0.1 0.03" mass="0.4"/>'
            f"{foot}{segment(i + 1, n)}</body>")


N = 8
XML = f"""<mujoco><option timestep="{0.004 if COARSE else 0.0005}" integrator="implicitfast"/>
<default><geom friction="0.9 0.1 0.1"/></default>
<worldbody><geom type="plane" size="20 20 1"/>{segment(0, N)}</worldbody>
<actuator>{"".join(f'<motor joint="j{i}" gear="3"/>' for i in range(1, N))}</actuator></mujoco>"""


class Crawler:
    def __init__(self):
        self.m = mujoco.MjModel.from_xml_string(XML)
        self.d = mujoco.MjData(self.m)
        self.inner = round(0.016 / self.m.opt.timestep)
        self.spawn()

    def proprio(self):
        return np.concatenate([self.d.qpos[2:], self.d.qvel]).astype(np.float32)

    def spawn(self):
        mujoco.mj_resetData(self.m, self.d)
        self.d.qpos[7:] += np.random.uniform(-0.05, 0.05, self.m.nq - 7)
        mujoco.mj_forward(self.m, self.d)
        self.age = 0
        return self.proprio()

    def actuate(self, torque):
        before = self.d.qpos[0]
        self.d.ctrl[:] = torque
        for _ in range(self.inner):
            mujoco.mj_step(self.m, self.d)
        self.age += 1
        return self.proprio(), (self.d.qpos[0] - before) / 0.016 - 0.01 * float(torque @ torque), self.age >= 500


body = Crawler()
n_obs = len(body.proprio())
actor = nn.Sequential(nn.Linear(n_obs, 64), nn.Tanh(), nn.Linear(64, N - 1))
critic = nn.Sequential(nn.Linear(n_obs, 64), nn.Tanh(), nn.Linear(64, 1))
log_std = nn.Parameter(torch.full((N - 1,), -0.5))
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters(), log_std], 3e-4)


def torques(o):
    with torch.no_grad():
        return (actor(torch.from_numpy(o)) + log_std.exp() * torch.randn(N - 1)).numpy()


def ppo(buf, last):
    o, a, r, d = (np.array(x) for x in zip(*buf))
    o, a = torch.from_numpy(o), torch.from_numpy(a)
    with torch.no_grad():
        g = critic(torch.from_numpy(last)).item()
        old = torch.distributions.Normal(actor(o), log_std.exp()).log_prob(a).sum(-1)
    ret = np.zeros(len(r), np.float32)
    for i in range(len(r) - 1, -1, -1):
        g = r[i] + 0.98 * g * (1 - d[i])
        ret[i] = g
    ret = torch.from_numpy(ret)
    for _ in range(6):
        for idx in torch.randperm(len(ret)).split(128):
            v = critic(o[idx])[:, 0]
            adv = (ret[idx] - v).detach()
            adv = (adv - adv.mean()) / (adv.std() + 1e-6)
            ratio = (torch.distributions.Normal(actor(o[idx]), log_std.exp()).log_prob(a[idx]).sum(-1) - old[idx]).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() + (v - ret[idx]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    return loss.item()


say = print
o = body.spawn()
if cut["environment"]:
    body.actuate = lambda u: (o0, 0.1, False)
    o0 = o
if cut["acting"]:
    torques = lambda o, z=np.zeros(N - 1, np.float32): z
if cut["learning"]:
    ppo = lambda b, l: 0.0
if cut["logging"]:
    say = lambda *a, **k: None

steps, buf, start, mark = 0, [], time.perf_counter(), None
while True:
    t = time.perf_counter() - start
    if mark is None and t > 1:
        mark = (t, steps)
    if t > SECONDS:
        break
    u = torques(o)
    nxt, r, over = body.actuate(u)
    buf.append((o, u, r, over))
    o = body.spawn() if over else nxt
    steps += 1
    if len(buf) == 1024:
        loss = ppo(buf, o)
        say(f"{steps} {loss:.3f} {np.mean([b[2] for b in buf]):.3f}", flush=True)
        buf = []
print(json.dumps({"steps_per_second": (steps - mark[1]) / (t - mark[0])}))
