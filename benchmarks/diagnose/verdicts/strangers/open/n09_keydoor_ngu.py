# sparse key-door grid, PPO + episodic bonus (a la never-give-up, small scale)
import os, time, math
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
import gymnasium as gym
torch.set_num_threads(1)

cfg = dict(secs=float(os.environ.get("SECONDS", 60)), drop=os.environ.get("ABLATE", ""),
           T=64, k=10, cap=3000, beta=0.3, lr=3e-4)

WALLS = ["###############", "#......#......#", "#......#......#", "#..............", "#......#......#",
         "#......#......#", "####.#####.####", "#......#......#", "#......D......#", "#......#......#",
         "#......#......#", "###############"]


class KeyDoor(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (31,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.r, self.c, self.key, self.n = 1, 1, 0, 0
        return self._o(), {}

    def _o(self):
        o = np.zeros(31, np.float32)
        o[self.r] = 1
        o[12 + self.c] = 1
        o[27] = self.key
        o[28:] = self.n / 3000, self.r / 12, self.c / 15
        return o

    def step(self, a):
        if cfg["drop"] == "environment":
            self.n += 1
            return OBS0, 0.0, False, self.n >= 3000, {}
        dr, dc = ((0, 1), (1, 0), (0, -1), (-1, 0))[a]
        r, c = self.r + dr, min(self.c + dc, 14)
        w = WALLS[r][c]
        if w == "." or (w == "D" and self.key):
            self.r, self.c = r, c
        if (self.r, self.c) == (10, 1):
            self.key = 1
        self.n += 1
        win = self.key and (self.r, self.c) == (10, 13)
        return self._o(), float(win), bool(win), self.n >= 3000, {}


OBS0 = np.zeros(31, np.float32)


class AC(nn.Module):
    def __init__(s):
        super().__init__()
        s.b = nn.Sequential(nn.Linear(31, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        s.p = nn.Linear(64, 4); s.v = nn.Linear(64, 1)

    def forward(s, x):
        h = s.b(x)
        return s.p(h), s.v(h)[..., 0]


class Curious(nn.Module):
    def __init__(s, d=16):
        super().__init__()
        s.f = nn.Sequential(nn.Linear(31, 64), nn.ReLU(), nn.Linear(64, d))
        s.inv = nn.Sequential(nn.Linear(2 * d, 64), nn.ReLU(), nn.Linear(64, 4))
        s.mem = []
        s.dm = 1.0

    def forget(s):
        # half of it stays around so the second lap is not boring straight away
        s.mem = s.mem[-cfg["cap"] // 2:]

    def bonus(s, o):
        if cfg["drop"] == "bonus":
            return 0.1
        with torch.no_grad():
            e = s.f(torch.from_numpy(o)).numpy()
        if len(s.mem) < cfg["k"]:
            s.mem.append(e)
            return 0.0
        d = sorted(float(((m - e) ** 2).sum()) for m in s.mem)[:cfg["k"]]
        s.dm = 0.99 * s.dm + 0.01 * np.mean(d)
        kern = sum(0.001 / (max(x / (s.dm + 1e-8) - 0.008, 0) + 0.001) for x in d)
        s.mem.append(e)
        if len(s.mem) > cfg["cap"]:
            del s.mem[0]
        return 1.0 / (math.sqrt(kern) + 0.001) if math.sqrt(kern) < 8 else 0.0

    def loss(s, o, o2, a):
        return F.cross_entropy(s.inv(torch.cat([s.f(o), s.f(o2)], -1)), a)


def main():
    torch.manual_seed(0); np.random.seed(0)
    env, ac, cur = KeyDoor(), AC(), Curious()
    opt = torch.optim.Adam([*ac.parameters(), *cur.parameters()], lr=cfg["lr"])
    o, _ = env.reset()
    for _ in range(1500):   # seed the memory with a random walk
        o, _, d, tr, _ = env.step(np.random.randint(4))
        if cfg["drop"] != "bonus":
            with torch.no_grad():
                cur.mem.append(cur.f(torch.from_numpy(o)).numpy())
    o, _ = env.reset()
    N, t0, told, wins = 0, time.time(), time.time(), 0
    while time.time() - t0 < cfg["secs"]:
        buf = []
        for _ in range(cfg["T"]):
            if cfg["drop"] == "acting":
                a, lp, v = N % 4, -1.386, 0.0
            else:
                with torch.no_grad():
                    z, v = ac(torch.from_numpy(o))
                    p = torch.log_softmax(z, -1)
                    a = int(torch.multinomial(p.exp(), 1)); lp, v = float(p[a]), float(v)
            o2, r, d, tr, _ = env.step(a)
            b = cur.bonus(o2)
            buf.append((o, a, lp, v, r + cfg["beta"] * b, float(d), o2))
            wins += int(d)
            o = o2; N += 1
            if d or tr:
                o, _ = env.reset(); cur.forget()
        if cfg["drop"] != "learning":
            O, A, LP, V, R, D, O2 = (np.array(x) for x in zip(*buf))
            O, O2, A = torch.from_numpy(O), torch.from_numpy(O2), torch.from_numpy(A)
            with torch.no_grad():
                nv = float(ac(O2[-1])[1])
            adv, g = np.zeros(len(R), np.float32), 0.0
            for t in reversed(range(len(R))):
                g = R[t] + .99 * nv * (1 - D[t]) - V[t] + .99 * .95 * (1 - D[t]) * g
                adv[t], nv = g, V[t]
            ret = torch.from_numpy(adv + V.astype(np.float32)); adv = torch.from_numpy(adv)
            adv = (adv - adv.mean()) / (adv.std() + 1e-8); LP = torch.from_numpy(LP).float()
            for _ in range(4):
                z, v = ac(O)
                p = torch.log_softmax(z, -1)
                ratio = (p.gather(1, A[:, None])[:, 0] - LP).exp()
                loss = -torch.min(ratio * adv, ratio.clamp(.8, 1.2) * adv).mean() + .5 * F.mse_loss(v, ret) \
                    + .01 * (p.exp() * p).sum(-1).mean() + cur.loss(O, O2, A)
                opt.zero_grad(); loss.backward(); opt.step()
        if time.time() - told > 2:
            told = time.time()
            print(N, "wins", wins, "mem", len(cur.mem), "dm %.3f" % cur.dm, flush=True)
    print("%.1f steps/s" % (N / (time.time() - t0)))


main()
