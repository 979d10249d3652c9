"""Stable-Baselines3's PPO, in its own words: `learn` with a callback, its DummyVecEnv."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.peers import ENV, After, Work, facts

torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one loads modules, which is importing


def train(work: Work, seed: int, every: int, after: After) -> dict[str, Any]:
    """See peers."""
    model = learn(PPO, work, seed, after, activation_fn=torch.nn.Tanh)
    return facts(*done(model), sum(parameter.numel() for parameter in model.policy.parameters()))


def learn(kind: Any, work: Work, seed: int, after: After, **policy: Any) -> Any:
    """Train a model of SB3's interface, until `after` is true or the schedules have fallen to 0."""
    worlds = make_vec_env(ENV, n_envs=work.num_envs, seed=seed)
    model = kind(
        "MlpPolicy",
        worlds,
        n_steps=work.num_steps,
        batch_size=work.minibatch_size,
        n_epochs=work.epochs,
        gamma=work.gamma,
        gae_lambda=work.gae_lambda,
        ent_coef=work.entropy_coef,
        vf_coef=work.value_coef,
        max_grad_norm=work.max_grad_norm,
        learning_rate=_falling(work.learning_rate) if work.falling_over else work.learning_rate,
        clip_range=_falling(work.clip) if work.falling_over else work.clip,
        policy_kwargs={"net_arch": {"pi": list(work.hidden), "vf": list(work.hidden)}, **policy},
        seed=seed,
        device="cpu",
    )
    model.learn(work.falling_over or 10**9, callback=_After(after))
    return model


def done(model: Any) -> tuple[int, int, int, int, tuple[float, float]]:
    """The amounts and discounts that peers.facts() takes."""
    return model.n_envs, model.n_steps, model.batch_size, model.n_epochs, (model.gamma, model.gae_lambda)


def _falling(start: float) -> Callable[[float], float]:
    """SB3's linear schedule: from `start` to 0 over the training."""
    return lambda remaining: remaining * start


class _After(BaseCallback):
    """Asks `after` before each rollout but the first."""

    def __init__(self, after: After) -> None:
        super().__init__()
        self.after, self.over = after, False

    def _on_step(self) -> bool:
        return not self.over

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.over = self.after(self.num_timesteps, self._act)

    def _act(self, observation: Any) -> Any:
        return self.model.predict(observation, deterministic=True)[0]
