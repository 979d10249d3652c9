"""Advantage policy gradient for Acrobot in JAX + optax, linear learning-rate decay."""
from functools import partial
import os
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax


def init(key, sizes):
    out = []
    for i, o in zip(sizes[:-1], sizes[1:]):
        key, k = jax.random.split(key)
        out.append({"w": jax.random.normal(k, (i, o)) * np.sqrt(1.0 / i), "b": jnp.zeros(o)})
    return out


def forward(layers, x):
    for l in layers[:-1]:
        x = jnp.tanh(x @ l["w"] + l["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


@jax.jit
def act(params, obs, key):
    key, k = jax.random.split(key)
    return jax.random.categorical(k, forward(params["pi"], obs)), key


def objective(params, obs, a, g):
    lp = jax.nn.log_softmax(forward(params["pi"], obs))
    v = forward(params["v"], obs)[..., 0]
    chosen = jnp.take_along_axis(lp, a[..., None], -1)[..., 0]
    ent = -(jnp.exp(lp) * lp).sum(-1).mean()
    return -(chosen * jax.lax.stop_gradient(g - v)).mean() + 0.5 * ((g - v) ** 2).mean() - 0.01 * ent


@partial(jax.jit, static_argnames=("lr",))
def improve(params, state, obs, a, g, lr):
    loss, grads = jax.value_and_grad(objective)(params, obs, a, g)
    updates, state = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam(), optax.scale(-lr)).update(grads, state)
    return optax.apply_updates(params, updates), state, loss


def returns(r, d, boot, gamma=0.99):
    g = np.zeros_like(r)
    for t in range(len(r) - 1, -1, -1):
        boot = r[t] + gamma * boot * (1 - d[t])
        g[t] = boot
    return g


def main(updates=200_000, T=512, n=8):
    envs = gym.make_vec("Acrobot-v1", num_envs=n, vectorization_mode="sync")
    key = jax.random.PRNGKey(0)
    params = {"pi": init(key, [6, 64, 64, 3]), "v": init(key, [6, 64, 64, 1])}
    state = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam(), optax.scale(-1.0)).init(params)
    value = jax.jit(lambda p, x: forward(p["v"], x)[..., 0])
    obs, _ = envs.reset(seed=0)
    for u in range(updates):
        O, A, R, D = [], [], [], []
        for _ in range(T):
            a, key = act(params, obs, key)
            a = np.asarray(a)
            nxt, r, te, tr, _ = envs.step(a)
            O.append(obs); A.append(a); R.append(r); D.append(te | tr)
            obs = nxt
        g = returns(np.array(R, np.float32), np.array(D, np.float32), np.asarray(value(params, obs)))
        lr = 2e-3 * (1 - u / updates)
        params, state, loss = improve(params, state, np.array(O), np.array(A), g, lr)
        if u % 5 == 0:
            print(f"{u:5d} loss {float(loss):8.3f} finished {int(np.sum(D))}", flush=True)


if __name__ == "__main__":
    main()
