"""Headrace solving one environment with one number of envs, seed after seed: started by scaling.py."""

from __future__ import annotations

import argparse
import json
from typing import Any

import gymnasium

from benchmarks.common import process_start, versions
from benchmarks.judge import Judge

START = process_start()
NO_LIMIT = 10**12  # steps: runs are given up after seconds of training, the same for every number of envs
OWN = {"Catch": 9}  # not in Gymnasium, with the steps of an episode: the reference is their plain Python


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--env", required=True)
    flags.add_argument("--num-envs", type=int, required=True)
    flags.add_argument("--seeds", type=int, nargs="+", required=True)
    flags.add_argument("--give-up", type=float, required=True, help="seconds of training")
    flags.add_argument("--fixed", action="store_true", help="the registered settings, whatever the number of envs")
    options = flags.parse_args()
    if options.env in OWN:
        from headrace.envs import factory

        gymnasium.register(options.env, factory(options.env), max_episode_steps=OWN[options.env])
    training(options, seed=999).iterate()  # compiled code is loaded before any clock runs
    rows = [solve(options, seed) for seed in options.seeds]
    print(json.dumps({"rows": rows, "versions": versions()}))


def training(options: argparse.Namespace, seed: int) -> Any:
    from headrace import Trainer

    return Trainer("ppo", options.env, num_envs=options.num_envs, seed=seed, scale=not options.fixed)


def solve(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One training, until it is held or given up."""
    judge = Judge(options.env, START, NO_LIMIT)
    trainer = training(options, seed)
    over = False
    while not over and trainer.seconds < options.give_up:
        trainer.iterate()
        over = judge.check(
            trainer.steps, lambda observation: trainer.policy.predict(observation, deterministic=True)[0]
        )
    held = bool(judge.verdict["held"])
    return {
        "env": options.env,
        "settings": "fixed" if options.fixed else "rule",
        "num_envs": options.num_envs,
        "follows": list(trainer.plan.derived),
        "seed": seed,
        "held": held,
        "held_s": judge.verdict["held_train_s"],
        "held_steps": judge.verdict["held_steps"],
        "last_mean": judge.last_mean,
        "train_s": trainer.seconds,
        **sequential(trainer),
    }


def sequential(trainer: Any) -> dict[str, int | float]:
    """Count what was done one after another, which remains where width costs nothing. Also returns the settings."""
    config, iterations = trainer.algorithm.config, trainer.algorithm.iteration
    minibatches = max(1, round(trainer.env.num_envs * config.num_steps / config.minibatch_size))
    names = ("num_steps", "epochs", "minibatch_size", "learning_rate", "target_kl")
    return {
        "iterations": iterations,
        "updates": iterations * config.epochs * minibatches,
        "vector_steps": iterations * config.num_steps,
        **{name: getattr(config, name) for name in names},
    }


if __name__ == "__main__":
    main()
