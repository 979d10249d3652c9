"""One training in one mode of collection until it is solved: started by collection_modes.py, each in a process."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import versions

SLOWER = 10.0  # times as long as those of the others are the steps of a slow actor


class Task(NamedTuple):
    """Conditions under which an environment counts as solved."""

    threshold: float  # mean return
    episodes: int
    every: dict[str, int]  # environment steps between checks, by algorithm


TASKS = {
    "CartPole-v1": Task(475.0, 100, {"a2c": 5_000, "dqn": 2_000}),
    "Pendulum-v1": Task(-200.0, 100, {"sac": 500}),
    "LunarLander-v3": Task(200.0, 50, {"ppo": 16_384, "appo": 16_384}),
}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("algorithm")
    flags.add_argument("env")
    flags.add_argument("mode")
    flags.add_argument("actors", type=int)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--quick", action="store_true")
    options = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(trained(options, Path(folder))))


def trained(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train until a check is passed, or to the registered number of steps."""
    from headrace import Trainer
    from headrace.envs import registry
    from headrace.evaluation.evaluator import evaluate

    task = TASKS[options.env]
    settings: dict[str, Any] = {"target_return": None, "seed": options.seed}
    exchange = options.mode.startswith("gradients ")
    mode, _, slow = options.mode.removeprefix("gradients ").partition(" ")
    if options.mode == "learners":
        settings["learners"] = options.actors
    elif options.actors:
        settings |= {"actors": options.actors, "collection": mode} | ({"exchange": "gradients"} if exchange else {})
    if options.quick:
        settings["total_steps"] = 2_000
    env = slow_maker(options.env, folder) if slow else options.env
    if slow:  # what is registered for the environment itself, of APPO PPO's
        like = registry.spec(options.env).defaults["ppo" if options.algorithm == "appo" else options.algorithm]
        known = {name: value for name, value in like.items() if name in _known(options.algorithm)}
        registry.register("Slow", env, {options.algorithm: known})
    trainer = Trainer(options.algorithm, env, **settings)
    lags, checked, solved = [0.0], 0, False
    every = task.every[options.algorithm]
    while not (solved or trainer.reason_to_stop()):
        details = trainer.iterate().details
        lags.append(details.get("lag") or 0.0)
        largest = max(details.get("lag_max") or 0.0, lags[0])
        lags[0] = largest
        if trainer.steps // every > checked:
            checked = trainer.steps // every
            result = evaluate(trainer.policy, options.env, task.episodes, 10_000, reference=False)
            solved = result.mean >= task.threshold
    trainer.close()
    return {
        "solved": solved,
        "steps": trainer.steps,
        "seconds": trainer.seconds,
        "num_steps": trainer.algorithm.num_steps,
        "lag": statistics.mean(lags[1:]),
        "lag_max": lags[0],
        "versions": versions(),
    }


def _known(algorithm: str) -> set[str]:
    """The settings that there are."""
    from dataclasses import fields

    from headrace.algorithms.base import algorithm_classes
    from headrace.training.config import TrainConfig

    return {field.name for config in (TrainConfig, algorithm_classes(algorithm).config) for field in fields(config)}


def slow_maker(env: str, folder: Path) -> Any:
    """A function that makes such environments, which are slow in the process that is the first to call it."""
    claim = str(folder / "slow")

    def make() -> Any:
        import gymnasium

        class Slow(gymnasium.Wrapper):  # type: ignore[type-arg]
            def step(self, action: Any) -> Any:
                began = time.thread_time()
                result = super().step(action)
                time.sleep((SLOWER - 1) * (time.thread_time() - began))
                return result

        try:
            with open(claim, "x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            pass
        made = gymnasium.make(env)
        return Slow(made) if Path(claim).read_text() == str(os.getpid()) else made

    return make


if __name__ == "__main__":
    main()
