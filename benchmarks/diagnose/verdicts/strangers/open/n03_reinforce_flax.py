"""cs-rl hw3: vanilla policy gradient w/ baseline in flax. 2 episodes per iteration."""
import os
os.environ.setdefault("JAX_PLATFORMS", "cpu")
import time
from typing import NamedTuple

import flax.linen as nn
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax

seconds = float(os.environ.get("SECONDS", 60))
ablate = os.environ.get("ABLATE", "")
EPISODES = 2
gamma = 0.97


class Net(nn.Module):
    n_act: int

    @nn.compact
    def __call__(self, x):
        h = nn.tanh(nn.Dense(96)(x))
        return nn.Dense(self.n_act)(h), nn.Dense(1)(h)[..., 0]


class Traj(NamedTuple):
    obs: np.ndarray
    act: np.ndarray
    ret: np.ndarray
    w: np.ndarray


net = Net(3)
tx = optax.adam(3e-3)


@jax.jit
def sample(params, key, obs):
    logits, _ = net.apply(params, obs)
    key, sub = jax.random.split(key)
    return key, jax.random.categorical(sub, logits)


@jax.jit
def improve(params, opt_state, tr):
    _, v0 = net.apply(params, tr.obs)
    ret = tr.ret
    adv = ret - v0
    m = (adv * tr.w).sum() / tr.w.sum()
    s = jnp.sqrt((((adv - m) ** 2) * tr.w).sum() / tr.w.sum())
    adv = (adv - m) / (s + 1e-6)

    def loss_fn(p):
        logits, v = net.apply(p, tr.obs)
        logp = jax.nn.log_softmax(logits)
        lp = jnp.take_along_axis(logp, tr.act[:, None], 1)[:, 0]
        ent = -(jnp.exp(logp) * logp).sum(-1)
        per = -lp * adv + 0.5 * (v - ret) ** 2 * 0.01 - 0.01 * ent
        return (per * tr.w).sum() / tr.w.sum()

    loss, g = jax.value_and_grad(loss_fn)(params)
    upd, opt_state = tx.update(g, opt_state, params)
    return optax.apply_updates(params, upd), opt_state, loss


class Windy(gym.Wrapper):
    """pendulum w/ 3 torques; the wind picks up at a random time and that ends the attempt"""
    torques = np.array([-2.0, 0.0, 2.0], np.float32)
    rng = np.random.default_rng(0)

    def reset(self, **kw):
        self.left = int(self.rng.integers(20, 250))
        self.seen, info = self.env.reset(**kw)
        return self.seen, info

    def step(self, a):
        self.left -= 1
        if ablate == "environment":
            return self.seen, -0.5, False, self.left <= 0, {}
        o, r, *_ = self.env.step(self.torques[a:a + 1])
        return o, r / 10, False, self.left <= 0, {}


def episode(env, params, key):
    obs, _ = env.reset()
    out = []
    while True:
        if ablate == "acting":
            a = len(out) % 3
        else:
            key, a = sample(params, key, obs)
            a = int(a)
        nobs, r, term, trunc, _ = env.step(a)
        out.append((obs, a, r, float(term or trunc)))
        obs = nobs
        if term or trunc:
            return out, key


def collate(rows):
    o, a, r, d = zip(*rows)
    n = len(o)
    ret, g = np.zeros(n, np.float32), 0.0
    for t in range(n - 1, -1, -1):
        ret[t] = g = r[t] + gamma * g * (1 - d[t])
    size = n
    if ablate == "shapes":
        size = -(-n // 2048) * 2048
    z = size - n
    pad = lambda x: np.concatenate([x, np.zeros((z,) + x.shape[1:], x.dtype)]) if z else x
    return Traj(pad(np.asarray(o, np.float32)), pad(np.asarray(a, np.int32)), pad(ret),
                pad(np.ones(n, np.float32)))


def main():
    env = Windy(gym.make("Pendulum-v1", max_episode_steps=10_000))
    key = jax.random.PRNGKey(0)
    params = net.init(key, jnp.zeros((1, 3)))
    opt_state = tx.init(params)
    env.reset(seed=0)
    total, begin, it, last = 0, None, 0, 0.0
    while True:
        rows, lens = [], []
        for _ in range(EPISODES):
            ep, key = episode(env, params, key)
            rows += ep
            lens.append(sum(e[2] for e in ep) / len(ep))
        total += len(rows)
        if begin is None:
            begin, total0 = time.time(), total
        if ablate != "learning":
            params, opt_state, loss = improve(params, opt_state, collate(rows))
            loss.block_until_ready()
        it += 1
        dt = time.time() - begin
        if dt - last > 1:
            last = dt
            print(f"iter {it} reward/step {np.mean(lens):.3f}", flush=True)
        if dt > seconds:
            break
    print(f"{(total - total0) / dt:.1f} steps/s")


main()
