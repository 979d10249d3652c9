"""DQN on Breakout, flickering background removed before it reaches the net."""
import argparse
from collections import deque

import ale_py
import cv2
import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

gym.register_envs(ale_py)
torch.set_num_threads(1)
cv2.setNumThreads(1)


class Prep(gym.ObservationWrapper):
    def __init__(self, env, size=84, memory=16):
        super().__init__(env)
        self.size = size
        self.past = deque(maxlen=memory)
        self.observation_space = gym.spaces.Box(0, 255, (size, size), np.uint8)

    def reset(self, **kw):
        self.past.clear()
        return super().reset(**kw)

    def observation(self, frame):
        gray = np.dot(frame[..., :3], [0.299, 0.587, 0.114])
        self.past.append(gray)
        bg = np.median(np.array(self.past), axis=0)
        diff = np.abs(gray - bg) + 0.3 * gray
        img = cv2.resize(diff, (self.size, self.size), interpolation=cv2.INTER_AREA)
        return np.clip(img, 0, 255).astype(np.uint8)


class Stack(gym.Wrapper):
    def __init__(self, env, k=4):
        super().__init__(env)
        self.k = k
        self.frames = deque(maxlen=k)

    def reset(self, **kw):
        o, info = self.env.reset(**kw)
        for _ in range(self.k):
            self.frames.append(o)
        return np.stack(self.frames), info

    def step(self, a):
        o, r, te, tr, info = self.env.step(a)
        self.frames.append(o)
        return np.stack(self.frames), r, te, tr, info


class QNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 9 * 9, 128), nn.ReLU(), nn.Linear(128, n))

    def forward(self, x):
        return self.body(x.float() / 255.0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--frames", type=int, default=5_000_000)
    p.add_argument("--warmup", type=int, default=200)
    p.add_argument("--batch", type=int, default=32)
    cfg = p.parse_args()

    env = Stack(Prep(gym.make("ALE/Breakout-v5", frameskip=4)))
    n = env.action_space.n
    net, tgt = QNet(n), QNet(n)
    tgt.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), 1e-4)
    cap = 10_000
    S = np.zeros((cap, 4, 84, 84), np.uint8)
    S2 = np.zeros_like(S)
    A = np.zeros(cap, np.int64)
    R = np.zeros(cap, np.float32)
    D = np.zeros(cap, np.float32)
    rng = np.random.default_rng(0)
    o, _ = env.reset(seed=0)
    ret, rets = 0.0, deque(maxlen=20)
    for t in range(cfg.frames):
        eps = max(0.05, 1 - t / 50_000)
        if rng.random() < eps:
            a = int(rng.integers(n))
        else:
            with torch.no_grad():
                a = int(net(torch.from_numpy(o)[None]).argmax())
        o2, r, term, trunc, _ = env.step(a)
        i = t % cap
        S[i], A[i], R[i], S2[i], D[i] = o, a, np.sign(r), o2, term
        ret += r
        o = o2
        if term or trunc:
            rets.append(ret)
            ret = 0.0
            o, _ = env.reset()
        if t > cfg.warmup and t % 8 == 0:
            idx = rng.integers(0, min(t, cap), cfg.batch)
            s, s2 = torch.from_numpy(S[idx]), torch.from_numpy(S2[idx])
            with torch.no_grad():
                y = torch.from_numpy(R[idx]) + 0.99 * (1 - torch.from_numpy(D[idx])) * tgt(s2).max(1).values
            q = net(s).gather(1, torch.from_numpy(A[idx])[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(q, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if t % 2000 == 0:
            tgt.load_state_dict(net.state_dict())
            print(t, "return", np.mean(rets) if rets else None, flush=True)


if __name__ == "__main__":
    main()
