import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from task import Rate


class QNetwork(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(120)(x))
        return nn.Dense(2)(nn.relu(nn.Dense(84)(x)))


q = QNetwork()
state = TrainState.create(apply_fn=q.apply, params=q.init(jax.random.PRNGKey(0), jnp.zeros(4)), tx=optax.adam(1e-3))


@jax.jit
def update(state, obs, actions, targets):
    def loss(params):
        values = state.apply_fn(params, obs)
        return ((values[jnp.arange(len(actions)), actions] - targets) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return value, state.apply_gradients(grads=grads)


env, rate = gymnasium.make("CartPole-v1"), Rate()
obs, _ = env.reset()
n = 0
while rate.more():
    n += 1
    action = int(q.apply(state.params, obs).argmax())  # not compiled: every layer is dispatched on its own
    obs, reward, terminated, truncated, _ = env.step(action)
    if terminated or truncated:
        obs, _ = env.reset()
    if n % 50 == 0:
        value, state = update(state, np.tile(obs, (32, 1)), np.zeros(32, int), np.ones(32, np.float32))
