"""One library learning off-policy, in a process and an interpreter of its own: started by off_policy.py."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any, NamedTuple

from benchmarks.common import process_start, throughput, versions
from benchmarks.judge import Judge

START = process_start()


class Work(NamedTuple):
    """Everybody is given the same."""

    env: str
    hidden: tuple[int, ...]  # of relu layers, in actor and critics
    batch_size: int
    more: tuple[tuple[str, Any], ...] = ()  # settings of Headrace whose defaults are not SB3's


WORKS = {
    "sac": Work("Pendulum-v1", (256, 256), 256),
    "td3": Work("Pendulum-v1", (256, 256), 256),
    "ddpg": Work("Pendulum-v1", (256, 256), 256),
    "tqc": Work("Pendulum-v1", (256, 256), 256, (("critics", 2), ("critic_hidden", (256, 256)))),
    "crossq": Work("Pendulum-v1", (256, 256), 256, (("critic_hidden", (256, 256)),)),
    # layers and batch of RL Baselines3 Zoo
    "dqn": Work("CartPole-v1", (256, 256), 64, (("double", False), ("prioritized", False), ("n_steps", 1))),
}
CLASSES = {"crossq": "CrossQ"}  # of SB3 and SBX, where their names are not those of the algorithms in capitals
CONTRIB = ("tqc", "crossq")  # of SB3, in a package of their own
FILLED = 2_000  # steps in the replay before the clock starts
CHECK_EVERY = 500  # environment steps between two checks of a training
MOST_STEPS = 20_000


def headrace_rate(name: str, seconds: float, steps: int) -> dict[str, Any]:
    """Gradient steps a second of Headrace: drawing rows, gathering them and learning, `steps` to a call."""
    from headrace import Trainer
    from headrace.algorithms.off_policy import learn_from_replay
    from headrace.core.device import torch_threads, without_denormals

    work = WORKS[name]
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    trainer = Trainer(
        name,
        work.env,
        num_envs=1,
        num_steps=1,
        hidden=work.hidden,
        activation="relu",
        normalize_observation=False,
        batch_size=work.batch_size,
        learning_starts=10**9,
        threads=threads,
        **dict(work.more),
    )
    while trainer.steps < FILLED:
        trainer.iterate()
    algorithm: Any = trainer.algorithm
    with torch_threads(threads), without_denormals():  # as the trainer does
        return throughput(lambda: learn_from_replay(algorithm, steps), steps, seconds)


def sb3_rate(name: str, seconds: float, steps: int, library: str) -> dict[str, Any]:
    """The same of Stable-Baselines3, or of SBX, which has its interface: their own train()."""
    model = sb3_model(name, library, WORKS[name].hidden, learning_starts=10**9, batch_size=WORKS[name].batch_size)
    model.learn(FILLED)
    return throughput(lambda: model.train(gradient_steps=steps, batch_size=model.batch_size), steps, seconds)


def sb3_model(name: str, library: str, hidden: tuple[int, ...] | None = None, seed: int = 0, **settings: Any) -> Any:
    """hidden: None for the library's own choice."""
    from importlib import import_module

    package = "sb3_contrib" if name in CONTRIB else "stable_baselines3"
    kind = getattr(import_module({"sb3": package, "sbx": "sbx"}[library]), CLASSES.get(name, name.upper()))
    if hidden is not None:
        settings["policy_kwargs"] = {"net_arch": list(hidden)}
    return kind("MlpPolicy", WORKS[name].env, seed=seed, device="cpu", **settings)


def judge_of(name: str) -> Judge:
    """Make a judge that checks a training more often than those of on-policy algorithms."""
    judge = Judge(WORKS[name].env, START, MOST_STEPS)
    judge.task = judge.task._replace(check_every=CHECK_EVERY)
    return judge


def headrace_solve(name: str, seed: int) -> dict[str, Any]:
    """Headrace with its defaults for the environment."""
    from headrace import Trainer

    judge = judge_of(name)
    trainer = Trainer(name, WORKS[name].env, seed=seed)
    while True:
        trainer.iterate()
        if judge.check(trainer.steps, lambda observation: trainer.policy.predict(observation, deterministic=True)[0]):
            return judge.row()


def sb3_solve(name: str, seed: int, library: str) -> dict[str, Any]:
    """The other library with its defaults."""
    model = sb3_model(name, library, seed=seed)
    from stable_baselines3.common.callbacks import BaseCallback

    judge = judge_of(name)

    class Checked(BaseCallback):
        def _on_step(self) -> bool:
            return not judge.check(self.num_timesteps, lambda seen: self.model.predict(seen, deterministic=True)[0])

    model.learn(MOST_STEPS + 1, callback=Checked())
    return judge.row()


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("library", choices=("headrace", "sb3", "sbx"))
    flags.add_argument("algorithm", choices=WORKS)
    flags.add_argument("--seed", type=int, help="train until the task is solved; else: gradient steps a second")
    flags.add_argument("--seconds", type=float, default=1.0)
    flags.add_argument("--steps", type=int, default=50, help="gradient steps in one call")
    options = flags.parse_args()
    mine, name = options.library == "headrace", options.algorithm
    began = time.time()
    if options.seed is not None:
        row = headrace_solve(name, options.seed) if mine else sb3_solve(name, options.seed, options.library)
    else:
        timing = (name, options.seconds, options.steps)
        row = headrace_rate(*timing) if mine else sb3_rate(*timing, options.library)
    about = {"library": options.library, "algorithm": name, "seed": options.seed, "wall_s": time.time() - began}
    print(json.dumps({**about, **row, "versions": versions()}))


if __name__ == "__main__":
    main()
