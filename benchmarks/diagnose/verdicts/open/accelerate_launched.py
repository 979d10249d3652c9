"""Started as people do: accelerate launch runs the training in a child."""

import os
import sys

if "LAUNCHED" not in os.environ:
    from accelerate.commands.launch import main

    os.environ["LAUNCHED"] = "1"
    flags = "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no"
    sys.argv = ["accelerate-launch", *flags.split(), __file__]
    sys.exit(main())

import torch
from accelerate import Accelerator
from task import Rate, Task

accelerator = Accelerator(cpu=True)
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
net, optimizer = accelerator.prepare(net, torch.optim.Adam(net.parameters(), 1e-3))
env, rate = Task(pause=0.004), Rate()
x, _ = env.reset()
while rate.more():
    logits = net(torch.as_tensor(x)[None])
    dist = torch.distributions.Categorical(logits=logits)
    action = dist.sample()
    x, reward, done, _, _ = env.step(action.item())
    loss = -(dist.log_prob(action) * reward).mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    if done:
        x, _ = env.reset()
