"""Three picker threads gather CartPole experience while one presser thread trains.
They share one basket and one set of weights, both behind a single lock."""
import gc
import os
import queue
import random
import threading
import time
from contextlib import contextmanager

import gymnasium as gym
import numpy as np
import torch
from torch.nn.functional import mse_loss

torch.set_num_threads(1)
NO = tuple(os.environ.get("ABLATE", "").split(","))     # weigh, sweep, press
SECONDS = float(os.environ.get("SECONDS", "1e9"))
FRUIT = int(os.environ.get("FRUIT", "8000"))
PICKERS = 3


class Orchard:
    def __init__(self):
        self.lock = threading.Lock()
        self.basket = []
        self.count = 0
        self.scale = []
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 48), torch.nn.ReLU(), torch.nn.Linear(48, 2))
        self.shut = threading.Event()
        self.letters = queue.SimpleQueue()

    @contextmanager
    def mine(self):
        self.lock.acquire()
        try:
            yield self
        finally:
            self.lock.release()

    def weigh(self):
        """Telemetry flush, done by whoever holds the lock: waits for the 'scale' to settle."""
        if "weigh" in NO:
            return
        self.scale.append(len(self.basket))
        time.sleep(0.002)


class Picker(threading.Thread):
    def __init__(self, orchard, seed):
        super().__init__(name=f"picker-{seed}", daemon=True)
        self.o, self.rng = orchard, random.Random(seed)
        self.env = gym.make("CartPole-v1")
        self.env.reset(seed=seed)

    def run(self):
        obs, _ = self.env.reset()
        while not self.o.shut.is_set():
            with self.o.mine() as o:
                if self.rng.random() < 0.1:
                    act = self.rng.randrange(2)
                else:
                    with torch.no_grad():
                        act = int(o.net(torch.from_numpy(obs)).argmax())
                o.weigh()
            nxt, r, term, trunc, _ = self.env.step(act)
            row = (obs, act, r, nxt, term)
            with self.o.mine() as o:
                o.basket.append(row)
                o.count += 1
                if len(o.basket) > 8000:
                    del o.basket[:2000]
            obs = nxt if not (term or trunc) else self.env.reset()[0]
            if term or trunc:
                self.o.letters.put(self.name)
                if "sweep" not in NO and self.rng.random() < 0.02:
                    gc.collect()


class Presser(threading.Thread):
    """Q-learning steps, one for every eight fruits."""

    def __init__(self, orchard):
        super().__init__(name="presser", daemon=True)
        self.o, self.done = orchard, 0
        self.opt = torch.optim.Adam(orchard.net.parameters(), 1e-3)
        self.rng = np.random.default_rng(2)

    def run(self):
        while not self.o.shut.is_set():
            if self.o.count < 200 or self.done * 8 > self.o.count:
                time.sleep(0.001)
                continue
            self.done += 1
            if "press" not in NO:
                self.squeeze()

    def squeeze(self):
        with self.o.mine() as o:
            rows = [o.basket[i] for i in self.rng.integers(len(o.basket), size=64)]
        s, a, r, s2, d = (torch.as_tensor(np.asarray(c)) for c in zip(*rows))
        with self.o.mine() as o:
            with torch.no_grad():
                aim = r.float() + 0.98 * o.net(s2).amax(1) * (~d)
            loss = mse_loss(o.net(s).gather(1, a[:, None].long())[:, 0], aim)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()


def harvest():
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    orchard = Orchard()
    hands = [Picker(orchard, 30 + k) for k in range(PICKERS)] + [Presser(orchard)]
    t0 = time.monotonic()
    for h in hands:
        h.start()
    while orchard.count < FRUIT and time.monotonic() - t0 < SECONDS:
        time.sleep(0.02)
    n, dt = orchard.count, time.monotonic() - t0
    orchard.shut.set()
    for h in hands:
        h.join()
    print(f"orchard: {n} fruits, {orchard.letters.qsize()} episodes, {n / dt:.1f} steps/s")


if __name__ == "__main__":
    harvest()
