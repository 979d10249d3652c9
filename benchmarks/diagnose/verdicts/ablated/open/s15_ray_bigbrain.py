import json
import os
import time

import numpy as np
import ray
import torch
import torch.nn as nn

SECONDS = float(os.environ.get("SECONDS", 60))
ABLATE = os.environ.get("ABLATE", "")
REMEDY = os.environ.get("REMEDY") == "1"
PARTS = {p: p == ABLATE for p in ("environment", "learning", "other:weights", "logging")}
FRAGMENT, WIDTH = 256, 256 if REMEDY else 1400


@ray.remote(num_cpus=0)
class Sampler:
    def __init__(self, seed, frozen):
        torch.set_num_threads(1)
        self.rng = np.random.default_rng(seed)
        self.frozen, self.ready = frozen, None
        self.pos, self.vel = self.rng.normal(size=(2, 8))

    def look(self):
        return np.concatenate([self.pos, self.vel, [np.linalg.norm(self.pos)]]).astype(np.float32)

    def shove(self, k):
        force = np.zeros(8)
        force[k // 2] = 1.0 if k % 2 else -1.0
        self.vel = 0.95 * self.vel + 0.1 * force + self.rng.normal(0, 0.02, 8)
        self.pos = np.clip(self.pos + 0.1 * self.vel, -3, 3)
        return self.look(), -float(np.abs(self.pos).mean())

    def collect(self, weights):
        if self.frozen and self.ready:
            return self.ready
        w, b = weights
        obs, out = self.look(), []
        for _ in range(FRAGMENT):
            logits = obs @ w + b
            p = np.exp(logits - logits.max())
            a = int(self.rng.choice(16, p=p / p.sum()))
            nxt, r = self.shove(a)
            out.append((obs, a, r))
            obs = nxt
        self.ready = tuple(np.array(x) for x in zip(*out))
        return self.ready


class Brain(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Sequential(nn.Linear(17, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
                                   nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.pi = nn.Linear(17, 16)

    def export(self):
        return self.pi.weight.detach().numpy().T.copy(), self.pi.bias.detach().numpy().copy()


def main():
    torch.set_num_threads(1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=150 * 2 ** 20)
    brain = Brain()
    opt = torch.optim.Adam(brain.parameters(), lr=3e-4)

    def fit(obs, act, rew):
        ret = np.zeros(len(rew), np.float32)
        g = 0.0
        for i in range(len(rew) - 1, -1, -1):
            g = rew[i] + 0.95 * g
            ret[i] = g
        obs, act, ret = torch.from_numpy(obs), torch.from_numpy(act), torch.from_numpy(ret)
        for idx in torch.randperm(len(ret)).split(64):
            v = brain.value(obs[idx])[:, 0]
            adv = (ret[idx] - v).detach()
            lp = brain.pi(obs[idx]).log_softmax(-1).gather(1, act[idx, None])[:, 0]
            loss = (v - ret[idx]).pow(2).mean() - 0.01 * (lp * adv).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.item()

    samplers = [Sampler.remote(i, PARTS["environment"]) for i in range(2)]
    export, say = brain.export, print
    ray.get([s.collect.remote(export()) for s in samplers])
    if PARTS["learning"]:
        fit = lambda *a: 0.0
    if PARTS["other:weights"]:
        first = ray.put(export())
        export = lambda: first
    if PARTS["logging"]:
        say = lambda *a, **k: None
    pending = {s.collect.remote(export()): s for s in samplers}
    steps, n, t0, mark = 0, 0, time.time(), None
    while True:
        t = time.time() - t0
        if mark is None and t > 1:
            mark = (t, steps)
        if t > SECONDS:
            break
        done, _ = ray.wait(list(pending), num_returns=1)
        who = pending.pop(done[0])
        obs, act, rew = ray.get(done[0])
        pending[who.collect.remote(export())] = who
        loss = fit(obs, act, rew)
        steps += len(rew)
        n += 1
        if n % 10 == 0:
            say(f"fragment {n} loss {loss:.4f} mean reward {rew.mean():.3f}", flush=True)
    print(json.dumps({"steps_per_second": (steps - mark[1]) / (t - mark[0])}))
    ray.shutdown()


if __name__ == "__main__":
    main()
