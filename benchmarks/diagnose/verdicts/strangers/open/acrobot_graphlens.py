"""Advantage actor-critic on Acrobot whose observation is a small state-transition
graph: the last visited (discretised) states become nodes, moves become edges, and
the policy sees centrality statistics of that graph next to the raw observation."""
import collections
import os
import random
import time

import gymnasium as gym
import networkx as nx
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

DROP = frozenset(filter(None, os.environ.get("ABLATE", "").split(",")))   # graph, update
DEADLINE = float(os.environ.get("SECONDS", "1e9"))
TOTAL = int(os.environ.get("TOTAL", "12000"))
torch.set_num_threads(1)


def sow(n):
    random.seed(n)
    np.random.seed(n)
    torch.manual_seed(n)


class GraphLens(gym.ObservationWrapper):
    """Keeps a trail of coarse states and appends five numbers of their graph."""

    EXTRA = 5

    def __init__(self, env, memory=24):
        super().__init__(env)
        self.trail = collections.deque(maxlen=memory)
        low, high = env.observation_space.low, env.observation_space.high
        pad = np.full(self.EXTRA, 10.0, np.float32)
        self.observation_space = gym.spaces.Box(
            np.concatenate([low, -pad]), np.concatenate([high, pad]), dtype=np.float32)

    def reset(self, **kw):
        self.trail.clear()
        return super().reset(**kw)

    def _digest(self, obs):
        return tuple(np.round(obs * 2.0).astype(int).tolist())

    def observation(self, obs):
        if "graph" in DROP:
            return np.concatenate([obs, np.zeros(self.EXTRA, np.float32)]).astype(np.float32)
        self.trail.append(self._digest(obs))
        g = nx.DiGraph()
        here = self.trail[-1]
        g.add_node(here)
        for a, b in zip(self.trail, list(self.trail)[1:]):
            w = g[a][b]["weight"] + 1 if g.has_edge(a, b) else 1
            g.add_edge(a, b, weight=w)
        between = nx.betweenness_centrality(g)
        close = nx.closeness_centrality(g, here)
        dens = nx.density(g) if len(g) > 1 else 0.0
        comps = nx.number_strongly_connected_components(g)
        feats = [between[here], close, dens, comps / 24.0, len(g) / 24.0]
        return np.concatenate([obs, np.asarray(feats)]).astype(np.float32)


class Stoat(nn.Module):
    def __init__(self, inp, acts):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inp, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, acts), nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


def rollouts(env, net, span):
    """Generator of chunks of experience; never ends."""
    o, _ = env.reset(seed=11)
    while True:
        chunk = collections.defaultdict(list)
        for _ in range(span):
            with torch.no_grad():
                logits, val = net(torch.from_numpy(o).unsqueeze(0))
                act = torch.distributions.Categorical(logits=logits).sample()
            nxt, r, term, trunc, _ = env.step(int(act))
            chunk["o"].append(o)
            chunk["a"].append(int(act))
            chunk["r"].append(r)
            chunk["v"].append(float(val))
            chunk["done"].append(term or trunc)
            o = nxt if not (term or trunc) else env.reset()[0]
        with torch.no_grad():
            chunk["boot"] = float(net(torch.from_numpy(o).unsqueeze(0))[1])
        yield chunk


def improve(net, opt, ch, gamma=0.99, passes=4):
    if "update" in DROP:
        return 0.0
    ret, acc = np.zeros(len(ch["r"]), np.float32), ch["boot"]
    for i in reversed(range(len(ch["r"]))):
        acc = ch["r"][i] + gamma * acc * (not ch["done"][i])
        ret[i] = acc
    o = torch.from_numpy(np.stack(ch["o"]))
    a, g = torch.tensor(ch["a"]), torch.from_numpy(ret)
    for _ in range(passes):
        logits, v = net(o)
        d = torch.distributions.Categorical(logits=logits)
        adv = (g - v.detach())
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        loss = -(d.log_prob(a) * adv).mean() + 0.5 * F.mse_loss(v, g) - 0.01 * d.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    sow(11)
    env = GraphLens(gym.make("Acrobot-v1"))
    net = Stoat(env.observation_space.shape[0], env.action_space.n)
    opt = torch.optim.RMSprop(net.parameters(), 7e-4)
    done, began = 0, time.perf_counter()
    for ch in rollouts(env, net, 64):
        improve(net, opt, ch)
        done += len(ch["r"])
        if done >= TOTAL or time.perf_counter() - began > DEADLINE:
            break
    took = time.perf_counter() - began
    print(f"graphlens: {done} steps in {took:.1f} s, {done / took:.1f} steps/s")


if __name__ == "__main__":
    main()
