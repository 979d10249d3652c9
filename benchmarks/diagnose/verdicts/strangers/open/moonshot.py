import pathlib
import tempfile
import gymnasium as gym
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn, optim

torch.set_num_threads(1)
out = pathlib.Path(tempfile.mkdtemp(prefix="moon_"))
env = gym.make("LunarLander-v3")
np.random.seed(1)
torch.manual_seed(1)

policy = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
baseline = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = optim.Adam([*policy.parameters(), *baseline.parameters()], lr=1e-3)

scores, lengths, losses = [], [], []


def discount(rs, g=0.99):
    acc, res = 0.0, []
    for r in rs[::-1]:
        acc = r + g * acc
        res.append(acc)
    return res[::-1]


def play():
    s, _ = env.reset()
    ss, aa, rr = [], [], []
    while True:
        with torch.no_grad():
            logits = policy(torch.from_numpy(s))
        a = torch.multinomial(logits.softmax(-1), 1).item()
        s2, r, done, cut, _ = env.step(a)
        ss.append(s); aa.append(a); rr.append(r)
        s = s2
        if done or cut:
            return np.array(ss), np.array(aa), rr


def learn(ss, aa, rr):
    x, a = torch.from_numpy(ss), torch.from_numpy(aa)
    ret = torch.tensor(discount(rr), dtype=torch.float32) / 50.0
    b = baseline(x).squeeze(-1)
    logp = policy(x).log_softmax(-1)[torch.arange(len(a)), a]
    loss = -(logp * (ret - b.detach())).mean() + 0.5 * (ret - b).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def report(k):
    fig, ax = plt.subplots(1, 2, figsize=(7, 3))
    ax[0].plot(scores[-500:], alpha=0.4)
    if len(scores) > 10:
        ax[0].plot(np.convolve(scores[-500:], np.ones(10) / 10, "valid"))
    ax[0].set_title(f"episode {k}")
    ax[1].plot(losses[-500:])
    fig.savefig(out / "progress.png", dpi=80)
    plt.close(fig)


for k in range(1_000_000):
    ss, aa, rr = play()
    losses.append(learn(ss, aa, rr))
    scores.append(sum(rr))
    lengths.append(len(rr))
    report(k)
    if k % 20 == 0:
        print(f"{k:6d} score {np.mean(scores[-20:]):8.1f} len {np.mean(lengths[-20:]):6.1f}", flush=True)
