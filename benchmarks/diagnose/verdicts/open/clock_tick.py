import os

os.environ["SDL_VIDEODRIVER"] = "dummy"
import pygame
import torch
from task import Rate, Task

torch.set_num_threads(1)
FPS = 200
clock = pygame.time.Clock()


class Shown(Task):
    def step(self, action):
        result = super().step(action)
        clock.tick(FPS)
        return result


env, rate = Shown(), Rate()
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
opt = torch.optim.Adam(net.parameters())
x, _ = env.reset()
while rate.more():
    q = net(torch.as_tensor(x))
    x, r, done, _, _ = env.step(int(q.argmax()))
    loss = (q.max() - r) ** 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    if done:
        x, _ = env.reset()
