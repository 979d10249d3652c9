"""One program of one_line.py: one_line_one.py PROGRAM NUM_ENVS NUM_STEPS ROLLOUTS SEED SITE_PACKAGES; prints JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

import headrace as hr

ENV = "CartPole-v1"
Row = dict[str, float]


class Timed:
    """Counts the seconds that a method takes."""

    def __init__(self, thing: Any, name: str) -> None:
        self.seconds, self.step = 0.0, getattr(thing, name)
        setattr(thing, name, self)

    def __call__(self, *arguments: Any) -> Any:
        began = time.perf_counter()
        result = self.step(*arguments)
        self.seconds += time.perf_counter() - began
        return result


def single_file(num_envs: int, num_steps: int, rollouts: int, seed: int, make: Callable[[int], Any]) -> Row:
    """examples/ppo_single_file.py on vector environments."""
    from examples import ppo_single_file as program

    envs = make(num_envs)
    rows = num_envs * num_steps
    args = program.Args(ENV, num_envs, rows, num_steps, num_minibatches=4, seed=seed)
    program.train(args, envs)  # what is loaded and compiled at first use
    args.total_timesteps = rows * (rollouts + 1)
    timed = Timed(envs, "step")
    _, returns, rate = program.train(args, envs)
    fraction = timed.seconds * rate / args.total_timesteps
    return {"steps_per_second": rate, "in_envs": fraction, "mean_return": float(np.mean(returns))}


def sync(num_envs: int) -> Any:
    """Gymnasium's environments, with the statistics of episodes."""
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(ENV)] * num_envs, autoreset_mode="SameStep")
    return gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)


def of_sb3(kind: Any, env: Any, num_steps: int, rollouts: int, seed: int) -> Row:
    """A PPO with Stable-Baselines3's interface."""
    rows = env.num_envs * num_steps
    settings = {"n_steps": num_steps, "batch_size": rows // 4, "n_epochs": 4, "learning_rate": 1e-3, "gamma": 0.98}
    model = kind("MlpPolicy", env, **settings, seed=seed, device="cpu")
    model.learn(rows)
    timed = Timed(env, "step_wait")
    began = time.perf_counter()
    model.learn(rows * rollouts)
    seconds = time.perf_counter() - began
    return {
        "steps_per_second": model.num_timesteps / seconds,
        "in_envs": timed.seconds / seconds,
        "mean_return": float(np.mean([info["r"] for info in model.ep_info_buffer])),
    }


def quickstart(kind: Any, timesteps: int, seed: int) -> Row:
    """Stable-Baselines3's quickstart: steps per second of learn(), and the mean of 20 returns after it."""
    kind("MlpPolicy", gymnasium.make(ENV), n_steps=64, device="cpu").learn(64)  # loads and compiles
    model = kind("MlpPolicy", gymnasium.make(ENV), seed=seed, device="cpu")
    began = time.perf_counter()
    model.learn(timesteps)
    rate = model.num_timesteps / (time.perf_counter() - began)
    env, returns = model.get_env(), []
    env.seed(seed)
    observation, total = env.reset(), 0.0
    while len(returns) < 20:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, done, _ = env.step(action)
        total += float(reward[0])
        if done[0]:
            returns.append(total)
            total = 0.0
    return {"steps_per_second": rate, "mean_return": float(np.mean(returns))}


def main(program: str, num_envs: int, num_steps: int, rollouts: int, seed: int, packages: str) -> Row:
    """Steps per second, and the fraction of the time that the environments took."""
    if packages:
        sys.path.append(packages)
    torch.set_num_threads(1)
    if program == "single_file_sync":
        return single_file(num_envs, num_steps, rollouts, seed, sync)
    if program == "single_file_headrace":
        make = partial(hr.make_vec, ENV, autoreset_mode="SameStep")
        return single_file(num_envs, num_steps, rollouts, seed, make)
    from headrace import sb3

    if program == "headrace_quickstart":
        return quickstart(sb3.PPO, num_steps * rollouts, seed)
    if program == "headrace_sb3":
        return of_sb3(sb3.PPO, sb3.make_vec_env(ENV, num_envs), num_steps, rollouts, seed)
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    if program == "sb3_quickstart":
        return quickstart(PPO, num_steps * rollouts, seed)
    env = make_vec_env(ENV, num_envs) if program == "sb3_dummy" else sb3.make_vec_env(ENV, num_envs)
    return of_sb3(PPO, env, num_steps, rollouts, seed)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6])))
