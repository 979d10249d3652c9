"""Essaim de drones : couverture de zone, IPPO avec poids partages et memoire GRU."""
import os
import time

import numpy as np
import torch
import torch.nn as nn
from gymnasium import spaces
from pettingzoo import ParallelEnv

torch.set_num_threads(1)
DUREE = float(os.environ.get("SECONDS", 60))
SANS = os.environ.get("ABLATE", "").strip()
N, HORIZON, CACHE = 20, 24, 48


class Essaim(ParallelEnv):
    metadata = {"name": "essaim_v0"}

    def __init__(self, graine=0):
        self.possible_agents = [f"drone_{i}" for i in range(N)]
        self.alea = np.random.default_rng(graine)
        self.cibles = self.alea.uniform(-1, 1, (12, 2))

    def observation_space(self, agent):
        return spaces.Box(-3, 3, (4 + 24 + 8,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(5)

    def _voir(self):
        dc = (self.cibles[None] - self.p[:, None]).reshape(N, -1)
        dd = self.p[None] - self.p[:, None]
        dist = (dd ** 2).sum(-1) + np.eye(N) * 9
        proches = np.argsort(dist, 1)[:, :4]
        vois = np.take_along_axis(dd, proches[:, :, None], 1).reshape(N, -1)
        o = np.concatenate([self.p, self.v, dc, vois], 1).astype(np.float32)
        self.dist = dist
        return dict(zip(self.agents, o))

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.p = self.alea.uniform(-1, 1, (N, 2))
        self.v = np.zeros((N, 2))
        self.k = 0
        return self._voir(), {a: {} for a in self.agents}

    def step(self, actions):
        d = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], float)
        u = d[[actions[a] for a in self.agents]]
        self.v = 0.8 * self.v + 0.03 * u
        self.p = np.clip(self.p + self.v, -1.5, 1.5)
        obs = self._voir()
        couv = -np.sqrt(((self.cibles[:, None] - self.p[None]) ** 2).sum(-1)).min(1).mean()
        choc = (self.dist < 0.01).any(1)
        self.k += 1
        fin = self.k >= 96
        r = {a: float(couv - 0.2 * choc[i]) for i, a in enumerate(self.agents)}
        return obs, r, {a: False for a in self.agents}, {a: fin for a in self.agents}, {}


class Fige(Essaim):
    def step(self, actions):
        if not hasattr(self, "_o"):
            self._o = super().step(actions)
        self.k += 1
        f = self.k >= 96
        return self._o[0], self._o[1], self._o[2], {a: f for a in self.agents}, {}

    def reset(self, seed=None, options=None):
        if hasattr(self, "_o"):
            self.k = 0
            return self._o[0], {}
        return super().reset(seed, options)


class Cerveau(nn.Module):
    def __init__(self, n_obs=36, n_act=5):
        super().__init__()
        self.entree = nn.Sequential(nn.Linear(n_obs, CACHE), nn.LayerNorm(CACHE), nn.SiLU())
        self.gru = nn.GRUCell(CACHE, CACHE)
        self.pi, self.v = nn.Linear(CACHE, n_act), nn.Linear(CACHE, 1)

    def forward(self, o, h):
        h = self.gru(self.entree(o), h)
        return self.pi(h), self.v(h).squeeze(-1), h


class Drone:
    """un drone = un etat memoire, les poids sont communs"""

    def __init__(self, nom, cerveau):
        self.nom, self.cerveau = nom, cerveau
        self.oublier()

    def oublier(self):
        self.h = torch.zeros(1, CACHE)

    @torch.no_grad()
    def decider(self, o):
        avant = self.h
        if SANS == "acting":
            return 2, -1.609, 0.0, avant
        z, v, self.h = self.cerveau(torch.as_tensor(o).unsqueeze(0), self.h)
        loi = torch.distributions.Categorical(logits=z)
        a = loi.sample()
        return int(a), float(loi.log_prob(a)), float(v), avant


def apprendre(c, opt, lot):
    O, H, A, LP, ADV, RET = lot
    for _ in range(3):
        for idx in torch.randperm(len(A)).chunk(2):
            z, v, _ = c(O[idx], H[idx])
            loi = torch.distributions.Categorical(logits=z)
            ratio = (loi.log_prob(A[idx]) - LP[idx]).exp()
            adv = (ADV[idx] - ADV[idx].mean()) / (ADV[idx].std() + 1e-6)
            perte = -torch.min(ratio * adv, ratio.clamp(.8, 1.2) * adv).mean() \
                + .5 * (v - RET[idx]).pow(2).mean() - .01 * loi.entropy().mean()
            opt.zero_grad()
            perte.backward()
            opt.step()
    return perte.item()


def principal():
    torch.manual_seed(7)
    env = (Fige if SANS == "environment" else Essaim)(7)
    c = Cerveau()
    opt = torch.optim.Adam(c.parameters(), 5e-4)
    flotte = {a: Drone(a, c) for a in env.possible_agents}
    obs, _ = env.reset()
    pas, debut, pas0, vu, perte = 0, None, 0, 0.0, 0.0
    while True:
        O, H, A, LP, V, R = [], [], [], [], [], []
        for _ in range(HORIZON):
            choix = {a: d.decider(obs[a]) for a, d in flotte.items()}
            nobs, rec, _, tronc, _ = env.step({a: x[0] for a, x in choix.items()})
            O.append(np.stack([obs[a] for a in flotte]))
            H.append(torch.cat([x[3] for x in choix.values()]))
            A.append([x[0] for x in choix.values()])
            LP.append([x[1] for x in choix.values()])
            V.append([x[2] for x in choix.values()])
            R.append([rec[a] for a in flotte])
            obs = nobs
            pas += 1
            if all(tronc.values()):
                obs, _ = env.reset()
                for d in flotte.values():
                    d.oublier()
        if debut is None:
            debut, pas0 = time.time(), pas
        V, R = np.array(V, np.float32), np.array(R, np.float32)
        g = np.zeros_like(R)
        acc = V[-1]
        for t in reversed(range(HORIZON)):
            acc = R[t] + .97 * acc
            g[t] = acc
        if SANS != "learning":
            perte = apprendre(c, opt, (torch.from_numpy(np.concatenate(O)), torch.cat(H), torch.tensor(A).flatten(),
                                       torch.tensor(LP).flatten(), torch.from_numpy((g - V).ravel()),
                                       torch.from_numpy(g.ravel())))
        ecoule = time.time() - debut
        if ecoule - vu > 2:
            vu = ecoule
            print(f"{ecoule:5.1f} s | {pas} pas | couverture {R.mean():.3f} | perte {perte:.3f}", flush=True)
        if ecoule >= DUREE:
            print(f"{(pas - pas0) / ecoule:.1f} steps/s")
            break


if __name__ == "__main__":
    principal()
