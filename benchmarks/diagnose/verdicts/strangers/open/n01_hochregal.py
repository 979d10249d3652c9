"""Staplerleitstand: A2C waehlt fuer jeden Auftrag den Stapler (Masterarbeit, Kap. 4)."""
import os
import time
import random

import gymnasium as gym
import networkx as nx
import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
DAUER = float(os.environ.get("SECONDS", "60"))
OHNE = os.environ.get("ABLATE", "")

ANZ_STAPLER = 6
GASSEN, TIEFE = 11, 15
N_SCHRITTE = 16


class Hochregal(gym.Env):
    def __init__(self, saat=0):
        self.rng = random.Random(saat)
        self.g = nx.grid_2d_graph(GASSEN, TIEFE)
        # nur am Kopf und in der Mitte darf man die Gasse wechseln
        weg = [(u, v) for u, v in self.g.edges if u[1] == v[1] and u[1] not in (0, TIEFE // 2, TIEFE - 1)]
        self.g.remove_edges_from(weg)
        for u, v in self.g.edges:
            self.g[u][v]["w"] = 1.0
        self.plaetze = list(self.g.nodes)
        self.observation_space = gym.spaces.Box(-5, 50, (ANZ_STAPLER * 3 + 2,), np.float32)
        self.action_space = gym.spaces.Discrete(ANZ_STAPLER)

    def reset(self, *, seed=None, options=None):
        self.pos = [self.rng.choice(self.plaetze) for _ in range(ANZ_STAPLER)]
        self.rest = [[] for _ in range(ANZ_STAPLER)]
        self.t = 0
        self.auftrag = self.rng.choice(self.plaetze)
        self.verkehr()
        return self.blick(), {}

    def verkehr(self):
        voll = {}
        for p in self.pos:
            voll[p] = voll.get(p, 0) + 1
        for r in self.rest:
            for p in r[:4]:
                voll[p] = voll.get(p, 0) + 0.5
        for u, v, d in self.g.edges(data=True):
            d["w"] = 1.0 + voll.get(u, 0) + voll.get(v, 0)

    def blick(self):
        o = []
        self.strecken = []
        for i in range(ANZ_STAPLER):
            start = self.rest[i][-1] if self.rest[i] else self.pos[i]
            laenge, strecke = nx.single_source_dijkstra(self.g, start, self.auftrag, weight="w")
            self.strecken.append(strecke[1:])
            o += [laenge / 10.0, len(self.rest[i]) / 10.0, self.pos[i][0] / GASSEN]
        o += [self.auftrag[0] / GASSEN, self.auftrag[1] / TIEFE]
        return np.array(o, dtype=np.float32)

    def step(self, a):
        a = int(a)
        self.rest[a].extend(self.strecken[a])
        lohn = -len(self.rest[a]) / 10.0
        for _ in range(5):
            for i in range(ANZ_STAPLER):
                if self.rest[i]:
                    self.pos[i] = self.rest[i].pop(0)
        self.verkehr()
        lohn -= 0.1 * (ANZ_STAPLER - len(set(self.pos)))
        self.auftrag = self.rng.choice(self.plaetze)
        self.t += 1
        return self.blick(), lohn, False, self.t >= 120, {}


class Attrappe(Hochregal):
    def reset(self, *, seed=None, options=None):
        self.t = 0
        if not hasattr(self, "fest"):
            self.fest = super().reset()[0]
        return self.fest, {}

    def step(self, a):
        self.t += 1
        return self.fest, -0.5, False, self.t >= 120, {}


class Netz(nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.rumpf = nn.Sequential(nn.Linear(n, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, k)
        self.v = nn.Linear(64, 1)

    def forward(self, x):
        h = self.rumpf(x)
        return self.pi(h), self.v(h).squeeze(-1)


def main():
    umwelt = Attrappe(3) if OHNE == "environment" else Hochregal(3)
    netz = Netz(umwelt.observation_space.shape[0], ANZ_STAPLER)
    opt = torch.optim.Adam(netz.parameters(), lr=7e-4)
    o, _ = umwelt.reset()
    schritte, t0, letzte = 0, None, 0.0
    mittel = None
    while True:
        zust, akt, lohn, ende = [], [], [], []
        for _ in range(N_SCHRITTE):
            if OHNE == "acting":
                a = (schritte * 5 + 1) % ANZ_STAPLER
            else:
                with torch.no_grad():
                    z, _ = netz(torch.from_numpy(o).unsqueeze(0))
                    a = torch.distributions.Categorical(logits=z).sample().item()
            o2, r, d, tr, _ = umwelt.step(a)
            zust.append(o); akt.append(a); lohn.append(r); ende.append(d or tr)
            o = umwelt.reset()[0] if (d or tr) else o2
            mittel = r if mittel is None else 0.99 * mittel + 0.01 * r
            schritte += 1
        if t0 is None:
            t0, s0 = time.perf_counter(), schritte
        if OHNE != "learning":
            with torch.no_grad():
                R = netz(torch.from_numpy(o).unsqueeze(0))[1].item()
            ziel = []
            for r, e in zip(reversed(lohn), reversed(ende)):
                R = r + 0.97 * R * (not e)
                ziel.append(R)
            ziel = torch.tensor(ziel[::-1], dtype=torch.float32)
            z, v = netz(torch.from_numpy(np.stack(zust)))
            vert = torch.distributions.Categorical(logits=z)
            adv = ziel - v.detach()
            verlust = -(vert.log_prob(torch.tensor(akt)) * adv).mean() + 0.5 * (ziel - v).pow(2).mean() \
                - 0.01 * vert.entropy().mean()
            opt.zero_grad(); verlust.backward()
            nn.utils.clip_grad_norm_(netz.parameters(), 0.5)
            opt.step()
        jetzt = time.perf_counter() - t0
        if jetzt - letzte > 2.0:
            letzte = jetzt
            print(f"{jetzt:6.1f}s  Schritte {schritte}  Lohn {mittel:.3f}", flush=True)
        if jetzt >= DAUER:
            print(f"{(schritte - s0) / jetzt:.1f} steps/s")
            return


if __name__ == "__main__":
    main()
