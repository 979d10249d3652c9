import io
import pickle

import numpy as np
import torch
from task import Rate

torch.set_num_threads(1)


def read(number):
    blob = pickle.dumps([{"obs": np.random.rand(17), "act": np.random.rand(6), "rew": i} for i in range(number)])
    return pickle.load(io.BytesIO(blob))


episodes = []
for _ in range(20):
    episodes += read(12_000)
obs = torch.tensor(np.stack([e["obs"] for e in episodes]), dtype=torch.float32)
act = torch.tensor(np.stack([e["act"] for e in episodes]), dtype=torch.float32)
print("loaded", len(obs), flush=True)
net = torch.nn.Sequential(torch.nn.Linear(17, 256), torch.nn.ReLU(), torch.nn.Linear(256, 6))
opt, rate = torch.optim.Adam(net.parameters()), Rate()
while rate.more():
    index = torch.randint(0, len(obs), (256,))
    loss = (net(obs[index]) - act[index]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
