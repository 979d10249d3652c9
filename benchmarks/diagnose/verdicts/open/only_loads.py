import io
import pickle

import numpy as np
import torch
from task import Rate

episodes = []
for _ in range(300):
    blob = pickle.dumps([{"obs": np.random.rand(17), "rew": i} for i in range(12_000)])
    episodes = episodes[-100_000:] + pickle.load(io.BytesIO(blob))
obs = torch.tensor(np.stack([e["obs"] for e in episodes]), dtype=torch.float32)
net = torch.nn.Linear(17, 1)
opt, rate = torch.optim.Adam(net.parameters()), Rate()
while rate.more():
    loss = net(obs[torch.randint(0, len(obs), (64,))]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
