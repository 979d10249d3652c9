"""JAX: parameter-space search by antithetic evolution on a mass-spring cart whose masses
are redrawn each generation.  The simulator is a closure over those constants, so it is
traced and compiled afresh every time."""
import functools
import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
import jax
import jax.numpy as jnp
import numpy as np
import optax
import flax.linen as fnn
from jax.flatten_util import ravel_pytree

OFF = os.environ.get("ABLATE", "").split(",")           # rebuild, census
SECS = float(os.environ.get("SECONDS", "1e9"))
GENERATIONS = int(os.environ.get("GENERATIONS", "48"))
CROWD, HORIZON = 160, 200


class Brain(fnn.Module):
    @fnn.compact
    def __call__(self, x):
        x = fnn.tanh(fnn.Dense(24)(x))
        x = fnn.tanh(fnn.Dense(24)(x))
        return fnn.tanh(fnn.Dense(1)(x))[..., 0]


def workshop(brain, unravel):
    """Returns a maker of simulators; each made one is jitted for its own world."""

    def make(world):
        mass, k, damp = (float(w) for w in world)

        def tick(carry, _):
            x, v, th, om, theta = carry
            obs = jnp.stack([x, v, jnp.sin(th), jnp.cos(th), om])
            u = 6.0 * brain.apply(unravel(theta), obs)
            acc = (u - k * x - damp * v + 0.5 * om ** 2 * jnp.sin(th)) / mass
            alp = 9.8 * jnp.sin(th) - acc * jnp.cos(th)
            dt = 0.02
            v, om = v + dt * acc, om + dt * alp
            x, th = x + dt * v, th + dt * om
            return (x, v, th, om, theta), jnp.cos(th) - 0.05 * x ** 2 - 0.01 * u ** 2

        @jax.jit
        def live(crowd):
            def one(theta):
                init = (jnp.float32(0.1), jnp.float32(0.0), jnp.float32(0.2), jnp.float32(0.0), theta)
                return jax.lax.scan(tick, init, None, length=HORIZON)[1].sum()
            return jax.vmap(one)(crowd)

        return live

    return functools.lru_cache(maxsize=None)(lambda w: make((1.0, 1.0, 0.3))) if "rebuild" in OFF else make


def census(crowd, fits):
    """Diversity of the crowd: pairwise distances, sorted by rank, in numpy."""
    if "census" in OFF:
        return 0.0
    c = np.asarray(crowd)
    tot = 0.0
    for i in range(len(c)):
        for j in range(i):
            tot += float(np.linalg.norm(c[i] - c[j])) * (abs(i - j) / len(c))
    return tot / len(c) ** 2


def generations(seed):
    rng = np.random.default_rng(seed)
    key = jax.random.PRNGKey(seed)
    brain = Brain()
    theta, unravel = ravel_pytree(brain.init(key, jnp.zeros(5)))
    make = workshop(brain, unravel)
    rule = optax.adam(0.05)
    state = rule.init(theta)
    sigma = 0.1
    while True:
        world = tuple(np.round(rng.uniform([0.6, 0.2, 0.1], [1.6, 2.0, 0.5]), 3))
        live = make(None if "rebuild" in OFF else world)
        key, sub = jax.random.split(key)
        half = jax.random.normal(sub, (CROWD // 2, theta.size))
        eps = jnp.concatenate([half, -half])
        fits = live(theta + sigma * eps).block_until_ready()
        z = (fits - fits.mean()) / (fits.std() + 1e-6)
        upd, state = rule.update(-(z @ eps) / (CROWD * sigma), state)
        theta = optax.apply_updates(theta, upd)
        yield float(fits.mean()), census(theta + sigma * eps, fits)


if __name__ == "__main__":
    hatch = generations(9)
    next(hatch)                                  # the first one warms JAX up, not counted
    t0, steps = time.perf_counter(), 0
    for g, (fit, spread) in enumerate(hatch, 1):
        steps += CROWD * HORIZON
        if g >= GENERATIONS or time.perf_counter() - t0 > SECS:
            break
    dt = time.perf_counter() - t0
    print(f"gen {g}: fitness {fit:.1f} spread {spread:.3f}; {steps / dt:.1f} steps/s")
