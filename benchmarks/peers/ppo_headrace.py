"""Headrace's PPO on the work that the others are given: its settings for CartPole-v1 set aside, normalisation off."""

from __future__ import annotations

import os
from typing import Any

import numba  # noqa: F401, TID253  loaded when first used, but an import all the same

from benchmarks.peers import ENV, After, Work, facts
from headrace import Trainer


def train(work: Work, seed: int, every: int, after: After, **others: Any) -> dict[str, Any]:
    """See peers. others: more of Trainer's settings."""
    trainer = Trainer("ppo", ENV, seed=seed, **(settings(work) | others))
    over = False
    while not over:
        trainer.iterate()
        over = after(trainer.steps, lambda observation: trainer.policy.predict(observation, deterministic=True)[0])
        over |= bool(work.falling_over) and trainer.steps >= work.falling_over
    config = trainer.algorithm.config
    parameters = sum(parameter.numel() for parameter in trainer.policy.parameters())
    amounts = (trainer.env.num_envs, config.num_steps, config.minibatch_size, config.epochs)
    trainer.close()
    return facts(*amounts, (config.gamma, config.gae_lambda), parameters)


def settings(work: Work) -> dict[str, Any]:
    """The work in Headrace's words."""
    return {
        "num_envs": work.num_envs,
        "num_steps": work.num_steps,
        "minibatch_size": work.minibatch_size,
        "epochs": work.epochs,
        "gamma": work.gamma,
        "gae_lambda": work.gae_lambda,
        "entropy_coef": work.entropy_coef,
        "learning_rate": work.learning_rate,
        "schedule": "linear" if work.falling_over else "constant",
        "total_steps": work.falling_over or 10**12,
        "target_return": None,
        "clip": work.clip,
        "value_clip": 0.0,
        "value_coef": work.value_coef,
        "max_grad_norm": work.max_grad_norm,
        "target_kl": 0.0,
        "hidden": work.hidden,
        "activation": "tanh",
        "shared": False,
        "normalize_advantage": True,
        "normalize_observation": False,
        "normalize_return": False,
        "stagger": False,
        "threads": int(os.environ.get("OMP_NUM_THREADS", "1")),
    }
