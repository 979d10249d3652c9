import copy
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

SECONDS = float(os.environ.get("SECONDS", 60))
ABL = os.environ.get("ABLATE", "")
MUTE = {"sleeping": False, "environment": False, "acting": False, "learning": False, "replay": False}
if ABL:
    MUTE[ABL] = True
OFFLINE = os.environ.get("REMEDY", "") == "1"
torch.set_num_threads(1)


class Rate:
    def __init__(self, hz):
        self.period = 1.0 / hz
        self.next = time.monotonic() + self.period

    def sleep(self):
        left = self.next - time.monotonic()
        if left > 0:
            time.sleep(left)
        self.next = max(self.next, time.monotonic() - self.period) + self.period


class Rover:
    def __init__(self):
        self.posts = np.random.default_rng(4).uniform(-8, 8, (30, 2))
        self.reset_pose()

    def reset_pose(self):
        self.x, self.y, self.th, self.age = 0.0, 0.0, 0.0, 0

    def scan(self):
        beams = []
        for k in range(12):
            ang = self.th + k * math.pi / 6
            c, s = math.cos(ang), math.sin(ang)
            best = 10.0
            for px, py in self.posts:
                along = (px - self.x) * c + (py - self.y) * s
                off = abs(-(px - self.x) * s + (py - self.y) * c)
                if off < 0.4 and 0 < along < best:
                    best = along
            beams.append(best / 10)
        return beams

    def drive(self, v, w):
        self.th += w * 0.05
        self.x += v * 0.05 * math.cos(self.th)
        self.y += v * 0.05 * math.sin(self.th)
        self.age += 1

    def sense(self):
        return np.array(self.scan() + [self.x / 8, self.y / 8, math.sin(self.th), math.cos(self.th)], np.float32)


def mlp(i, o, out=None):
    layers = [torch.nn.Linear(i, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(),
              torch.nn.Linear(128, o)]
    return torch.nn.Sequential(*layers + ([out] if out else []))


actor, q1, q2 = mlp(16, 2, torch.nn.Tanh()), mlp(18, 1), mlp(18, 1)
actor_t, q1_t, q2_t = copy.deepcopy(actor), copy.deepcopy(q1), copy.deepcopy(q2)
a_opt = torch.optim.Adam(actor.parameters(), 1e-3)
q_opt = torch.optim.Adam(list(q1.parameters()) + list(q2.parameters()), 1e-3)
store = {k: np.zeros((10000, n), np.float32) for k, n in (("s", 16), ("a", 2), ("r", 1), ("z", 16))}
count = 0


def keep(s, a, r, z):
    global count
    i = count % 10000
    store["s"][i], store["a"][i], store["r"][i], store["z"][i] = s, a, r, z
    count += 1


def draw(n=128):
    idx = np.random.randint(0, min(count, 10000), n)
    return [torch.from_numpy(store[k][idx]) for k in "sarz"]


def decide(s):
    with torch.no_grad():
        a = actor(torch.from_numpy(s)).numpy()
    return np.clip(a + 0.1 * np.random.randn(2), -1, 1)


def fit(batch):
    s, a, r, z = batch
    with torch.no_grad():
        az = torch.cat([z, actor_t(z)], 1)
        y = r + 0.98 * torch.min(q1_t(az), q2_t(az))
    sa = torch.cat([s, a], 1)
    loss = F.mse_loss(q1(sa), y) + F.mse_loss(q2(sa), y)
    q_opt.zero_grad()
    loss.backward()
    q_opt.step()
    pi = -q1(torch.cat([s, actor(s)], 1)).mean()
    a_opt.zero_grad()
    pi.backward()
    a_opt.step()
    with torch.no_grad():
        for m, mt in ((actor, actor_t), (q1, q1_t), (q2, q2_t)):
            for p, pt in zip(m.parameters(), mt.parameters()):
                pt.lerp_(p, 0.01)


rover, rate = Rover(), Rate(25)
s = rover.sense()
for _ in range(200):
    keep(s, np.zeros(2), 0.0, s)
fit(draw())
if OFFLINE or MUTE["sleeping"]:
    rate.sleep = lambda: None
if MUTE["environment"]:
    rover.sense = lambda: s
if MUTE["acting"]:
    decide = lambda s: np.zeros(2)
if MUTE["learning"]:
    fit = lambda b: None
if MUTE["replay"]:
    one = draw()
    draw = lambda: one

ticks, start, mark = 0, time.time(), None
rate.next = time.monotonic() + rate.period
while time.time() - start < SECONDS:
    a = decide(s)
    rover.drive(a[0] + 0.5, 2 * a[1])
    z = rover.sense()
    keep(s, a, float(z[:12].min()) + 0.1 * a[0], z)
    s = z
    fit(draw())
    rate.sleep()
    ticks += 1
    if rover.age == 400:
        rover.reset_pose()
    if mark is None and time.time() - start > 1:
        mark = (time.time(), ticks)

print(json.dumps({"steps_per_second": (ticks - mark[1]) / (time.time() - mark[0])}))
