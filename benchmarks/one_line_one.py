"""One program of one_line.py: one_line_one.py PROGRAM NUM_ENVS NUM_STEPS ROLLOUTS SITE_PACKAGES; prints JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch

import headrace as hr

ENV = "CartPole-v1"
sys.path.append(str(Path(__file__).parents[1] / "examples"))


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


def single_file(num_envs: int, num_steps: int, rollouts: int, make: Callable[[int], Any]) -> dict[str, float]:
    """examples/ppo_single_file.py on vector environments."""
    import ppo_single_file as program

    envs = make(num_envs)
    rows = num_envs * num_steps
    args = program.Args(ENV, num_envs, rows, num_steps, num_minibatches=4)
    program.train(args, envs)  # what is loaded and compiled at first use
    args.total_timesteps = rows * (rollouts + 1)
    timed = Timed(envs, "step")
    _, _, rate = program.train(args, envs)
    return {"steps_per_second": rate, "in_envs": timed.seconds * rate / args.total_timesteps}


def sync(num_envs: int) -> Any:
    """Gymnasium's environments, with the statistics of episodes."""
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(ENV)] * num_envs, autoreset_mode="SameStep")
    return gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)


def of_sb3(kind: Any, env: Any, num_steps: int, rollouts: int) -> dict[str, float]:
    """A PPO with Stable-Baselines3's interface."""
    rows = env.num_envs * num_steps
    settings = {"n_steps": num_steps, "batch_size": rows // 4, "n_epochs": 4, "learning_rate": 1e-3, "gamma": 0.98}
    model = kind("MlpPolicy", env, **settings, seed=1, device="cpu")
    model.learn(rows)
    timed = Timed(env, "step_wait")
    began = time.perf_counter()
    model.learn(rows * rollouts)
    seconds = time.perf_counter() - began
    return {"steps_per_second": model.num_timesteps / seconds, "in_envs": timed.seconds / seconds}


def main(program: str, num_envs: int, num_steps: int, rollouts: int, packages: str) -> dict[str, float]:
    """Steps per second, and the fraction of the time that the environments took."""
    if packages:
        sys.path.append(packages)
    torch.set_num_threads(1)
    if program == "single_file_sync":
        return single_file(num_envs, num_steps, rollouts, sync)
    if program == "single_file_headrace":
        return single_file(
            num_envs, num_steps, rollouts, lambda number: hr.make_vec(ENV, number, autoreset_mode="SameStep")
        )
    from headrace import sb3

    if program == "headrace_sb3":
        return of_sb3(sb3.PPO, sb3.make_vec_env(ENV, num_envs), num_steps, rollouts)
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    make = make_vec_env if program == "sb3_dummy" else sb3.make_vec_env
    return of_sb3(PPO, make(ENV, num_envs), num_steps, rollouts)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5])))
