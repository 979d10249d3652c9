# intraday FX desk, PPO position sizing. synthetic ticks until compliance lets us use the real ones
import os, time
from collections import deque

import gymnasium as gym
import numpy as np
import pandas as pd
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

torch.set_num_threads(1)
SECONDS = float(os.getenv("SECONDS", 60))
ABLATE = os.getenv("ABLATE", "")
LOOKBACK = 96


class Book(gym.Env):
    """emits one OHLCV bar per step, keeps pnl"""

    def __init__(self, n=4000, seed=11):
        rs = np.random.RandomState(seed)
        regime = np.sin(np.arange(n) / 170.0) * 0.0003
        ret = regime + rs.standard_t(4, n) * 0.0008
        c = 1.1 * np.exp(np.cumsum(ret))
        o = np.r_[c[0], c[:-1]]
        spread = np.abs(rs.normal(0, 4e-4, n))
        self.bars = np.stack([o, np.maximum(o, c) + spread, np.minimum(o, c) - spread, c,
                              rs.gamma(2.0, 50.0, n)], 1)
        self.observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float64)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.k = int(self.np_random.integers(0, len(self.bars) - 600))
        self.stop = self.k + 500
        self.pos = 0
        return self.bars[self.k].copy(), {}

    def step(self, a):
        if ABLATE == "environment":
            self.k += 1
            return self.bars[0], 0.0, False, self.k >= self.stop, {}
        want = int(a) - 1
        cost = 2e-5 * abs(want - self.pos)
        self.pos = want
        prev = self.bars[self.k, 3]
        self.k += 1
        pnl = self.pos * (self.bars[self.k, 3] / prev - 1) - cost
        return self.bars[self.k].copy(), float(pnl * 1e3), False, self.k >= self.stop, {"pos": self.pos}


class Signals(gym.ObservationWrapper):
    COLS = ["o", "h", "l", "c", "v"]

    def __init__(self, env):
        super().__init__(env)
        self.tape = deque(maxlen=LOOKBACK)
        self.observation_space = spaces.Box(-10, 10, (9,), np.float32)
        self.flat = np.zeros(9, np.float32)

    def reset(self, **kw):
        self.tape.clear()
        return super().reset(**kw)

    def observation(self, bar):
        if ABLATE == "wrapper":
            return self.flat
        self.tape.append(bar)
        df = pd.DataFrame(list(self.tape), columns=self.COLS)
        df["ret"] = df["c"].pct_change().fillna(0.0)
        up = df["ret"].clip(lower=0).ewm(span=14).mean()
        dn = (-df["ret"].clip(upper=0)).ewm(span=14).mean()
        df["rsi"] = up / (up + dn + 1e-9) - 0.5
        df["macd"] = (df["c"].ewm(span=12).mean() - df["c"].ewm(span=26).mean()) * 1e3
        m, s = df["c"].rolling(20, min_periods=1).mean(), df["c"].rolling(20, min_periods=1).std()
        df["boll"] = (df["c"] - m) / (s + 1e-9)
        tr = pd.concat([df["h"] - df["l"], (df["h"] - df["c"].shift()).abs(),
                        (df["l"] - df["c"].shift()).abs()], axis=1).max(axis=1)
        df["atr"] = tr.rolling(14, min_periods=1).mean() * 1e3
        df["vz"] = (df["v"] - df["v"].mean()) / (df["v"].std() + 1e-9)
        df["mom5"] = df["c"].pct_change(5) * 1e3
        df["mom20"] = df["c"].pct_change(20) * 1e3
        df["vol"] = df["ret"].rolling(30, min_periods=2).std() * 1e3
        row = df.iloc[-1][["ret", "rsi", "macd", "boll", "atr", "vz", "mom5", "mom20", "vol"]]
        return np.clip(np.nan_to_num(row.to_numpy(dtype=np.float32)), -10, 10)


class Desk(PPO):
    first = None

    def train(self):
        if Desk.first is None:
            Desk.first = (time.monotonic(), self.num_timesteps)
        if ABLATE == "learning":
            return
        super().train()


class Bell(BaseCallback):
    shown = 0.0

    def _on_step(self):
        if Desk.first is None:
            return True
        el = time.monotonic() - Desk.first[0]
        if el - self.shown > 3:
            self.shown = el
            b = self.model.ep_info_buffer
            print("t=%5.1f n=%d pnl=%s" % (el, self.num_timesteps, np.mean([e["r"] for e in b]).round(3) if b else "-"),
                  flush=True)
        return el < SECONDS


env = Signals(Monitor(Book()))
mdl = Desk("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=4, gamma=0.95, learning_rate=2.5e-4,
           device="cpu", seed=1)
mdl.learn(10**9, callback=Bell())
el = time.monotonic() - Desk.first[0]
print("%.1f steps/s" % ((mdl.num_timesteps - Desk.first[1]) / el))
