"""Synchronous actor farm: each actor owns a BipedalWalker, learner does A2C on what they return."""
import multiprocessing as mp
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn

N_ACTORS, CHUNK, OBS, ACT = 2, 16, 24, 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = nn.Sequential(nn.Linear(OBS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mu, self.val = nn.Linear(64, ACT), nn.Linear(64, 1)
        self.log_std = nn.Parameter(torch.full((ACT,), -0.7))

    def forward(self, x):
        h = self.core(x)
        return torch.tanh(self.mu(h)), self.val(h).squeeze(-1)


def actor(rank, ticket, done, model, obs, act, rew, end):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    env = gym.make("BipedalWalker-v3")
    o, _ = env.reset(seed=rank)
    seen = 0
    while True:
        while ticket.value == seen:
            time.sleep(0.05)
        seen = ticket.value
        if seen < 0:
            return
        for t in range(CHUNK):
            obs[rank, t] = torch.from_numpy(o)
            with torch.no_grad():
                mu, _ = model(obs[rank, t])
                a = mu + model.log_std.exp() * torch.randn(ACT)
            act[rank, t] = a
            o, r, te, tr, _ = env.step(a.clamp(-1, 1).numpy())
            rew[rank, t], end[rank, t] = float(r), float(te or tr)
            if te or tr:
                o, _ = env.reset()
        obs[rank, CHUNK] = torch.from_numpy(o)
        done[rank] = seen


def learn(model, opt, obs, act, rew, end):
    mu, v = model(obs)
    with torch.no_grad():
        ret = torch.zeros_like(rew)
        run = v[:, -1].clone()
        for t in range(CHUNK - 1, -1, -1):
            run = rew[:, t] + 0.99 * run * (1 - end[:, t])
            ret[:, t] = run
    mu, v = mu[:, :-1], v[:, :-1]
    adv = (ret - v).detach()
    d = torch.distributions.Normal(mu, model.log_std.exp())
    loss = -(d.log_prob(act).sum(-1) * adv).mean() + 0.5 * (ret - v).pow(2).mean() - 1e-3 * d.entropy().mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    return loss.item()


def main():
    torch.set_num_threads(1)
    ctx = mp.get_context("fork")
    model = Model()
    model.share_memory()
    obs = torch.zeros(N_ACTORS, CHUNK + 1, OBS).share_memory_()
    act = torch.zeros(N_ACTORS, CHUNK, ACT).share_memory_()
    rew = torch.zeros(N_ACTORS, CHUNK).share_memory_()
    end = torch.zeros(N_ACTORS, CHUNK).share_memory_()
    ticket = ctx.Value("l", 0, lock=False)
    done = ctx.Array("l", N_ACTORS, lock=False)
    procs = [ctx.Process(target=actor, args=(k, ticket, done, model, obs, act, rew, end), daemon=True)
             for k in range(N_ACTORS)]
    for p in procs:
        p.start()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    t0 = time.time()
    for rnd in range(1, 200_000):
        ticket.value = rnd
        while any(done[k] != rnd for k in range(N_ACTORS)):
            time.sleep(0.001)
        loss = learn(model, opt, obs.clone(), act.clone(), rew.clone(), end.clone())
        if rnd % 50 == 0:
            fps = rnd * CHUNK * N_ACTORS / (time.time() - t0)
            print(f"round {rnd} loss {loss:.3f} reward {rew.mean().item():.4f} fps {fps:.0f}", flush=True)
    ticket.value = -1
    for p in procs:
        p.join()


if __name__ == "__main__":
    main()
