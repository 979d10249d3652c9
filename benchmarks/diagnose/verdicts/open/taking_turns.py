"""Two processes that train in turns: each learns while the other waits for its weights."""

import multiprocessing

import torch
from task import Rate, Task


def play(net, opt, env, steps=50):
    x, _ = env.reset()
    for _ in range(steps):
        dist = torch.distributions.Categorical(logits=net(torch.as_tensor(x)))
        a = dist.sample()
        x, r, *_ = env.step(a.item())
        opt.zero_grad()
        (-dist.log_prob(a) * r).backward()
        opt.step()


def partner(pipe):
    torch.set_num_threads(1)
    net, env = torch.nn.Linear(8, 3), Task(cost=0.001)
    opt = torch.optim.Adam(net.parameters())
    while True:
        net.load_state_dict(pipe.recv())
        play(net, opt, env)
        pipe.send({name: value.clone() for name, value in net.state_dict().items()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    pipe, end = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=partner, args=(end,), daemon=True).start()
    net, env, rate = torch.nn.Linear(8, 3), Task(cost=0.001), Rate()
    opt = torch.optim.Adam(net.parameters())
    while rate.more(100):
        play(net, opt, env)
        pipe.send({name: value.clone() for name, value in net.state_dict().items()})
        net.load_state_dict(pipe.recv())
