"""rejax's PPO on gymnax's CartPole: one jitted call for many iterations.

It differs in what cannot be set: the value loss is clipped, gradients are clipped element by element, advantages are
normalised in each minibatch, truncation counts as termination, learning rate and clip do not fall.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import rejax

from benchmarks.peers import ENV, Act, After, Work, facts


def train(work: Work, seed: int, every: int, after: After) -> dict[str, Any]:
    """See peers. `every` steps, rounded to iterations, are one call."""
    iteration = work.num_envs * work.num_steps
    chunk = max(1, round(every / iteration)) * iteration
    algorithm = rejax.PPO.create(
        env=ENV,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": work.hidden},
        num_envs=work.num_envs,
        num_steps=work.num_steps,
        num_epochs=work.epochs,
        num_minibatches=work.minibatches,
        learning_rate=work.learning_rate,
        max_grad_norm=work.max_grad_norm,
        gamma=work.gamma,
        gae_lambda=work.gae_lambda,
        clip_eps=work.clip,
        ent_coef=work.entropy_coef,
        vf_coef=work.value_coef,
        total_timesteps=chunk,
        eval_freq=chunk,
        skip_initial_evaluation=True,
    ).replace(eval_callback=lambda algorithm, state, key: ())
    iterate: Callable[[Any], Any] = jax.jit(lambda state: algorithm.train(train_state=state)[0])
    state, steps = algorithm.init_state(jax.random.PRNGKey(seed)), 0
    while True:
        state = jax.block_until_ready(iterate(state))
        steps += chunk
        if after(steps, _acting(state)):
            break
    networks = (state.actor_ts.params, state.critic_ts.params)
    parameters = sum(leaf.size for leaf in jax.tree_util.tree_leaves(networks))
    amounts = (algorithm.num_envs, algorithm.num_steps, algorithm.minibatch_size, algorithm.num_epochs)
    return facts(*amounts, (algorithm.gamma, algorithm.gae_lambda), parameters)


def _acting(state: Any) -> Act:
    """The actor in NumPy, so that looking at it compiles nothing."""
    network = jax.tree_util.tree_map(np.asarray, state.actor_ts.params["params"])
    hidden = [network["features"][name] for name in sorted(network["features"])]

    def act(observation: np.ndarray) -> np.ndarray:
        for layer in hidden:
            observation = np.tanh(observation @ layer["kernel"] + layer["bias"])
        return (observation @ network["action_logits"]["kernel"] + network["action_logits"]["bias"]).argmax(-1)

    return act
