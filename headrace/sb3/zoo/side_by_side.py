"""Train the same task with Headrace and with Stable-Baselines3: the same arguments, environment, steps and seeds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from gymnasium.spaces import Dict

from headrace.core.packages import require
from headrace.core.types import Json
from headrace.data.spaces import is_image
from headrace.envs import make
from headrace.evaluation import foreign_logs
from headrace.evaluation.evaluator import evaluate
from headrace.sb3.translation import class_name
from headrace.sb3.zoo.entries import OF_ENVS, checked, entry_of, read, translated
from headrace.sb3.zoo.entry_wrappers import wrapping_of
from headrace.training.loop import train

ELSEWHERE = {  # arguments and keys with other meanings in the two libraries -> what to do
    **dict.fromkeys(
        ("frame_stack", "env_wrapper", "vec_env_wrapper"), "it would be another environment in each library"
    ),
    **{
        "seed": "give --seeds",
        "device": "both train on the CPU",
        "env": "name it",
        "model_class": "name that algorithm",
    },
}
OF_CONTRIB = ("tqc", "crossq", "trpo", "qrdqn", "recurrent_ppo")
THEIRS, OURS = "stable-baselines3", "headrace"
WINDOW = 100  # number of last training episodes for the mean return


class Result(NamedTuple):
    """A training of one of the libraries."""

    library: str
    seed: int
    mean_return: float  # of the last WINDOW training episodes
    evaluated: float  # mean return of episodes after training
    steps: int
    seconds: float  # of training
    before: float  # seconds before it: making environments and networks, compiling what is not cached
    path: Path  # for headrace plot


class Task(NamedTuple):
    """A task that both libraries train. own: an entry as rl_zoo3's files have them."""

    kind: str
    env: str
    own: Json
    settings: Json  # Headrace's settings with the same meaning


def task(algorithm: str, env: str, given: Mapping[str, Any], steps: int | None = None, zoo: Path | None = None) -> Task:
    """Make a task from arguments of Stable-Baselines3's constructor, which override the entry of a file of rl_zoo3.

    given: also n_envs, normalize and the other keys of such an entry. steps: in place of the entry's n_timesteps.
    Raises ImportError without Stable-Baselines3, ValueError for an argument that one of the libraries does not have.
    """
    package = "sb3_contrib" if algorithm in OF_CONTRIB else "stable_baselines3"
    require(package, f"compare trains with {package} too: pip install {package.replace('_', '-')}")
    entry = {**(entry_of(read(zoo), env, zoo) if zoo else {}), **given}
    if steps is not None:
        entry["n_timesteps"] = steps
    where = f"{zoo}, {env}" if zoo else f"{algorithm}, {env}"
    for name, why in ELSEWHERE.items():
        if entry.get(name) is not None:
            raise ValueError(f"{where}: {name}={entry[name]!r} is not compared: {why}, and leave it out")
    entry.pop("callback", None)  # Stable-Baselines3's objects, which change nothing that is learned
    kind, own = checked(entry, algorithm, where)
    wrapping = wrapping_of(own, env, where)
    with closing(make(env, 1, **wrapping.of_make())) as made:
        spaces = made.observation_space, made.action_space
    network = "MultiInput" if isinstance(spaces[0], Dict) else "Cnn" if is_image(spaces[0]) else "Mlp"
    own = {"policy": f"{network}Policy", "n_timesteps": 100_000, **own}
    return Task(kind, env, own, translated(kind, own, wrapping, spaces, where))


def train_ours(task: Task, seed: int, folder: Path, episodes: int) -> Result:
    """Train with Headrace, with the translated settings."""
    began = time.perf_counter()
    algorithm = "ppo" if task.kind == "recurrent_ppo" else task.kind
    options = {**task.settings, "seed": seed, "progress": "none", "device": "cpu", "log_folder": str(folder / OURS)}
    run = train(algorithm, task.env, **options)
    before = time.perf_counter() - began - run.seconds
    mean = evaluate(run.policy, run.env, episodes, seed, **run.eval_env_kwargs).mean
    return Result(OURS, seed, _last(run.path), mean, run.steps, run.seconds, before, run.path)


def train_theirs(task: Task, seed: int, folder: Path, episodes: int) -> Result:
    """Train with Stable-Baselines3, with the original arguments."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    began, own = time.perf_counter(), task.own
    path = folder / THEIRS / f"{task.kind}_{seed}"
    kwargs = own.get("env_kwargs")
    env: Any = make_vec_env(task.env, int(own.get("n_envs", 1)), seed, monitor_dir=str(path), env_kwargs=kwargs)
    judge: Any = make_vec_env(task.env, 1, seed + 1000, env_kwargs=kwargs)
    if asked := own.get("normalize"):
        wanted = {**(asked if isinstance(asked, dict) else {}), "gamma": own.get("gamma", 0.99)}
        env = VecNormalize(env, **wanted)
        judge = VecNormalize(judge, **{**wanted, "norm_reward": False}, training=False)
        judge.obs_rms = getattr(env, "obs_rms", None)
    arguments = {name: _plain(value) for name, value in own.items() if name not in OF_ENVS}
    arguments |= _action_noise(own, env.action_space.shape) | _replay(own)
    model = _class(task.kind)(own["policy"], env, seed=seed, device="cpu", **arguments)
    ready = time.perf_counter()
    model.learn(int(own["n_timesteps"]))
    seconds = time.perf_counter() - ready
    evaluated: Any = evaluate_policy(model, judge, episodes)
    mean = float(evaluated[0])
    env.close()
    judge.close()
    return Result(THEIRS, seed, _last(path), mean, int(model.num_timesteps), seconds, ready - began, path)


def _class(kind: str) -> Any:
    """The class of a model of Stable-Baselines3 or its contrib."""
    module = import_module("sb3_contrib" if kind in OF_CONTRIB else "stable_baselines3")
    return getattr(module, class_name(kind))


def _plain(value: Any) -> Any:
    """Convert an argument of an entry: lin_0.001 becomes a function of the remaining fraction of the training."""
    if isinstance(value, str) and value.startswith("lin_"):
        start = float(value.removeprefix("lin_"))
        return lambda remaining: remaining * start
    return tuple(value) if isinstance(value, list) else value


def _action_noise(own: Json, shape: tuple[int, ...]) -> Json:
    """The noise that noise_type and noise_std name."""
    if "noise_type" not in own:
        return {}
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

    kind = NormalActionNoise if own["noise_type"] == "normal" else OrnsteinUhlenbeckActionNoise
    return {"action_noise": kind(np.zeros(shape), np.full(shape, float(own.get("noise_std", 0.0))))}


def _replay(own: Json) -> Json:
    """The class of replay buffers that an entry names."""
    if "replay_buffer_class" not in own:
        return {}
    from stable_baselines3 import HerReplayBuffer

    return {"replay_buffer_class": HerReplayBuffer}  # translate() has checked the name


def _last(path: Path) -> float:
    """The mean return of the last training episodes; NaN if none has ended."""
    try:
        return fmean(foreign_logs.read(path).episode_return[-WINDOW:])
    except ValueError:
        return float("nan")
