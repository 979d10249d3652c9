"""Headrace's PPO in environments of others, with the settings that are registered for them."""

from __future__ import annotations

from typing import Any

import numba  # noqa: F401, TID253  loaded when first used, but an import all the same

from benchmarks.returns.any_env_tasks import Judge
from benchmarks.returns.solve_one import setting
from headrace import Trainer
from headrace.envs import factory


def train(options: Any) -> dict[str, Any]:
    """The judge's row."""
    judge = Judge(options.env, options.seconds, options.throughput, factory(options.env))
    limits = {"total_steps": None, "max_seconds": 1e9, "target_return": None} if options.throughput else {}
    trainer = Trainer("ppo", options.env, seed=options.seed, **limits, **dict(map(setting, options.set)))
    while True:
        trainer.iterate()
        if judge.over(trainer.steps, lambda observation: trainer.policy.predict(observation, deterministic=True)[0]):
            trainer.close()
            return judge.row
