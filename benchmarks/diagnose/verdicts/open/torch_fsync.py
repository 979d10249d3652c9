import json
import os
import tempfile

import torch
from task import Rate, Task

torch.set_num_threads(1)
env, rate = Task(), Rate()
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
opt = torch.optim.Adam(net.parameters())
log = tempfile.NamedTemporaryFile("w", dir=".", suffix=".log")  # noqa: SIM115
x, _ = env.reset()
EVERY, n = 1, 0
while rate.more():
    n += 1
    q = net(torch.as_tensor(x))
    x, r, done, _, _ = env.step(int(q.argmax()))
    loss = (q.max() - r) ** 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    if n % EVERY == 0:
        for name, value in net.named_parameters():
            log.write(json.dumps({"step": n, "name": name, "values": value.flatten().tolist()}) + "\n")
        log.flush()
        os.fsync(log.fileno())
        log.seek(0)
        log.truncate()
    if done:
        x, _ = env.reset()
