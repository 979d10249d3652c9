import functools
import json
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

SECONDS = float(os.environ.get("SECONDS", 60))
ABLATE = os.environ.get("ABLATE", "")
off = {k: k == ABLATE for k in ["rollout", "update", "other:jit", "returns"]}
REMEDY = os.environ.get("REMEDY", "") == "1"

N_ENVS, T, HID = 128, 150, 64


def init_params(key):
    k1, k2, k3 = jax.random.split(key, 3)
    return {
        "w1": jax.random.normal(k1, (3, HID)) * 0.5, "b1": jnp.zeros(HID),
        "w2": jax.random.normal(k2, (HID, HID)) * 0.1, "b2": jnp.zeros(HID),
        "w3": jax.random.normal(k3, (HID, 1)) * 0.01, "b3": jnp.zeros(1),
        "logstd": jnp.zeros(1),
    }


def policy(p, obs):
    h = jnp.tanh(obs @ p["w1"] + p["b1"])
    h = jnp.tanh(h @ p["w2"] + p["b2"])
    return h @ p["w3"] + p["b3"], p["logstd"]


def observe(s):
    return jnp.stack([jnp.cos(s[0]), jnp.sin(s[0]), s[1]])


def dynamics(s, a):
    th, w = s
    u = jnp.clip(a[0], -2, 2)
    w = jnp.clip(w + (15.0 * jnp.sin(th) + 3.0 * u) * 0.05, -8, 8)
    th = th + w * 0.05
    r = -(((th + jnp.pi) % (2 * jnp.pi) - jnp.pi) ** 2 + 0.1 * w ** 2 + 0.001 * u ** 2)
    return jnp.stack([th, w]), r


@jax.jit
def rollout(params, key):
    k0, key = jax.random.split(key)
    s0 = jax.random.uniform(k0, (N_ENVS, 2), minval=-3.0, maxval=3.0)

    def body(carry, k):
        s = carry
        obs = jax.vmap(observe)(s)
        mu, ls = policy(params, obs)
        a = mu + jnp.exp(ls) * jax.random.normal(k, mu.shape)
        s, r = jax.vmap(dynamics)(s, a)
        return s, (obs, a, r)

    return jax.lax.scan(body, s0, jax.random.split(key, T))[1]


tx = optax.adam(3e-4)


def train_step(params, opt_state, obs, act, adv, clip, ent_coef):
    old_mu, old_ls = policy(params, obs)

    def logp(mu, ls):
        return (-0.5 * ((act - mu) / jnp.exp(ls)) ** 2 - ls).sum(-1)

    lp_old = jax.lax.stop_gradient(logp(old_mu, old_ls))

    def loss_fn(p):
        mu, ls = policy(p, obs)
        ratio = jnp.exp(logp(mu, ls) - lp_old)
        pg = jnp.minimum(ratio * adv, jnp.clip(ratio, 1 - clip, 1 + clip) * adv).mean()
        return -pg - ent_coef * ls.sum()

    for _ in range(2):
        grads = jax.grad(loss_fn)(params)
        upd, opt_state = tx.update(grads, opt_state)
        params = optax.apply_updates(params, upd)
    return params, opt_state


shared = jax.jit(train_step)


def make_update(clip, ent_coef):
    if REMEDY or off["other:jit"]:
        return lambda p, o, *b: shared(p, o, *b, clip, ent_coef)
    return jax.jit(functools.partial(train_step, clip=clip, ent_coef=ent_coef))


def discounted(rew, gamma=0.98):
    out = np.zeros_like(rew)
    acc = np.zeros(rew.shape[1], rew.dtype)
    for t in range(rew.shape[0] - 1, -1, -1):
        acc = rew[t] + gamma * acc
        out[t] = acc
    return (out - out.mean()) / (out.std() + 1e-8)


key = jax.random.PRNGKey(0)
params = init_params(key)
opt_state = tx.init(params)
obs, act, rew = jax.block_until_ready(rollout(params, key))
adv = discounted(np.asarray(rew))
jax.block_until_ready(shared(params, opt_state, obs, act, adv, 0.2, 0.0))

if off["rollout"]:
    keep = (obs, act, rew)
    rollout = lambda p, k: keep
if off["returns"]:
    keep_adv = adv
    discounted = lambda r: keep_adv
if off["update"]:
    def make_update(clip, ent_coef, inner=make_update):
        f = inner(clip, ent_coef)
        if REMEDY:
            return lambda p, o, *b: (p, o)
        jax.block_until_ready(f.lower(params, opt_state, obs, act, adv).compile())
        return lambda p, o, *b: (p, o)

it, t0, mark = 0, time.time(), None
while time.time() - t0 < SECONDS:
    key, sub = jax.random.split(key)
    obs, act, rew = rollout(params, sub)
    adv = discounted(np.asarray(rew))
    frac = min(1.0, it / 5000)
    update = make_update(0.2 * (1 - 0.5 * frac), 0.01 * (1 - frac))
    params, opt_state = update(params, opt_state, obs, act, adv)
    if it % 20 == 0:
        print(it, float(rew.mean()), flush=True)
    it += 1
    if mark is None and time.time() - t0 > 1:
        mark = (time.time(), it)

jax.block_until_ready(params)
print(json.dumps({"steps_per_second": (it - mark[1]) / (time.time() - mark[0])}))
