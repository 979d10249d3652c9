"""One training by an entry of a file of rl_zoo3, by Headrace or by Stable-Baselines3, for zoo_returns.py.

Headrace reads the file itself, as `headrace train ALGORITHM ENV --zoo FILE` does. For Stable-Baselines3 the entry is
translated here, as rl_zoo3 does: DummyVecEnv with Monitor, and VecNormalize with the entry's gamma. Both
last policies play the same episodes, with their most likely actions, in Gymnasium's environment.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FIRST_EPISODE = 10_000  # seed of the first episode of the evaluation
OF_ENVS = ("n_timesteps", "n_envs", "normalize", "noise_type", "noise_std", "policy", "env_kwargs")
CONTRIB = ("tqc", "trpo", "qrdqn", "crossq")
Predict = Callable[[Any], Any]


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("library", choices=("headrace", "sb3"))
    flags.add_argument("file", type=Path)
    flags.add_argument("env")
    flags.add_argument("seed", type=int)
    flags.add_argument("--steps", type=int, help="in place of the entry's n_timesteps")
    flags.add_argument("--episodes", type=int, default=100)
    options = flags.parse_args()
    os.environ["HEADRACE_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    began, used = time.perf_counter(), time.process_time()
    train = train_ours if options.library == "headrace" else train_theirs
    steps, predict = train(options.file, options.env, options.seed, options.steps)
    row = {"wall": round(time.perf_counter() - began, 1), "cpu_seconds": round(time.process_time() - used, 1)}
    returns = played(predict, options.env, options.episodes)
    row |= {"steps": steps, "return": round(float(returns.mean()), 1), "std": round(float(returns.std()), 1)}
    print(json.dumps(row))


def train_ours(file: Path, env: str, seed: int, steps: int | None) -> tuple[int, Predict]:
    """Steps of a training by Headrace, and what acts by its last policy."""
    import headrace as hr

    limit = {} if steps is None else {"total_steps": steps}
    options = {"seed": seed, "device": "cpu", "threads": 1, "progress": "none"}
    with tempfile.TemporaryDirectory() as folder:
        run = hr.train(file.stem, env, zoo=str(file), log_folder=folder, **options, **limit)
        policy = run.policy
    return run.steps, lambda observations: policy.predict(observations, deterministic=True)[0]


def train_theirs(file: Path, env_id: str, seed: int, steps: int | None) -> tuple[int, Predict]:
    """The same by Stable-Baselines3."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    entry = entry_of(file, env_id)
    arguments = {name: plain(value) for name, value in entry.items() if name not in OF_ENVS}
    env: Any = make_vec_env(env_id, int(entry.get("n_envs", 1)), seed, env_kwargs=entry.get("env_kwargs"))
    normal = None
    if asked := entry.get("normalize"):
        wanted = asked if isinstance(asked, dict) else {}
        env = normal = VecNormalize(env, **({"gamma": entry["gamma"]} if "gamma" in entry else {}), **wanted)
    if "noise_type" in entry:
        arguments["action_noise"] = noise(entry, env.action_space.shape)
    package = stable_baselines3
    if file.stem in CONTRIB:
        import sb3_contrib as package  # type: ignore[no-redef]
    kind = getattr(package, {"crossq": "CrossQ"}.get(file.stem, file.stem.upper()))
    model = kind(entry.get("policy", "MlpPolicy"), env, seed=seed, device="cpu", **arguments)
    model.learn(int(entry["n_timesteps"]) if steps is None else steps)

    def predict(observations: Any) -> Any:
        seen = observations if normal is None else normal.normalize_obs(observations)
        return model.predict(seen, deterministic=True)[0]

    return int(model.num_timesteps), predict


def entry_of(file: Path, env: str) -> dict[str, Any]:
    """An entry, with the Python in its strings parsed. Raises ValueError for wrappers and stacked frames, which no
    entry of zoo_returns.py has."""
    import yaml

    from headrace.sb3.zoo.literals import parse

    entry = dict(yaml.safe_load(file.read_text())[env])
    entry.pop("callback", None)
    for name in ("env_wrapper", "vec_env_wrapper", "frame_stack"):
        if name in entry:
            raise ValueError(f"{file}, {env}: entries with {name} are not compared here, and it is {entry[name]!r}")
    in_python = ("policy_kwargs", "normalize", "env_kwargs", "replay_buffer_kwargs")
    return {k: parse(x, k) if k in in_python and isinstance(x, str) else x for k, x in entry.items()}


def plain(value: Any) -> Any:
    """An argument as Stable-Baselines3 takes it: lin_0.001 is a function of the remaining part of the training."""
    if isinstance(value, str) and value.startswith("lin_"):
        start = float(value.removeprefix("lin_"))
        return lambda remaining: remaining * start
    return tuple(value) if isinstance(value, list) else value


def noise(entry: dict[str, Any], shape: tuple[int, ...]) -> Any:
    """The action noise of noise_type and noise_std."""
    from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

    kind = NormalActionNoise if entry["noise_type"] == "normal" else OrnsteinUhlenbeckActionNoise
    return kind(np.zeros(shape), np.full(shape, float(entry["noise_std"])))


def played(predict: Predict, env_id: str, episodes: int) -> np.ndarray:
    """Returns of the episodes with seeds FIRST_EPISODE and following, float64 [episodes], played side by side."""
    import gymnasium

    envs = [gymnasium.make(env_id) for _ in range(episodes)]
    seen = [env.reset(seed=FIRST_EPISODE + number)[0] for number, env in enumerate(envs)]
    returns, left = np.zeros(episodes), list(range(episodes))
    while left:
        actions = predict(np.stack([seen[number] for number in left]))
        still = []
        for number, action in zip(left, actions, strict=True):
            seen[number], reward, terminated, truncated, _ = envs[number].step(action)
            returns[number] += float(reward)
            if not (terminated or truncated):
                still.append(number)
        left = still
    for env in envs:
        env.close()
    return returns


if __name__ == "__main__":
    main()
