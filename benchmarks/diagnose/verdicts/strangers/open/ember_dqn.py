"""DQN with a memory made of Python objects and proportional priorities
kept in a plain list.  LunarLander is not needed, CartPole is enough."""
import bisect
import copy
import dataclasses
import itertools
import os
import random
import time
import typing as T

import gymnasium
import numpy as np
import torch

torch.set_num_threads(1)
SKIP = set(os.environ.get("ABLATE", "").split(","))     # draw, collate
LIMIT = float(os.environ.get("SECONDS", "inf"))
BUDGET = int(os.environ.get("BUDGET", "6000"))


@dataclasses.dataclass
class Ember:
    """One remembered moment; heat is its priority."""
    before: T.List[float]
    move: int
    gain: float
    after: T.List[float]
    over: bool
    heat: float = 1.0
    extra: dict = dataclasses.field(default_factory=dict)


class Hearth:
    def __init__(self, capacity: int, alpha: float = 0.6):
        self.capacity, self.alpha = capacity, alpha
        self.embers: T.List[Ember] = []
        self.cursor = 0

    def throw(self, e: Ember):
        if len(self.embers) < self.capacity:
            self.embers.append(e)
        else:
            self.embers[self.cursor] = e
        self.cursor = (self.cursor + 1) % self.capacity

    def draw(self, n: int) -> T.Tuple[T.List[Ember], T.List[float]]:
        if "draw" in SKIP:
            return [self.embers[int(random.random() * len(self.embers))] for _ in range(n)], [1.0] * n
        ladder = list(itertools.accumulate(e.heat ** self.alpha for e in self.embers))
        top = ladder[-1]
        got, weight = [], []
        for k in range(n):
            spot = (k + random.random()) * top / n
            i = min(bisect.bisect_left(ladder, spot), len(self.embers) - 1)
            e = self.embers[i]
            got.append(e)
            weight.append((len(self.embers) * e.heat ** self.alpha / top) ** -0.4)
        hi = max(weight)
        return got, [w / hi for w in weight]


_cached = {}


def collate(batch: T.List[Ember]):
    """List of objects to tensors."""
    if "collate" in SKIP and len(batch) in _cached:
        return _cached[len(batch)]
    out = (torch.stack([torch.tensor(e.before, dtype=torch.float32) for e in batch]),
           torch.tensor([e.move for e in batch]),
           torch.tensor([e.gain for e in batch], dtype=torch.float32),
           torch.stack([torch.tensor(e.after, dtype=torch.float32) for e in batch]),
           torch.tensor([float(e.over) for e in batch]))
    _cached[len(batch)] = out
    return out


class Bellows:
    """Owns the two networks and the step of descent."""

    def __init__(self, dim, acts, lr=5e-4):
        self.q = torch.nn.Sequential(torch.nn.Linear(dim, 96), torch.nn.ReLU(),
                                     torch.nn.Linear(96, 96), torch.nn.ReLU(),
                                     torch.nn.Linear(96, acts))
        self.slow = copy.deepcopy(self.q)
        self.opt = torch.optim.Adam(self.q.parameters(), lr)

    @torch.no_grad()
    def choose(self, obs, eps, acts):
        if random.random() < eps:
            return random.randrange(acts)
        return int(self.q(torch.as_tensor(obs)).argmax())

    def puff(self, hearth: Hearth, n=64, gamma=0.99):
        picked, w = hearth.draw(n)
        s, a, r, s2, d = collate(picked)
        with torch.no_grad():
            best = self.q(s2).argmax(1, keepdim=True)
            aim = r + gamma * (1 - d) * self.slow(s2).gather(1, best).squeeze(1)
        err = self.q(s).gather(1, a[:, None]).squeeze(1) - aim
        loss = (torch.tensor(w) * err.pow(2)).mean()
        self.opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.q.parameters(), 10.0)
        self.opt.step()
        for e, h in zip(picked, err.detach().abs().tolist()):
            e.heat = h + 1e-3

    def sync(self):
        self.slow.load_state_dict(self.q.state_dict())


def burn(seed=5):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    env = gymnasium.make("CartPole-v1")
    hearth, bellows = Hearth(10_000), Bellows(4, 2)
    obs, _ = env.reset(seed=seed)
    for _ in range(10_000):                 # random data first, until the memory is full
        move = env.action_space.sample()
        nxt, gain, term, trunc, info = env.step(move)
        hearth.throw(Ember(obs.tolist(), int(move), float(gain), nxt.tolist(), term, extra=dict(info)))
        obs = nxt if not (term or trunc) else env.reset()[0]
    clock, steps = time.monotonic(), 0
    while steps < BUDGET and time.monotonic() - clock < LIMIT:
        eps = max(0.05, 1 - steps / 3000)
        move = bellows.choose(obs, eps, 2)
        nxt, gain, term, trunc, info = env.step(move)
        hearth.throw(Ember(obs.tolist(), int(move), float(gain), nxt.tolist(), term, extra=dict(info)))
        obs = nxt if not (term or trunc) else env.reset()[0]
        steps += 1
        bellows.puff(hearth)
        if steps % 250 == 0:
            bellows.sync()
    span = time.monotonic() - clock
    print("ember", steps, "steps", f"{steps / span:.1f} steps/s")


if __name__ == "__main__":
    burn()
