"""One training of mujoco_returns.py: LIBRARY ALGORITHM ENV SEED STEPS MARKS PACKAGES. Prints one JSON object.

LIBRARY is headrace (with the registered settings), default (Headrace with what it takes where nothing is registered) or
sb3. MARKS: steps, separated by commas. PACKAGES: the folder that has Stable-Baselines3, or nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import Neighbours, versions
from benchmarks.judge import Evaluation, Task
from benchmarks.returns.mujoco_tasks import EPISODES, ZOO


class Clock:
    """Wall and CPU seconds of a training without those of its evaluations, which it makes at the marks."""

    def __init__(self, env: str, marks: list[int]) -> None:
        task = Task(float("-inf"), 0, 0, 0.0, 0.0)  # no episode is given up
        self.evaluation, self.marks = Evaluation(env, task, EPISODES), marks
        self.points: list[dict[str, float]] = []
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def over(self, steps: int, act: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Note the return at each mark that has been passed, after an iteration. True after the last mark."""
        if steps < self.marks[0]:
            return False
        wall, cpu = time.perf_counter(), time.process_time()
        self.marks = [mark for mark in self.marks if mark > steps]
        spent = {"seconds": wall - self.wall, "cpu_s": cpu - self.cpu}
        self.points.append({"steps": steps, **spent, "return": self.evaluation.mean(act)[0]})
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu
        return not self.marks


def main(library: str, algorithm: str, env: str, seed: int, steps: int, marks: list[int]) -> dict[str, Any]:
    """The row, of which the last point is the end."""
    neighbours = Neighbours()
    train = with_sb3 if library == "sb3" else with_headrace
    points = train(library, algorithm, env, seed, steps, marks)
    about = {"library": library, "algorithm": algorithm, "env": env, "seed": seed, "steps": steps}
    return {**about, **points[-1], "points": points, "others_cpu": neighbours.busy(), "versions": versions()}


def with_headrace(
    library: str, algorithm: str, env: str, seed: int, steps: int, marks: list[int]
) -> list[dict[str, float]]:
    """Headrace; what it compiles once for a machine, it compiles before the clock starts."""
    from headrace import Trainer
    from headrace.envs import spec
    from headrace.training.scaling import unregistered

    settings: dict[str, Any] = {"total_steps": steps, "target_return": None, "seed": seed, "device": "cpu"}
    if library == "default" and algorithm in spec(env).defaults:
        settings |= {"registered": False, **unregistered(algorithm, settings)}
    trainer = Trainer(algorithm, env, **settings)
    clock = Clock(env, marks)
    while not trainer.reason_to_stop():
        trainer.iterate()
        if clock.over(trainer.steps, lambda observation: trainer.policy.predict(observation)[0]):
            break
    trainer.close()
    return clock.points


def with_sb3(library: str, algorithm: str, env: str, seed: int, steps: int, marks: list[int]) -> list[dict[str, float]]:
    """Stable-Baselines3 with its zoo's settings. PPO on one thread of torch, which is faster for such networks."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecNormalize

    from benchmarks.peers.ppo_sb3 import _After

    settings = dict(ZOO[algorithm][env])
    settings["policy_kwargs"] = policy = dict(settings.get("policy_kwargs", {}))
    if policy.get("activation_fn") == "relu":
        policy["activation_fn"] = torch.nn.ReLU
    if algorithm == "ppo":
        torch.set_num_threads(1)
    envs: Any = make_vec_env(env, n_envs=settings.pop("num_envs", 1), seed=seed)
    if settings.pop("normalize", False):
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    if (std := settings.pop("noise_std", 0.0)) > 0:
        size = envs.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(size), std * np.ones(size))
    model = getattr(stable_baselines3, algorithm.upper())("MlpPolicy", envs, seed=seed, device="cpu", **settings)
    clock = Clock(env, marks)

    def act(observation: np.ndarray) -> np.ndarray:
        seen = envs.normalize_obs(observation) if isinstance(envs, VecNormalize) else observation
        action: np.ndarray = model.predict(seen, deterministic=True)[0]
        return action

    model.learn(10 * steps, callback=_After(lambda done, _: clock.over(done, act)))
    return clock.points


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.path += given[6:]
    print(json.dumps(main(*given[:3], int(given[3]), int(given[4]), [int(mark) for mark in given[5].split(",")])))
