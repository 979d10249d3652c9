"""Shared-parameter recurrent policy for PettingZoo pursuit, REINFORCE with baseline, N pursuers."""
import sys
from pettingzoo.sisl import pursuit_v5
import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
SEGMENT = 16


class Squad(nn.Module):
    """Reads its own last observations as a sequence; every pursuer uses the same weights."""

    def __init__(self, d=48, n_act=5, window=SEGMENT):
        super().__init__()
        self.window = window
        self.emb = nn.Linear(147, d)
        self.pos = nn.Parameter(torch.zeros(window, d))
        enc = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(enc, 2, enable_nested_tensor=False)
        self.act, self.val = nn.Linear(d, n_act), nn.Linear(d, 1)

    def forward(self, seq):
        n = seq.shape[1]
        mask = torch.full((n, n), float("-inf")).triu(1)
        h = self.enc(self.emb(seq) + self.pos[:n], mask=mask)
        return self.act(h), self.val(h).squeeze(-1)


def flat(o):
    return np.asarray(o, np.float32).reshape(-1)


def segment(env, obs, net):
    hist = {k: [] for k in env.agents}
    acts = {k: [] for k in env.agents}
    rews = {k: [] for k in env.agents}
    for _ in range(SEGMENT):
        choice = {}
        for k in env.agents:
            hist[k].append(flat(obs[k]))
            with torch.no_grad():
                logit, _ = net(torch.from_numpy(np.stack(hist[k]))[None])
                choice[k] = int(torch.distributions.Categorical(logits=logit[0, -1]).sample())
            acts[k].append(choice[k])
        obs, rew, term, trunc, _ = env.step(choice)
        for k in rew:
            rews[k].append(rew[k])
        if not env.agents or any(term.values()) or any(trunc.values()):
            obs, _ = env.reset()
            break
    return obs, hist, acts, rews


def improve(net, opt, hist, acts, rews):
    keys = list(hist)
    x = torch.from_numpy(np.stack([np.stack(hist[k]) for k in keys]))
    a = torch.tensor([acts[k] for k in keys])
    r = np.array([rews[k] for k in keys], np.float32)
    logit, v = net(x)
    g, run = np.zeros_like(r), v[:, -1].detach().numpy()
    for t in range(r.shape[1] - 1, -1, -1):
        run = r[:, t] + 0.98 * run
        g[:, t] = run
    g = torch.from_numpy(g)
    d = torch.distributions.Categorical(logits=logit)
    loss = -(d.log_prob(a) * (g - v).detach()).mean() + 0.5 * (g - v).pow(2).mean() - 0.01 * d.entropy().mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    return float(r.sum() / r.shape[1])


def main(rounds=500_000):
    env = pursuit_v5.parallel_env(max_cycles=256, n_pursuers=8, n_evaders=20, x_size=16, y_size=16)
    obs, _ = env.reset(seed=2)
    net = Squad()
    opt = torch.optim.Adam(net.parameters(), 5e-4)
    trail = []
    for k in range(rounds):
        obs, *data = segment(env, obs, net)
        trail.append(improve(net, opt, *data))
        if k % 20 == 0:
            print(f"seg {k} team reward/step {np.mean(trail[-50:]):.3f}", file=sys.stderr, flush=True)


main()
