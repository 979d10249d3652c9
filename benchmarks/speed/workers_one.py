"""One library stepping environments in processes, in an interpreter of its own: started by workers.py."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from benchmarks.common import throughput, versions
from benchmarks.speed.timed_env import TimedEnv

ACTIONS = 64  # rows of actions, used in turn
STEPS = 64  # of a rollout
Step = tuple[Callable[[], Any], int, Callable[[], Any]]  # a call, the steps it takes, and close()


def make_env(options: argparse.Namespace) -> Callable[[], gymnasium.Env]:
    """Function that makes one environment."""
    if options.task == "CartPole-v1":
        return functools.partial(gymnasium.make, "CartPole-v1", disable_env_checker=True)
    return functools.partial(TimedEnv, options.us * 1e-6, options.sleeping, options.heavy)


def actions(num_envs: int) -> np.ndarray:
    """Random actions, [ACTIONS, N]."""
    return np.random.default_rng(0).integers(0, 2, (ACTIONS, num_envs))


def in_turn(step: Callable[[Any], Any], rows: Any, close: Callable[[], Any]) -> Step:
    """A step with the next row of actions."""
    turn = 0

    def call() -> None:
        nonlocal turn
        turn += 1
        step(rows[turn % ACTIONS])

    return call, 1, close


def headrace(options: argparse.Namespace) -> Step:
    """A rollout a call."""
    import torch

    from headrace.data.spaces import action_column, env_columns
    from headrace.envs.workers.env import WorkerEnv

    env = WorkerEnv(make_env(options), options.num_envs, "timed", options.workers)
    rollout = env.rollout(STEPS, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    rollout.action.copy_(torch.from_numpy(actions(options.num_envs)[:STEPS]))
    env.reset(rollout, 0)

    def step() -> None:
        for t in range(STEPS):
            env.step(rollout, t)
        rollout.continue_from(rollout)

    step.workers = len(env.parts)  # type: ignore[attr-defined]
    return step, STEPS, env.close


def collecting(options: argparse.Namespace) -> Step:
    """A rollout a call, with a policy that acts: PPO's usual one."""
    import torch

    from headrace.training.trainer import Trainer

    trainer = Trainer(
        "ppo",
        make_env(options),
        num_envs=options.num_envs,
        workers=options.workers,
        num_steps=options.num_steps,
        collection=options.collection,
        drop_slowest=options.drop_slowest,
        scale=False,
    )
    collector: Any = trainer.collector
    counted = [0, 0]  # rows, and those that are dead

    def step() -> None:
        rollout = collector.collect()
        live = rollout.valid_steps()
        counted[0] += live
        counted[1] += rollout.num_steps * rollout.num_envs - live

    torch.set_num_threads(1)
    step.counted = counted  # type: ignore[attr-defined]
    return step, options.num_steps, trainer.close


def gymnasium_async(options: argparse.Namespace) -> Step:
    """AsyncVectorEnv, a process for each environment."""
    env = gymnasium.vector.AsyncVectorEnv([make_env(options)] * options.num_envs)
    env.reset(seed=0)
    return in_turn(env.step, actions(options.num_envs), env.close)


def sb3(options: argparse.Namespace) -> Step:
    """SubprocVecEnv, a process for each environment."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    env = SubprocVecEnv([make_env(options)] * options.num_envs)
    env.seed(0)
    env.reset()
    return in_turn(env.step, actions(options.num_envs), env.close)


def torchrl(options: argparse.Namespace) -> Step:
    """ParallelEnv, a process for each environment; environments that have ended are reset."""
    import torch
    from torchrl.envs import GymWrapper, ParallelEnv

    torch.set_num_threads(1)
    make = make_env(options)
    env = ParallelEnv(options.num_envs, lambda: GymWrapper(make(), categorical_action_encoding=True))
    env.set_seed(0)
    now = env.reset()

    def step(action: Any) -> None:
        nonlocal now
        now["action"] = action
        _, now = env.step_and_maybe_reset(now)

    return in_turn(step, torch.from_numpy(actions(options.num_envs)), env.close)


def envpool(options: argparse.Namespace) -> Step:
    """EnvPool's own CartPole, in C++, with as many threads as it chooses."""
    import envpool as library

    env = library.make_gymnasium("CartPole-v1", num_envs=options.num_envs)
    env.reset()
    return in_turn(env.step, actions(options.num_envs).astype(np.int32), env.close)


def alone(options: argparse.Namespace) -> Step:
    """One environment in this process, without any vector: what a step takes."""
    env = make_env(options)()
    env.reset(seed=0)

    def step() -> None:
        for _ in range(STEPS):
            ended = env.step(0)[2:4]
            if any(ended):
                env.reset()

    options.num_envs = 1
    return step, STEPS, env.close


LIBRARIES = {
    "alone": alone,
    "headrace": headrace,
    "collecting": collecting,
    "gymnasium": gymnasium_async,
    "sb3": sb3,
    "torchrl": torchrl,
    "envpool": envpool,
}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("library", choices=LIBRARIES)
    flags.add_argument("--task", choices=("timed", "CartPole-v1"), default="timed")
    flags.add_argument("--us", type=float, default=0.0, help="of a step, in the mean")
    flags.add_argument("--sleeping", action="store_true")
    flags.add_argument("--heavy", action="store_true")
    flags.add_argument("--num-envs", type=int, default=8)
    flags.add_argument("--workers", type=int, help="of ours; without: as many as trying says")
    flags.add_argument("--num-steps", type=int, default=128, help="of a rollout, where a policy acts")
    flags.add_argument("--collection", choices=("sync", "double_buffered", "async"), default="sync")
    flags.add_argument("--drop-slowest", type=float, default=0.0)
    flags.add_argument("--seconds", type=float, default=1.0)
    options = flags.parse_args()
    call, steps, close = LIBRARIES[options.library](options)
    row = {"workers": getattr(call, "workers", None)} | throughput(call, steps * options.num_envs, options.seconds)
    counted = getattr(call, "counted", None)
    if counted is not None:
        row |= {"dead_share": counted[1] / max(1, sum(counted)), "rows": sum(counted)}
    close()
    print(json.dumps({**row, "versions": versions()}))


if __name__ == "__main__":
    main()
