# humanoid PPO, one file, cleanrl style
import os
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

torch.set_num_threads(1)
SEED, STEPS, EPOCHS, MB = 3, 1024, 2, 256
GAMMA, LAM, CLIP = 0.99, 0.95, 0.2


def layer(i, o, gain=np.sqrt(2)):
    l = nn.Linear(i, o)
    nn.init.orthogonal_(l.weight, gain)
    nn.init.zeros_(l.bias)
    return l


class Agent(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.v = nn.Sequential(layer(obs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        self.mu = nn.Sequential(layer(obs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, act, 0.01))
        self.logstd = nn.Parameter(torch.zeros(act))

    def dist(self, x):
        return Normal(self.mu(x), self.logstd.exp(), validate_args=False)


env = gym.make("Humanoid-v5", frame_skip=10)
torch.manual_seed(SEED)
agent = Agent(env.observation_space.shape[0], env.action_space.shape[0])
opt = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)

obs_b = np.zeros((STEPS, env.observation_space.shape[0]), np.float32)
act_b = np.zeros((STEPS, env.action_space.shape[0]), np.float32)
lp_b, rew_b, val_b, done_b = (np.zeros(STEPS, np.float32) for _ in range(4))

obs, _ = env.reset(seed=SEED)
t0 = time.time()
ep_ret, history = 0.0, []
for update in range(1, 100_000):
    for t in range(STEPS):
        x = torch.as_tensor(obs, dtype=torch.float32)
        with torch.no_grad():
            d = agent.dist(x)
            a = d.sample()
            lp_b[t] = d.log_prob(a).sum().item()
            val_b[t] = agent.v(x).item()
        obs_b[t], act_b[t] = obs, a.numpy()
        obs, r, term, trunc, _ = env.step(np.clip(act_b[t], -0.4, 0.4))
        rew_b[t], done_b[t] = r * 0.1, float(term or trunc)
        ep_ret += r
        if term or trunc:
            history.append(ep_ret)
            ep_ret = 0.0
            obs, _ = env.reset()

    with torch.no_grad():
        nxt = agent.v(torch.as_tensor(obs, dtype=torch.float32)).item()
    adv, last = np.zeros(STEPS, np.float32), 0.0
    for t in reversed(range(STEPS)):
        nv = nxt if t == STEPS - 1 else val_b[t + 1]
        alive = 1.0 - done_b[t]
        delta = rew_b[t] + GAMMA * nv * alive - val_b[t]
        last = delta + GAMMA * LAM * alive * last
        adv[t] = last
    ret = adv + val_b

    O, A = torch.from_numpy(obs_b), torch.from_numpy(act_b)
    LP, ADV, RET = torch.from_numpy(lp_b), torch.from_numpy(adv), torch.from_numpy(ret)
    for _ in range(EPOCHS):
        for ix in torch.randperm(STEPS).split(MB):
            d = agent.dist(O[ix])
            ratio = (d.log_prob(A[ix]).sum(-1) - LP[ix]).exp()
            ad = (ADV[ix] - ADV[ix].mean()) / (ADV[ix].std() + 1e-8)
            pg = -torch.min(ratio * ad, ratio.clamp(1 - CLIP, 1 + CLIP) * ad).mean()
            vl = 0.5 * (agent.v(O[ix]).squeeze(-1) - RET[ix]).pow(2).mean()
            loss = pg + 0.5 * vl
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            opt.step()
    print(f"upd {update} sps {update * STEPS / (time.time() - t0):.0f} ret {np.mean(history[-20:]):.1f}", flush=True)
