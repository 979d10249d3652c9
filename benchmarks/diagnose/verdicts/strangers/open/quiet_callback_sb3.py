#!/usr/bin/env python
"""SB3 PPO on Pendulum with a do-everything callback: it saves, draws and examines."""
import math
import os
import pathlib
import sys
import tempfile
import time

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import set_random_seed

torch.set_num_threads(1)
left_out = [p.strip() for p in os.getenv("ABLATE", "").split(",")]   # exam, portrait, vault
SECONDS = float(os.getenv("SECONDS", "0")) or math.inf
STEPS = int(os.getenv("STEPS", "18000"))
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="quiet_"))


def unless(name):
    """Decorator: the method does nothing if its name was asked to be left out."""
    def deco(fn):
        return (lambda *a, **k: None) if name in left_out else fn
    return deco


class Housekeeper(BaseCallback):
    """Called once per env step by SB3; most of the calls return at once."""

    def __init__(self, every=256):
        super().__init__()
        self.every = every
        self.history = []
        self.born = None

    def _on_training_start(self):
        self.born = time.perf_counter()
        self.room = gym.make("Pendulum-v1")

    def _on_step(self):
        if self.num_timesteps % self.every == 0:
            self.tidy()
        return time.perf_counter() - self.born < SECONDS

    def tidy(self):
        self.examine()
        self.draw()
        self.keep()

    @unless("exam")
    def examine(self, n=4):
        marks = []
        for k in range(n):
            obs, _ = self.room.reset(seed=900 + k)
            total, over = 0.0, False
            while not over:
                act, _ = self.model.predict(obs, deterministic=True)
                obs, rew, term, trunc, _ = self.room.step(act)
                total += float(rew)
                over = term or trunc
            marks.append(total)
        self.history.append((self.num_timesteps, float(np.mean(marks)), float(np.std(marks))))

    @unless("portrait")
    def draw(self):
        fig, (a, b) = plt.subplots(1, 2, figsize=(7, 3))
        if self.history:
            x, m, s = map(np.array, zip(*self.history))
            a.plot(x, m)
            a.fill_between(x, m - s, m + s, alpha=0.3)
        th, om = np.meshgrid(np.linspace(-np.pi, np.pi, 30), np.linspace(-8, 8, 30))
        pts = np.stack([np.cos(th), np.sin(th), om], -1).reshape(-1, 3).astype(np.float32)
        with torch.no_grad():
            v = self.model.policy.predict_values(torch.from_numpy(pts)).numpy().reshape(th.shape)
        b.contourf(th, om, v, levels=12)
        fig.savefig(SCRATCH / "portrait.png", dpi=80)
        plt.close(fig)

    @unless("vault")
    def keep(self):
        self.model.save(SCRATCH / f"m_{self.num_timesteps % 4096}")


def make():
    return Monitor(gym.make("Pendulum-v1"))


def main(argv):
    set_random_seed(3)
    keeper = Housekeeper()
    model = PPO("MlpPolicy", make(), n_steps=256, batch_size=64, n_epochs=6, gamma=0.95,
                learning_rate=1e-3, use_sde=False, seed=3, device="cpu", verbose=0)
    t0 = time.perf_counter()
    model.learn(STEPS, callback=keeper)
    dt = time.perf_counter() - t0
    if keeper.history:
        print("last exam", keeper.history[-1])
    print(f"[quiet] {model.num_timesteps} in {dt:.2f}s -> {model.num_timesteps / dt:.2f} steps/s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
