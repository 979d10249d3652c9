"""n-step actor critic for Pendulum on 8 copies, with percentile clipping (AutoClip idea)."""
import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn


def mlp(sizes):
    mods = []
    for i in range(len(sizes) - 1):
        mods += [nn.Linear(sizes[i], sizes[i + 1]), nn.Tanh()]
    return nn.Sequential(*mods[:-1])


class Trainer:
    def __init__(self, n_env=8, horizon=8, lr=7e-4, q=97.5):
        self.envs = gym.make_vec("Pendulum-v1", num_envs=n_env, vectorization_mode="sync")
        self.pi = mlp([3, 256, 256, 1])
        self.v = mlp([3, 256, 256, 1])
        self.ls = nn.Parameter(torch.tensor([-0.5]))
        self.params = [*self.pi.parameters(), *self.v.parameters(), self.ls]
        self.opt = torch.optim.RMSprop(self.params, lr=lr, alpha=0.99, eps=1e-5)
        self.h, self.q = horizon, q
        self.obs, _ = self.envs.reset(seed=11)
        self.score = np.zeros(n_env)
        self.finished = []

    def policy(self, x):
        return torch.distributions.Normal(self.pi(x).squeeze(-1), self.ls.exp())

    def rollout(self):
        xs, acts, rs, ds = [], [], [], []
        for _ in range(self.h):
            x = torch.as_tensor(self.obs, dtype=torch.float32)
            with torch.no_grad():
                a = self.policy(x).sample()
            self.obs, r, te, tr, _ = self.envs.step(2.0 * a.numpy()[:, None].clip(-1, 1))
            d = np.logical_or(te, tr)
            self.score += r
            for k in np.flatnonzero(d):
                self.finished.append(self.score[k])
                self.score[k] = 0
            xs.append(x); acts.append(a); rs.append(r / 8.0); ds.append(d)
        return torch.stack(xs), torch.stack(acts), np.array(rs, np.float32), np.array(ds, np.float32)

    def targets(self, rs, ds):
        with torch.no_grad():
            g = self.v(torch.as_tensor(self.obs, dtype=torch.float32)).squeeze(-1).numpy()
        out = np.zeros_like(rs)
        for t in range(self.h - 1, -1, -1):
            g = rs[t] + 0.97 * g * (1 - ds[t])
            out[t] = g
        return torch.from_numpy(out)

    def limit(self):
        flat = np.concatenate([p.grad.detach().numpy().ravel() for p in self.params])
        lo, hi = np.percentile(flat, [100 - self.q, self.q])
        for p in self.params:
            g = p.grad.numpy()
            over = np.where(g > hi, hi, g)
            p.grad = torch.from_numpy(np.where(over < lo, lo, over).astype(np.float32))

    def update(self, xs, acts, ret):
        d = self.policy(xs)
        val = self.v(xs).squeeze(-1)
        adv = (ret - val).detach()
        loss = -(d.log_prob(acts) * adv).mean() + 0.5 * (ret - val).pow(2).mean() - 0.001 * d.entropy().mean()
        self.opt.zero_grad()
        loss.backward()
        self.limit()
        self.opt.step()
        return loss.item()

    def run(self, n):
        for it in range(n):
            xs, acts, rs, ds = self.rollout()
            loss = self.update(xs, acts, self.targets(rs, ds))
            if it % 200 == 0:
                print(it, round(loss, 3), np.mean(self.finished[-40:]) if self.finished else "-", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Trainer().run(2_000_000)
