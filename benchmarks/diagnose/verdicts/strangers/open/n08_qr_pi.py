"""Runs on the Pi next to the pump; 1 GB of RAM so I keep it lean. QR-DQN picks pump speed."""
import gc
import os
import time
import warnings

import numpy as np
import torch as th
import gymnasium as gym
from sb3_contrib import QRDQN
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

warnings.filterwarnings("ignore")
th.set_num_threads(1)

BUDGET = float(os.environ.get("SECONDS", 60))
WITHOUT = os.environ.get("ABLATE", "")


class Pump(gym.Env):
    """two tanks, noisy inflow, six pump speeds"""
    observation_space = gym.spaces.Box(-5, 5, (6,), np.float32)
    action_space = gym.spaces.Discrete(6)

    def _o(self):
        return np.array([self.a, self.b, self.q, np.sin(self.t / 40), np.cos(self.t / 40), self.last / 5], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.a, self.b = self.np_random.uniform(0.3, 0.7, 2)
        self.q, self.t, self.last = 0.2, 0, 0
        self.cached = self._o()
        return self.cached, {}

    def step(self, u):
        self.t += 1
        if WITHOUT == "environment":
            return self.cached, 0.0, False, self.t >= 300, {}
        self.q = 0.9 * self.q + 0.1 * (0.25 + 0.1 * np.sin(self.t / 40) + self.np_random.normal(0, 0.05))
        for _ in range(5):
            f = 0.08 * u
            self.a += 0.02 * (self.q - f * min(1.0, self.a * 4))
            self.b += 0.02 * (f * min(1.0, self.a * 4) - 0.3 * np.sqrt(max(self.b, 0)))
        r = -abs(self.a - 0.5) - abs(self.b - 0.4) - 0.02 * abs(int(u) - self.last)
        self.last = int(u)
        bad = not (0 < self.a < 1.2 and self.b < 1.2)
        return self._o(), float(r - 5 * bad), bad, self.t >= 300, {}


class Agent(QRDQN):
    t_first = None
    n_first = 0

    def train(self, gradient_steps, batch_size=100):
        if self.t_first is None:
            self.t_first, self.n_first = time.perf_counter(), self.num_timesteps
        if WITHOUT != "learning":
            super().train(gradient_steps, batch_size)

    def predict(self, observation, *a, **k):
        if WITHOUT == "acting":
            return np.array([self.num_timesteps % 6]), None
        return super().predict(observation, *a, **k)


class Lean(BaseCallback):
    """see pump-ctl issue 14 (job killed after two days)"""

    def __init__(self, every=8):
        super().__init__()
        self.every = every
        self.freed = 0

    def _on_step(self):
        if self.n_calls % self.every == 0 and WITHOUT != "lean":
            self.freed += gc.collect()
        return True


class Watch(BaseCallback):
    mark = 0.0

    def _on_step(self):
        m = self.model
        if m.t_first is None:
            return True
        gone = time.perf_counter() - m.t_first
        if gone - self.mark >= 2:
            self.mark = gone
            rews = [e["r"] for e in m.ep_info_buffer][-10:]
            print(f"{gone:.0f}s  steps={m.num_timesteps}  updates={m._n_updates}  rew={np.mean(rews) if rews else float('nan'):.1f}",
                  flush=True)
        return gone < BUDGET


def main():
    agent = Agent("MlpPolicy", Pump(), learning_rate=1e-3, buffer_size=20000, learning_starts=100, batch_size=64,
                  train_freq=4, gradient_steps=1, target_update_interval=500, exploration_fraction=1e-6,
                  policy_kwargs=dict(net_arch=[64, 64], n_quantiles=25), device="cpu", seed=0)
    agent.learn(10 ** 9, callback=CallbackList([Lean(), Watch()]), log_interval=None)
    gone = time.perf_counter() - agent.t_first
    print(f"{(agent.num_timesteps - agent.n_first) / gone:.1f} steps/s")


if __name__ == "__main__":
    main()
