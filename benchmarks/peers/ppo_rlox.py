"""rlox's PPO: collecting in Rust, learning by torch. A callback ends it."""

from __future__ import annotations

from typing import Any

import numpy as np
import rlox
import torch
from rlox.algorithms import PPO
from rlox.callbacks import Callback

from benchmarks.peers import ENV, After, Work, facts

torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one loads modules, which is importing


def train(work: Work, seed: int, every: int, after: After) -> dict[str, Any]:
    """See peers. Its learning rate falls with the number of steps, its clip does not."""
    asked = _After(after, work.num_envs * work.num_steps)
    model = PPO(
        ENV,
        seed=seed,
        n_envs=work.num_envs,
        n_steps=work.num_steps,
        n_epochs=work.epochs,
        batch_size=work.minibatch_size,
        learning_rate=work.learning_rate,
        clip_eps=work.clip,
        vf_coef=2 * work.value_coef,  # its value loss is half of the mean square
        ent_coef=work.entropy_coef,
        max_grad_norm=work.max_grad_norm,
        gamma=work.gamma,
        gae_lambda=work.gae_lambda,
        clip_vloss=False,
        anneal_lr=bool(work.falling_over),
        policy=rlox.DiscretePolicy(4, 2, hidden=work.hidden[0]),
        callbacks=[asked],
    )
    asked.act = lambda observation: model.policy.actor(torch.as_tensor(np.asarray(observation))).argmax(-1).numpy()
    model.train(work.falling_over or 10**9)
    config, parameters = model.config, sum(parameter.numel() for parameter in model.policy.parameters())
    amounts = (config.n_envs, config.n_steps, config.batch_size, config.n_epochs)
    return facts(*amounts, (config.gamma, config.gae_lambda), parameters)


class _After(Callback):
    """Asks `after` once a rollout."""

    def __init__(self, after: After, rows: int) -> None:
        self.after, self.rows, self.steps, self.act = after, rows, 0, None

    def on_step(self, **_: Any) -> bool:
        self.steps += self.rows
        with torch.no_grad():
            return not self.after(self.steps, self.act)
