"""Season one: behaviour cloning from compressed archives on disk (LZMA of pickles).
Season two: the cloned policy goes on with REINFORCE in a long Pendulum, its returns
summed naively.  The two seasons lose their time in quite different places."""
import abc
import glob
import lzma
import os
import pickle
import shutil
import tempfile
import time

import gymnasium as gym
import numpy as np
import torch

torch.set_num_threads(1)
FALLOW = os.environ.get("ABLATE", "").split(",")     # unpack, tally
SECONDS = float(os.environ.get("SECONDS", "inf"))
N1 = int(os.environ.get("N1", "700000"))             # samples cloned
N2 = int(os.environ.get("N2", "120000"))              # steps lived


def pedagogue(o):
    """energy pumping"""
    return np.array([np.sign(o[2] + 1e-9) * 0.9], np.float32)


def fill_barn(folder, files=6, rows=12000):
    env = gym.make("Pendulum-v1")
    o, _ = env.reset(seed=42)
    for f in range(files):
        out = []
        for _ in range(rows // 6):
            u = pedagogue(o)
            pixels = (np.outer(np.sin(o[0] * np.arange(48)), np.cos(o[1] * np.arange(20))) * 60).astype(np.int8)
            out.append((o, u, pixels))
            o, _, a, b, _ = env.step(2 * u)
            if a or b:
                o, _ = env.reset()
        with lzma.open(os.path.join(folder, f"crop{f:02d}.xz"), "wb", preset=1) as fh:
            pickle.dump(out, fh, protocol=4)


class Season(abc.ABC):
    target = 0

    def __init__(self, net):
        self.net, self.n, self.spent = net, 0, 0.0
        self.opt = torch.optim.Adam(net.parameters(), 1e-3)

    @abc.abstractmethod
    def day(self) -> int:
        ...

    def run(self, allowance):
        t0 = time.perf_counter()
        while self.n < self.target and time.perf_counter() - t0 < allowance:
            self.n += self.day()
        self.spent = time.perf_counter() - t0
        return self

    @property
    def pace(self):
        return self.n / self.spent


class Cloning(Season):
    target = N1

    def __init__(self, net, folder):
        super().__init__(net)
        self.files = sorted(glob.glob(folder + "/*.xz"))
        self.kept = {}
        self.k = 0

    def crate(self, path):
        if "unpack" in FALLOW and path in self.kept:
            return self.kept[path]
        with lzma.open(path) as fh:
            rows = pickle.load(fh)
        self.kept[path] = (torch.from_numpy(np.stack([r[0] for r in rows])),
                           torch.from_numpy(np.stack([r[1] for r in rows])))
        return self.kept[path]

    def day(self):
        x, y = self.crate(self.files[self.k % len(self.files)])
        self.k += 1
        for ix in torch.randperm(len(x)).split(64):
            loss = (self.net(x[ix]) - y[ix]).square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return len(x)


class Living(Season):
    target = N2

    def __init__(self, net):
        super().__init__(net)
        self.env = gym.make("Pendulum-v1", max_episode_steps=1200)
        self.env.reset(seed=43)

    @staticmethod
    def tally(rewards, gamma=0.995):
        if "tally" in FALLOW:
            return np.cumsum(rewards[::-1])[::-1].astype(np.float32)
        return np.array([sum(r * gamma ** i for i, r in enumerate(rewards[t:]))
                         for t in range(len(rewards))], np.float32)

    def day(self):
        o, _ = self.env.reset()
        xs, us, rs, over = [], [], [], False
        while not over:
            with torch.no_grad():
                u = self.net(torch.from_numpy(o)) + 0.2 * torch.randn(1)
            xs.append(o), us.append(u)
            o, r, a, b, _ = self.env.step(2 * u.numpy())
            o = np.asarray(o, np.float32)
            rs.append(float(r))
            over = a or b
        g = torch.from_numpy(self.tally(rs))
        mean = self.net(torch.from_numpy(np.stack(xs)))[:, 0]
        lp = -((torch.cat(us) - mean) / 0.2) ** 2 / 2
        loss = -(lp * (g - g.mean()) / (g.std() + 1e-6)).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return len(rs)


if __name__ == "__main__":
    torch.manual_seed(42)
    np.random.seed(42)
    barn = tempfile.mkdtemp(prefix="barn_")
    try:
        fill_barn(barn)
        net = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1), torch.nn.Tanh())
        one = Cloning(net, barn).run(SECONDS / 2)
        two = Living(net).run(SECONDS / 2)
    finally:
        shutil.rmtree(barn, ignore_errors=True)
    print(f"season one {one.pace:.1f}/s, season two {two.pace:.1f}/s")
    whole = (N1 + N2) / (N1 / one.pace + N2 / two.pace)      # as if both ran to their end
    print(f"seasons: {whole:.1f} steps/s")
