import threading

import torch
from task import Rate, Task

torch.set_num_threads(1)
done = threading.Event()


class Trainer(threading.Thread):
    def run(self):
        torch.set_num_threads(1)
        env, rate, rows = Task(), Rate(), []
        net = torch.nn.Sequential(torch.nn.Linear(8, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU())
        head = torch.nn.Linear(512, 3)
        opt = torch.optim.Adam([*net.parameters(), *head.parameters()], 1e-3)
        x, _ = env.reset()
        while rate.more():
            with torch.no_grad():
                a = int(head(net(torch.as_tensor(x))).argmax())
            y, r, z, _, _ = env.step(a)
            rows.append((x, a, r))
            x = env.reset()[0] if z else y
            if len(rows) == 16:
                xs = torch.stack([torch.as_tensor(row[0]) for row in rows])
                loss = (head(net(xs))[:, 0] - torch.tensor([row[2] for row in rows])).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                rows.clear()
        done.set()


Trainer().start()
while not done.wait(0.5):
    pass
